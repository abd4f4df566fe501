"""Keyed hashing and permutations: bijections, pinned, and well mixed."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zephon_beam.keyed import Field, Permutation, keyed_bound, keyed_digest, keyed_int, keyed_ints

FIELD = st.one_of(st.integers(), st.text(max_size=4), st.binary(max_size=4))
FIELDS = st.lists(FIELD, max_size=4)


@given(st.integers(0, 5000), st.integers(0, 2**70))
@example(0, 0)
@example(1, 0)
@example(2, 0)
@example(4096, 1)
@example(4097, 1)
def test_a_permutation_is_a_bijection(size: int, seed: int) -> None:
    """Every value in [0, size) exactly once, and all at once as one by one."""
    permutation = Permutation(size, seed)
    values = permutation.all()
    assert values.dtype == np.int64
    assert values.tolist() == permutation.take(np.arange(size, dtype=np.uint64)).tolist()
    assert sorted(values.tolist()) == list(range(size))


@given(
    st.integers(1, 1 << 62),
    st.integers(0, 2**64),
    st.lists(st.integers(0, (1 << 62) - 1), min_size=1, max_size=200),
)
@settings(max_examples=50)
def test_large_permutations_stay_inside_and_never_collide(
    size: int, seed: int, places: list[int]
) -> None:
    """At random places and their neighbours; one place alone gives the same as many."""
    distinct = sorted({(place + step) % size for place in places for step in (0, 1)})
    permutation = Permutation(size, "large", seed)
    values = permutation.take(distinct)
    assert len(set(values.tolist())) == len(distinct)
    assert int(values.min()) >= 0
    assert int(values.max()) < size
    assert permutation(distinct[0]) == values[0]
    assert permutation.take(distinct[::-1]).tolist() == values.tolist()[::-1]


def test_permutations_are_pinned() -> None:
    """The order of every stream depends on these values."""
    assert Permutation(10, 0, "chunks", "web", 0).all().tolist() == [3, 5, 2, 1, 4, 8, 0, 6, 9, 7]
    assert Permutation(1).all().tolist() == [0]
    assert Permutation(2, 5).all().tolist() == [0, 1]
    large = Permutation(10**12, 7, "chunks", "größe", 3)
    assert large.take([0, 1, 2, 10**12 - 1]).tolist() == [
        688761349376,
        420910294105,
        687586133024,
        695169582791,
    ]
    assert Permutation(1 << 62, b"k").take([0, 1, (1 << 62) - 1]).tolist() == [
        4027670311462535550,
        3472213776709406763,
        2961695519953971312,
    ]


def test_permutations_are_not_pinned_to_the_identity_nor_to_each_other() -> None:
    """Another key gives another order, and no order keeps neighbours together."""
    size = 1000
    orders = [Permutation(size, "key", key).all() for key in range(50)]
    assert len({tuple(values.tolist()) for values in orders}) == 50
    fixed = [int((values == np.arange(size)).sum()) for values in orders]
    assert sum(fixed) < 50 * 4
    neighbours = [int((np.diff(values) == 1).sum()) for values in orders]
    assert sum(neighbours) < 50 * 4
    assert Permutation(size, "key", 0).all().tolist() == orders[0].tolist()


def test_every_value_is_about_as_likely_at_every_place() -> None:
    """Chi-square over small domains, where few Feistel rounds would show."""
    trials = 2000
    for size in (3, 5, 8, 13):
        counts = np.zeros((size, size))
        for key in range(trials):
            counts[np.arange(size), Permutation(size, "likely", key).all()] += 1
        expected = trials / size
        statistic = float(((counts - expected) ** 2 / expected).sum())
        freedom = (size - 1) ** 2
        assert statistic < freedom + 5 * (2 * freedom) ** 0.5, (size, statistic)


def test_all_orders_of_three_occur_about_equally() -> None:
    """No order is out of reach."""
    found: dict[tuple[int, ...], int] = {}
    for key in range(6000):
        values = tuple(Permutation(3, "three", key).all().tolist())
        found[values] = found.get(values, 0) + 1
    assert len(found) == 6
    assert all(850 < count < 1150 for count in found.values()), found


@pytest.mark.parametrize("size", [-1, (1 << 62) + 1])
def test_sizes_out_of_range_are_refused(size: int) -> None:
    """Values must fit an int64."""
    with pytest.raises(ValueError, match=r"size must be in \[0, 2\^62\], got"):
        Permutation(size)


@pytest.mark.parametrize("place", [-1, 5])
def test_places_out_of_range_are_refused(place: int) -> None:
    """They are never wrapped around."""
    with pytest.raises(IndexError, match=r"place must be in \[0, 5\), got"):
        Permutation(5)(place)


@given(FIELDS, FIELDS)
@example(["a", "b"], ["ab"])
@example(["1"], [1])
@example(["a"], [b"a"])
@example([""], [])
@example(["", "a"], ["a", ""])
@example([1, 23], [12, 3])
@example(["s\x01\x00\x00\x00\x00\x00\x00\x00a"], ["", "a"])
def test_different_fields_never_share_a_digest(first: list[Field], second: list[Field]) -> None:
    """Boundaries, types and order all count."""
    same = [(type(field), field) for field in first] == [(type(field), field) for field in second]
    assert (keyed_digest(*first, size=16) == keyed_digest(*second, size=16)) == same


def test_digests_are_pinned() -> None:
    """Every order and every identity depends on these values."""
    assert keyed_digest().hex() == "e4a6a0577479b2b4"
    assert (
        keyed_digest(0, "chunks", "web", b"\x00", -1, 2**70, size=16).hex()
        == "ff7e25973dd8481e3c201558701403a5"
    )
    assert keyed_int("größe", 1) == 2643252107910536531


def test_digests_have_the_size_asked_for() -> None:
    """1 to 64 bytes; another size is another digest, not a prefix."""
    digests = [keyed_digest("x", size=size) for size in range(1, 65)]
    assert [len(digest) for digest in digests] == list(range(1, 65))
    assert not any(b.startswith(a) for a, b in pairwise(digests[7:]))


@pytest.mark.parametrize("field", [True, 1.0, None, (1,), np.int64(1)])
def test_fields_of_other_types_are_refused(field: object) -> None:
    """They could hash like something else."""
    with pytest.raises(TypeError, match="field must be int, str or bytes, got"):
        keyed_digest(field)  # type: ignore[arg-type]


@given(FIELDS, st.lists(st.integers(-(2**70), 2**70), max_size=5))
def test_many_numbers_hash_as_each_alone(fields: list[Field], last: list[int]) -> None:
    """The faster way gives the same integers."""
    assert keyed_ints(fields, last) == [keyed_int(*fields, number) for number in last]


@given(st.fractions(0, 1), st.integers(-2, 2))
def test_a_bound_takes_exactly_the_keys_below_a_fraction(fraction: Fraction, step: int) -> None:
    """At and around the bound itself, in integers."""
    bound = keyed_bound(fraction)
    number = bound + step
    assert (number < bound) == (number < fraction * 2**64)
    assert [keyed_bound(Fraction(text)) for text in ("0", "0.5", "0.1", "1")] == [
        0,
        1 << 63,
        1844674407370955162,
        1 << 64,
    ]
