"""The global order of samples against an enumeration of it."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.errors import StreamExhaustedError
from zephon_beam.sample_order import SampleOrder

LENGTHS = st.lists(st.one_of(st.none(), st.integers(0, 8)), min_size=1, max_size=6)
MANY = 60


def enumerate_naively(lengths: list[int | None]) -> list[tuple[int, int]]:
    """Go round the lanes, index after index, leaving out lanes that have ended."""
    places = (
        (lane, index)
        for index in range(10_000 if None in lengths else 8)
        for lane, length in enumerate(lengths)
        if length is None or index < length
    )
    return list(islice(places, MANY))


@given(LENGTHS, st.data())
def test_places_are_those_of_going_round_the_lanes(
    lengths: list[int | None], data: st.DataObject
) -> None:
    """From any first to any last sample, lanes of any lengths, ended or not."""
    expected = enumerate_naively(lengths)
    order = SampleOrder(len(lengths), lengths)
    first = data.draw(st.integers(0, len(expected)))
    last = data.draw(st.integers(first, len(expected)))
    lanes, indices = order.locate(first, last)
    assert list(zip(lanes.tolist(), indices.tolist(), strict=True)) == expected[first:last]


@given(LENGTHS)
def test_numbers_are_the_inverse_of_places(lengths: list[int | None]) -> None:
    """Where every lane is known or running."""
    order = SampleOrder(len(lengths), lengths)
    for number, (lane, index) in enumerate(enumerate_naively(lengths)):
        assert order.number_of(lane, index) == number


@given(LENGTHS)
def test_the_total_is_known_once_every_lane_has_ended(lengths: list[int | None]) -> None:
    """And a sample beyond it is refused."""
    order = SampleOrder(len(lengths), lengths)
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths):
        assert order.total is None
        return
    assert order.total == sum(known)
    with pytest.raises(StreamExhaustedError, match=f"below {sum(known)}, .*got {sum(known)}"):
        order.locate(0, sum(known) + 1)


@given(LENGTHS, st.data())
def test_the_complete_prefix_ends_before_the_first_missing_sample(
    lengths: list[int | None], data: st.DataObject
) -> None:
    """In global order, whatever exists behind it."""
    committed = [data.draw(st.integers(0, 8 if length is None else length)) for length in lengths]
    expected = 0
    for lane, index in enumerate_naively(lengths):
        if index >= committed[lane]:
            break
        expected += 1
    assert SampleOrder(len(lengths), lengths).complete_prefix(committed) == expected


def test_without_lengths_lanes_take_turns_for_ever() -> None:
    """Sample g is index g // lanes of lane g % lanes."""
    order = SampleOrder(7)
    lanes, indices = order.locate(10**15, 10**15 + 20)
    numbers = range(10**15, 10**15 + 20)
    assert lanes.tolist() == [number % 7 for number in numbers]
    assert indices.tolist() == [number // 7 for number in numbers]
    assert order.total is None


def test_the_drawing_in_the_documentation_is_right() -> None:
    """Lengths 3, 1, 2."""
    lanes, indices = SampleOrder(3, [3, 1, 2]).locate(0, 6)
    assert lanes.tolist() == [0, 1, 2, 0, 2, 0]
    assert indices.tolist() == [0, 0, 0, 1, 1, 2]


def test_lengths_must_be_those_of_the_lanes() -> None:
    """Else lanes would be left out silently."""
    with pytest.raises(ValueError, match="lengths must have 3 entries, got 2"):
        SampleOrder(3, [1, 2])
