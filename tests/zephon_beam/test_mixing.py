"""Mixing: exact proportions, whatever the weights look like."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.mixing import Mixer, MixingPhase, integer_weights


def choices(mixer: Mixer, units: int, count: int) -> list[int]:
    """Take `units` from whatever is chosen, `count` times."""
    chosen = []
    for _ in range(count):
        dataset = mixer.choose()
        assert dataset is not None
        mixer.take(units)
        chosen.append(dataset)
    return chosen


def test_integer_weights_are_the_smallest_in_the_same_proportion() -> None:
    """Decimals become exact integers, never floats."""
    assert integer_weights([Decimal("0.7"), Decimal("0.3")]) == (7, 3)
    assert integer_weights([Decimal("0.1"), Decimal("0.2"), Decimal(0)]) == (1, 2, 0)
    assert integer_weights([Decimal("1e-12"), Decimal(1)]) == (1, 10**12)


def test_all_zero_weights_are_refused() -> None:
    """Nothing could ever be taken."""
    with pytest.raises(ValueError, match="not all 0"):
        integer_weights([Decimal(0), Decimal(0)])


def test_equal_pieces_follow_the_weights_and_ties_the_declared_order() -> None:
    """7:3 with equal pieces is exact every ten pieces; the first of equals goes first."""
    mixer = Mixer([MixingPhase(start=0, weights=(7, 3))])
    chosen = choices(mixer, 5, 20)
    assert chosen[:3] == [0, 1, 0]
    assert chosen[:10].count(0) == 7
    assert chosen == choices(mixer, 5, 20)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300).filter(any))
def test_hundreds_of_data_sets_with_tiny_weights_stay_exact(weights: list[int]) -> None:
    """Of any two data sets neither is more than a piece ahead of its share of the other."""
    mixer = Mixer([MixingPhase(start=0, weights=tuple(weights))])
    choices(mixer, 3, 400)
    for (a, taken_a), (b, taken_b) in zip(
        enumerate(mixer.taken), list(enumerate(mixer.taken))[1:], strict=False
    ):
        if weights[a] and weights[b]:
            assert (taken_a - 3) * weights[b] <= taken_b * weights[a]
            assert (taken_b - 3) * weights[a] <= taken_a * weights[b]
        assert weights[a] or not taken_a


def test_counters_restart_in_a_new_phase() -> None:
    """What an old phase took does not have to be made up for in the next one."""
    phases = [MixingPhase(start=0, weights=(1, 0)), MixingPhase(start=4, weights=(1, 1))]
    mixer = Mixer(phases)
    assert choices(mixer, 10, 5) == [0] * 5
    mixer.advance(3)
    assert (mixer.phase, mixer.next_start) == (0, 4)
    mixer.advance(4)
    assert (mixer.phase, mixer.next_start, mixer.taken) == (1, None, [0, 0])
    assert choices(mixer, 10, 4) == [0, 1, 0, 1]


def test_an_exhausted_data_set_is_never_chosen_again() -> None:
    """Not in this phase and not in a later one."""
    mixer = Mixer([MixingPhase(start=0, weights=(1, 1)), MixingPhase(start=1, weights=(9, 1))])
    mixer.exhaust()
    assert mixer.choose() == 1
    mixer.advance(1)
    assert mixer.choose() == 1
    mixer.exhaust()
    assert mixer.choose() is None
