"""Which frames of a video are taken: equally spaced in time, from the first to the last.

shown     0    40   80   120  160  200  240  280      (eight frames)
wanted    0              93             187      280   num_frames: 4
taken     0         80                  200      280   the nearest; of two the even one
"""

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction

_MOVE_BITS = 64


def count_frames(
    times: Sequence[int],
    *,
    time_base: Fraction,
    num_frames: int | None,
    fps: Fraction | None,
    min_frames: int,
    max_frames: int,
    multiple: int,
) -> int:
    """Return how many frames to take of a video, a multiple of `multiple` unless it has fewer.

    Args:
        times: when each frame is shown, in order, in units of `time_base`.
        time_base: seconds of a unit.
        num_frames: how many are wanted, or None.
        fps: how many a second are wanted, where `num_frames` is None.
        min_frames: of `fps`: no fewer, if there are as many.
        max_frames: of `fps`: no more.
        multiple: frames that one patch spans.

    Source: `smart_nframes` of qwen-vl-utils, with exact fractions.
    """
    available = len(times)
    if num_frames is not None:
        wanted = num_frames
    else:
        spacing = Fraction(times[-1] - times[0], max(1, available - 1)) * time_base
        wanted = int(spacing * available * (fps or 0))
        wanted = min(max(wanted, min_frames), max_frames)
    wanted = min(wanted, available)
    return max(wanted // multiple * multiple, min(multiple, available), 1)


def choose_frames(times: Sequence[int], count: int, moves: Sequence[int] = ()) -> list[int]:
    """Return the places of `count` frames equally spaced in time, in order.

    Args:
        times: when each frame is shown, in order without repetition.
        count: at least 1; where frames are far apart one may be taken more than once.
        moves: for each frame but the first, in [0, 2^64): by how much of the distance between two
            frames it is moved, from half of it back to half of it on. None are moved without.

    Determinism: integers alone. Of frames at one distance the one at an even place is taken, which
    for a constant rate is what rounding `linspace(0, frames - 1, count)` gives.
    """
    if count == 1:
        return [0]
    steps = count - 1
    span = times[-1] - times[0]
    wanted = [times[0] * steps + span * step for step in range(count)]
    if moves:
        steps <<= _MOVE_BITS
        half = 1 << (_MOVE_BITS - 1)
        wanted = [
            (time << _MOVE_BITS) + span * (move - half)
            for time, move in zip(wanted, (half, *moves), strict=True)
        ]
    return [_nearest(times, time, steps) for time in wanted]


def _nearest(times: Sequence[int], wanted: int, scale: int) -> int:
    """Return the place of the time nearest to wanted / scale."""
    after = bisect_left(times, -(-wanted // scale))
    if after == 0:
        return 0
    if after == len(times):
        return after - 1
    before_by = wanted - times[after - 1] * scale
    after_by = times[after] * scale - wanted
    if before_by == after_by:
        return after - after % 2
    return after if after_by < before_by else after - 1
