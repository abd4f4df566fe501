"""The order of chunks: every pass visits every chunk once over all lanes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.chunk_order import ChunkOrder, document_order

COUNTS = st.integers(1, 40)
LANES = st.integers(1, 9)


def order(
    chunk_count: int = 5,
    lanes: int = 3,
    *,
    seed: int = 0,
    dataset: str = "web",
    shuffle: bool = True,
    passes: int | None = None,
) -> ChunkOrder:
    """Make an order."""
    return ChunkOrder(
        seed=seed,
        dataset=dataset,
        chunk_count=chunk_count,
        lanes=lanes,
        shuffle=shuffle,
        passes=passes,
    )


@given(COUNTS, LANES, st.integers(1, 4), st.booleans(), st.integers(0, 2**70))
def test_every_pass_visits_every_chunk_once_over_all_lanes(
    chunk_count: int, lanes: int, passes: int, shuffle: bool, seed: int
) -> None:
    """Whether there are fewer chunks than lanes or more; then the channels end."""
    chunks = order(chunk_count, lanes, seed=seed, shuffle=shuffle, passes=passes)
    endless = order(chunk_count, lanes, seed=seed, shuffle=shuffle)
    visited = []
    for lane in range(lanes):
        count = chunks.count(lane)
        assert count is not None
        assert endless.count(lane) is None
        for number in range(count):
            position = chunks.position(lane, number)
            assert position is not None
            assert position == endless.position(lane, number)
            visited.append(position)
        assert chunks.position(lane, count) is None
        assert chunks.position(lane, count + 10) is None
        assert endless.position(lane, count) is not None
    assert sorted(visited) == [(p, c) for p in range(passes) for c in range(chunk_count)]


@given(COUNTS, LANES)
def test_without_shuffle_lanes_take_turns_in_source_order(chunk_count: int, lanes: int) -> None:
    """Position p is chunk p of the sources, pass after pass."""
    chunks = order(chunk_count, lanes, shuffle=False)
    for position in range(3 * chunk_count):
        found = chunks.position(position % lanes, position // lanes)
        assert found == divmod(position, chunk_count)


def test_orders_are_pinned() -> None:
    """Streams of today go on in the same order with every later version."""
    chunks = order(10, 3, seed=7)
    assert [[chunks.position(lane, n) for n in range(5)] for lane in range(3)] == [
        [(0, 1), (0, 0), (0, 6), (0, 7), (1, 8)],
        [(0, 5), (0, 9), (0, 2), (1, 1), (1, 6)],
        [(0, 3), (0, 8), (0, 4), (1, 0), (1, 2)],
    ]
    far = order(10**8, 8, dataset="größe", seed=2**64)
    assert [far.position(3, n) for n in (0, 1, 10**9)] == [
        (0, 9898424),
        (0, 57541285),
        (80, 56088208),
    ]
    assert document_order(
        seed=7, dataset="web", pass_=1, chunk=2, part=3, count=8, shuffle=True
    ).tolist() == [0, 7, 5, 3, 1, 6, 2, 4]


def test_seed_data_set_and_pass_change_the_order() -> None:
    """And nothing else does: neither lanes nor the number of passes."""
    places = range(300)

    def visited(chunks: ChunkOrder, lanes: int) -> list[object]:
        return [chunks.position(place % lanes, place // lanes) for place in places]

    base = visited(order(100, 3), 3)
    assert visited(order(100, 7), 7) == base
    assert visited(order(100, 3, passes=3), 3) == base
    assert visited(order(100, 3, seed=1), 3) != base
    assert visited(order(100, 3, dataset="code"), 3) != base
    passes = [[entry[1] for entry in base[start : start + 100]] for start in (0, 100, 200)]  # type: ignore[index]
    assert passes[0] != passes[1] != passes[2] != passes[0]


@given(st.integers(0, 200), st.integers(0, 10), st.integers(0, 10), st.integers(0, 10))
def test_documents_of_a_part_are_permuted(count: int, pass_: int, chunk: int, part: int) -> None:
    """Each place once; in source order without shuffle."""
    places = {
        shuffle: document_order(
            seed=1,
            dataset="d",
            pass_=pass_,
            chunk=chunk,
            part=part,
            count=count,
            shuffle=shuffle,
        )
        for shuffle in (True, False)
    }
    assert places[False].tolist() == list(range(count))
    assert sorted(places[True].tolist()) == list(range(count))
    assert {array.dtype for array in places.values()} == {np.dtype(np.int64)}


def test_every_field_changes_the_order_of_documents() -> None:
    """Seed, data set, pass, chunk and part."""
    base = {"seed": 1, "dataset": "d", "pass_": 2, "chunk": 3, "part": 4}
    variants = [base, *({**base, name: 9 if name != "dataset" else "e"} for name in base)]
    variants.append({**base, "chunk": 4, "part": 3})
    orders = [
        tuple(document_order(count=50, shuffle=True, **variant).tolist())  # type: ignore[arg-type]
        for variant in variants
    ]
    assert len(set(orders)) == len(variants)


@pytest.mark.parametrize(("chunk_count", "lanes"), [(0, 1), (1, 0), (-1, 1)])
def test_an_order_of_nothing_is_refused(chunk_count: int, lanes: int) -> None:
    """It would divide by zero later."""
    with pytest.raises(ValueError, match="chunk_count and lanes must be at least 1, got"):
        order(chunk_count, lanes)
