"""Which frames of a video are taken."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.media.frames import choose_frames, count_frames

times_of_any_rate = st.lists(st.integers(0, 10_000), min_size=1, max_size=60, unique=True).map(
    sorted
)


@given(st.integers(1, 300), st.integers(1, 60), st.integers(-1000, 1000), st.integers(1, 512))
def test_a_constant_rate_gives_what_rounding_equal_steps_gives(
    frames: int, count: int, start: int, spacing: int
) -> None:
    """`round(linspace(0, frames - 1, count))` with exact fractions, halves to even."""
    times = [start + spacing * place for place in range(frames)]
    steps = max(1, count - 1)
    expected = [round(Fraction(place * (frames - 1), steps)) for place in range(count)]
    assert choose_frames(times, count) == expected


@given(times_of_any_rate, st.integers(1, 20))
def test_every_chosen_frame_is_nearest_to_its_time(times: list[int], count: int) -> None:
    """Whatever the rate, and in order."""
    chosen = choose_frames(times, count)
    assert chosen == sorted(chosen)
    assert chosen[0] == 0
    for step, place in enumerate(chosen):
        wanted = times[0] + Fraction((times[-1] - times[0]) * step, max(1, count - 1))
        distances = [abs(time - wanted) for time in times]
        assert distances[place] == min(distances)
        nearest = [p for p, distance in enumerate(distances) if distance == min(distances)]
        assert place == next((p for p in nearest if p % 2 == 0), nearest[0])


def counted(frames: int, **changes: object) -> int:
    """Count for a video of 25 frames a second."""
    options: dict[str, object] = {
        "num_frames": None,
        "fps": Fraction(2),
        "min_frames": 4,
        "max_frames": 768,
        "multiple": 2,
        **changes,
    }
    times = range(0, 512 * frames, 512)
    return count_frames(times, time_base=Fraction(1, 12_800), **options)  # type: ignore[arg-type]


def published(frames: int, *, rate: float, fps: float, least: int, most: int) -> int:
    """Compute the number of frames as qwen-vl-utils publishes it."""
    wanted = frames / rate * fps
    wanted = min(min(max(wanted, least), most // 2 * 2), frames)
    return int(wanted // 2 * 2)


@pytest.mark.parametrize("frames", [2, 3, 5, 49, 50, 51, 75, 100, 132, 250, 999, 30_000])
def test_frames_a_second_are_as_published(frames: int) -> None:
    """For all lengths that the published function takes."""
    assert counted(frames) == published(frames, rate=25, fps=2, least=4, most=768)
    fewer = counted(frames, fps=Fraction(1, 2), max_frames=8)
    assert fewer == published(frames, rate=25, fps=0.5, least=4, most=8)


@pytest.mark.parametrize(
    ("frames", "num_frames", "multiple", "expected"),
    [(100, 8, 2, 8), (7, 8, 2, 6), (2, 8, 2, 2), (1, 8, 2, 1), (1, 8, 1, 1), (3, 8, 1, 3)],
)
def test_a_video_gives_no_more_frames_than_it_has(
    frames: int, num_frames: int, multiple: int, expected: int
) -> None:
    """Whole patches of frames, but one frame where there is one."""
    assert counted(frames, num_frames=num_frames, multiple=multiple) == expected


def test_one_frame_is_enough_for_a_rate() -> None:
    """A single frame has no spacing."""
    assert counted(1) == 1


@given(times_of_any_rate, st.data())
def test_moved_frames_stay_in_order_and_within_half_a_step(
    times: list[int], data: st.DataObject
) -> None:
    """The first one stays; without a move each is where it would be."""
    count = data.draw(st.integers(2, 12))
    moves = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=count - 1, max_size=count - 1))
    chosen = choose_frames(times, count, moves)
    assert chosen == sorted(chosen)
    assert chosen[0] == 0
    span = times[-1] - times[0]
    for step, (place, move) in enumerate(zip(chosen[1:], moves, strict=True), start=1):
        by = Fraction(move, 2**64) - Fraction(1, 2)
        wanted = times[0] + span * (step + by) / (count - 1)
        assert abs(times[place] - wanted) == min(abs(time - wanted) for time in times)
    assert choose_frames(times, count, [1 << 63] * (count - 1)) == choose_frames(times, count)
