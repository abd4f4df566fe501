"""Who gets which samples of a step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.reader.ranks import (
    balance_samples,
    microbatch_count,
    place_samples,
    rank_share,
)


@given(st.integers(0, 300), st.integers(1, 80))
def test_shares_cover_the_step_once_and_differ_by_one_at_most(count: int, world: int) -> None:
    """Shares of all ranks are adjacent and nearly equal."""
    shares = [rank_share(count, rank, world) for rank in range(world)]
    assert [low for low, _ in shares] == [0, *[high for _, high in shares[:-1]]]
    assert shares[-1][1] == count
    sizes = {high - low for low, high in shares}
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 300), st.integers(1, 80), st.integers(1, 20))
def test_every_share_fits_the_microbatches(batch: int, world: int, micro: int) -> None:
    """Microbatches hold the largest share with less than one of them to spare."""
    count = microbatch_count(batch, world, micro)
    largest = max(
        high - low for low, high in (rank_share(batch, rank, world) for rank in range(world))
    )
    assert (count - 1) * micro < largest <= count * micro


def test_the_docstring_examples_hold() -> None:
    """The drawings say what the code does."""
    assert [rank_share(10, rank, 4) for rank in range(4)] == [(0, 2), (2, 5), (5, 7), (7, 10)]
    assert [rank_share(2, rank, 4) for rank in range(4)] == [(0, 0), (0, 1), (1, 1), (1, 2)]
    assert microbatch_count(10, 4, 2) == 2


@pytest.mark.parametrize(
    ("placement", "expected"),
    [("contiguous", [0, 1, 2, 3, 4, 5, 6, 7]), ("by_lane", [0, 2, 4, 6, 1, 3, 5, 7])],
)
def test_placement_orders_samples(placement: str, expected: list[int]) -> None:
    """By lane, a lane's samples come together and stay in order."""
    lanes = np.array([0, 1] * 4)
    assert place_samples(lanes, placement).tolist() == expected


def test_balancing_evens_out_what_lanes_make_uneven() -> None:
    """One long document a row on one rank, many short ones on the other: costs become alike."""
    costs = np.array([100, 90, 80, 70, 1, 2, 3, 4])
    placed = balance_samples(np.arange(8), costs, 2)
    assert sorted(placed.tolist()) == list(range(8))
    halves = costs[placed[:4]].sum(), costs[placed[4:]].sum()
    assert abs(int(halves[0]) - int(halves[1])) <= 10
    assert placed.tolist() == [0, 3, 4, 7, 1, 2, 5, 6]


@given(st.lists(st.integers(0, 2**40), max_size=60), st.integers(1, 70))
def test_balancing_deals_each_sample_once(costs: list[int], world: int) -> None:
    """Whatever the costs, and with more ranks than samples."""
    order = np.arange(len(costs))[::-1]
    placed = balance_samples(order, np.array(costs, np.int64), world)
    assert sorted(placed.tolist()) == list(range(len(costs)))
