"""The state: what it holds, what it refuses."""

from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.errors import DriftError, ResumeError
from zephon_beam.reader.cursor import (
    Cursor,
    Topology,
    add_range,
    decode_state,
    encode_state,
    following_step,
    without_skipped,
)

TOPOLOGY = Topology(dp_world_size=2, micro_batch_size=2, global_batch_size=8, placement="by_lane")
EDGE = Cursor(next_sample=24, step_base=0, skipped=((5, 7), (9, 10)))
MIDDLE = replace(EDGE, microbatch=1)


def saved(cursor: Cursor, **changes: Any) -> dict[str, Any]:
    """Encode a cursor and change some keys."""
    return {**encode_state(cursor, TOPOLOGY, "abc"), **changes}


@pytest.mark.parametrize("cursor", [EDGE, MIDDLE, replace(EDGE, ended=True)])
def test_a_state_loads_as_it_was_saved(cursor: Cursor) -> None:
    """Encoding and decoding is the identity for the same topology."""
    assert decode_state(saved(cursor), TOPOLOGY, "abc") == cursor


def test_every_state_has_the_same_keys_and_plain_types() -> None:
    """A fresh state is a valid template for any other."""
    fresh, later = saved(Cursor(next_sample=0, step_base=0)), saved(MIDDLE)
    assert {key: type(value) for key, value in fresh.items()} == {
        key: type(value) for key, value in later.items()
    }
    assert {type(value) for value in fresh.values()} == {int, str, bool}
    assert list(fresh) == list(later)


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 20), st.integers(0, 100))
def test_another_batch_size_keeps_position_and_step_number(
    step: int, old: int, new: int, start: int
) -> None:
    """Rebasing moves step_base only."""
    state = encode_state(
        Cursor(next_sample=start + step * old, step_base=start),
        replace(TOPOLOGY, global_batch_size=old),
        "abc",
    )
    cursor = decode_state(state, replace(TOPOLOGY, global_batch_size=new), "abc")
    assert cursor.next_sample == start + step * old
    assert cursor.next_sample - cursor.step_base == step * new


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dp_world_size", 3),
        ("micro_batch_size", 1),
        ("global_batch_size", 12),
        ("placement", "contiguous"),
    ],
)
def test_inside_a_step_the_topology_must_be_the_same(field: str, value: Any) -> None:
    """Each of the four decides which samples the ranks have had."""
    other = replace(TOPOLOGY, **{field: value})
    expected = f"{field} must be {getattr(TOPOLOGY, field)!r}.*got {value!r}.*repeated or missed"
    with pytest.raises(ResumeError, match=expected):
        decode_state(saved(MIDDLE), other, "abc")
    if field != "global_batch_size":
        assert decode_state(saved(EDGE), other, "abc") == EDGE


def test_a_state_of_another_stream_is_drift() -> None:
    """Both fingerprints are named."""
    with pytest.raises(DriftError, match=r"expected 'xyz'.*found 'abc'"):
        decode_state(saved(EDGE), TOPOLOGY, "xyz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "state version must be 1, got 2"),
        ({"version": "1"}, "version of the reader state must be an integer of at least 1"),
        ({"next_sample": -8}, "next_sample of the reader state must be an integer of at least 0"),
        ({"next_sample": 25}, "must be step_base plus a multiple of global_batch_size, got 25"),
        ({"step_base": 32}, "must be step_base plus a multiple of global_batch_size, got 24, 32"),
        ({"step_base": 1.5}, "step_base of the reader state must be an integer, got 1.5"),
        ({"microbatch": True}, "microbatch of the reader state must be an integer"),
        ({"microbatch": 2}, "microbatch of the reader state must be below 2"),
        ({"fingerprint": 3}, "fingerprint of the reader state must be a text, got 3"),
        ({"skipped_steps": "5"}, "skipped_steps of the reader state must be ranges like"),
    ],
)
def test_an_altered_state_is_refused(changes: dict[str, Any], message: str) -> None:
    """The message names the key and the value."""
    with pytest.raises(ResumeError, match=message):
        decode_state(saved(EDGE, **changes), TOPOLOGY, "abc")


@pytest.mark.parametrize("key", sorted(saved(EDGE)))
def test_a_state_without_a_key_is_refused(key: str) -> None:
    """No key is optional where it matters."""
    state = saved(MIDDLE)
    del state[key]
    with pytest.raises(ResumeError, match=f"must have the key '{key}'"):
        decode_state(state, TOPOLOGY, "abc")


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=8), st.integers(0, 40))
def test_skipped_ranges_merge_to_the_same_steps(items: list[tuple[int, int]], step: int) -> None:
    """Ranges stay sorted and apart, and say the same steps as a set of numbers."""
    ranges: tuple[tuple[int, int], ...] = ()
    steps: set[int] = set()
    for first, length in items:
        ranges = add_range(ranges, first, first + length)
        steps.update(range(first, first + length))
    assert {n for low, high in ranges for n in range(low, high)} == steps
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    cursor = Cursor(next_sample=step * 4 + 3, step_base=3, skipped=ranges)
    expected = next(n for n in count(step) if n not in steps)
    assert without_skipped(cursor, 4) == replace(cursor, next_sample=expected * 4 + 3)
    expected = next(n for n in count(step + 1) if n not in steps)
    inside = replace(cursor, microbatch=1)
    assert without_skipped(inside, 4) == inside
    assert following_step(inside, 4) == replace(cursor, next_sample=expected * 4 + 3)
