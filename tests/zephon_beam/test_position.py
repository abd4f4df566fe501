"""Where a stream stands, and what is a lane's head: the commit protocol, object by object."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.streams import FakeStream, put
from tests.verified_streams import make_state, write_whole_stream
from zephon_beam.carry import CarryHead, WaitingPart, encode_carry, same_carry
from zephon_beam.errors import CorruptObjectError, DeterminismError, DriftError
from zephon_beam.heads import Heads
from zephon_beam.layout import carry_name, end_name, plan_name, shard_name, state_name
from zephon_beam.plan import LanePlan, Plan, encode_plan
from zephon_beam.position import is_superseded, read_position
from zephon_beam.sequences import PartKey
from zephon_beam.store.base import open_store
from zephon_beam.store.local import LocalStore

LANES = 2


@pytest.fixture
def stream(tmp_path: Path) -> FakeStream:
    """Two lanes of four shards with two samples each that go on."""
    return write_whole_stream(tmp_path, [8, 8], samples_per_shard=2, finite=False)


def carry(stream: FakeStream, lane: int, advance: int, shard: int, waiting: int = 0) -> bytes:
    """Encode the carry of a lane that stands right after a shard."""
    parts = [
        WaitingPart(key=PartKey(dataset=0, number=n, part=0), last=True, source_bytes=1)
        for n in range(waiting)
    ]
    head = CarryHead(advance=advance, state=make_state(stream, lane, shard), waiting=parts)
    return encode_carry(head, [b""] * waiting)


def put_carry(stream: FakeStream, lane: int, advance: int, shard: int) -> None:
    """Store such a carry."""
    put(Path(stream.uri), carry_name(lane, advance), carry(stream, lane, advance, shard))


def put_plan(stream: FakeStream, advance: int, *heads: tuple[int, str, int]) -> Plan:
    """Store a plan of (lane, head kind, head number)."""
    lanes = tuple(
        LanePlan(lane=lane, head_kind=kind, head_number=number, supply=())
        for lane, kind, number in heads
    )
    plan = Plan(advance=advance, fingerprint=stream.manifest.fingerprint, lanes=lanes)
    put(Path(stream.uri), plan_name(advance), encode_plan(plan))
    return plan


def lose(stream: FakeStream, *names: str) -> None:
    """Delete objects."""
    for name in names:
        (Path(stream.uri) / name).unlink()


def test_an_advance_is_complete_with_every_carry_and_every_shard_that_they_count(
    stream: FakeStream,
) -> None:
    """What is missing of it makes the same plan the next one to run, under its own number."""
    store = open_store(stream.uri)
    plan = put_plan(stream, 0, (0, "none", -1), (1, "none", -1))
    put_carry(stream, 0, 0, 3)
    assert read_position(store, stream.manifest).pending == plan
    put_carry(stream, 1, 0, 3)
    found = read_position(store, stream.manifest)
    assert (found.pending, found.next_advance) == (None, 1)
    assert [head.kind for head in found.heads] == ["carry", "carry"]
    for shard in range(4):
        lose(stream, shard_name(1, shard))
        assert read_position(store, stream.manifest).pending == plan
        put(Path(stream.uri), shard_name(1, shard), b"")
    assert read_position(store, stream.manifest).pending is None


def test_an_end_stands_for_the_carry_of_a_lane_that_has_ended(stream: FakeStream) -> None:
    """And counts shards like one."""
    store = open_store(stream.uri)
    plan = put_plan(stream, 0, (0, "none", -1), (1, "none", -1))
    put_carry(stream, 0, 0, 3)
    put(Path(stream.uri), end_name(1), b'{"samples": 8}')
    found = read_position(store, stream.manifest)
    assert [head.ended for head in found.heads] == [False, True]
    assert found.complete_samples == 16
    lose(stream, shard_name(1, 3))
    assert read_position(store, stream.manifest).pending == plan


def test_lanes_that_a_plan_does_not_name_keep_their_heads(stream: FakeStream) -> None:
    """Theirs is the carry of an older advance."""
    store = open_store(stream.uri)
    put_plan(stream, 0, (0, "none", -1), (1, "none", -1))
    put_carry(stream, 1, 0, 1)
    put_plan(stream, 1, (0, "carry", 0))
    put_carry(stream, 0, 1, 3)
    found = read_position(store, stream.manifest)
    assert found.pending is None
    assert [(head.kind, head.number, head.samples) for head in found.heads] == [
        ("carry", 1, 8),
        ("carry", 0, 4),
    ]


@pytest.mark.parametrize(
    ("at_carry", "expected"), [(1, ("state", 3)), (3, ("carry", 5)), (None, ("state", 3))]
)
def test_the_further_head_is_taken_and_of_equal_ones_the_carry(
    stream: FakeStream, at_carry: int | None, expected: tuple[str, int]
) -> None:
    """A carry also saves what was supplied and not used."""
    if at_carry is not None:
        put_carry(stream, 0, 5, at_carry)
    head = Heads(open_store(stream.uri), stream.manifest).furthest(0)
    assert (head.kind, head.number) == expected


def test_the_fallback_is_the_last_state_of_the_gapless_run_of_shards(stream: FakeStream) -> None:
    """Neither a state behind a hole nor a carry that counts a lost shard is gone on from."""
    heads = Heads(open_store(stream.uri), stream.manifest)
    put_carry(stream, 0, 5, 3)
    lose(stream, shard_name(0, 2))
    assert heads.furthest(0).number == 1
    lose(stream, state_name(0, 1))
    assert (heads.furthest(0).kind, heads.furthest(0).number) == ("state", 0)
    lose(stream, shard_name(0, 0))
    assert heads.furthest(0).kind == "none"


def test_a_plan_whose_head_is_gone_is_not_run_again(stream: FakeStream) -> None:
    """The next one starts from the states."""
    store = open_store(stream.uri)
    put_plan(stream, 3, (0, "carry", 2), (1, "none", -1))
    put_carry(stream, 1, 3, 3)
    found = read_position(store, stream.manifest)
    assert (found.pending, found.next_advance) == (None, 4)
    assert (found.heads[0].kind, found.heads[0].number) == ("state", 3)
    put_carry(stream, 0, 2, 1)
    assert read_position(store, stream.manifest).pending is not None


def test_a_damaged_carry_in_the_place_of_the_next_one_is_gone_round(stream: FakeStream) -> None:
    """It would stay there: objects are created once."""
    store = open_store(stream.uri)
    put_plan(stream, 0, (0, "none", -1), (1, "none", -1))
    put_carry(stream, 1, 0, 3)
    put(Path(stream.uri), carry_name(0, 0), b"Obj")
    found = read_position(store, stream.manifest)
    assert (found.pending, found.next_advance) == (None, 1)


def test_a_carry_that_exists_is_accepted_as_it_is(stream: FakeStream, tmp_path: Path) -> None:
    """What waits in it depends on arrivals; only another lane or advance is another object."""
    store = LocalStore(tmp_path / "other")
    assert store.put_if_absent(carry_name(0, 1), carry(stream, 0, 1, 2), same_carry)
    kept = store.get(carry_name(0, 1))
    assert not store.put_if_absent(carry_name(0, 1), carry(stream, 0, 1, 2, waiting=3), same_carry)
    assert store.get(carry_name(0, 1)) == kept
    for foreign in (carry(stream, 1, 1, 2), carry(stream, 0, 2, 2)):
        with pytest.raises(DeterminismError, match=r"stored [0-9a-f]{32}, computed [0-9a-f]{32}"):
            store.put_if_absent(carry_name(0, 1), foreign, same_carry)


def test_heads_of_other_streams_and_lanes_are_as_good_as_missing(stream: FakeStream) -> None:
    """Whatever their names say."""
    heads = Heads(open_store(stream.uri), stream.manifest)
    foreign = replace(stream, manifest=replace(stream.manifest, fingerprint="0" * 32))
    for other, lane in ((foreign, 0), (stream, 1)):
        put(Path(stream.uri), carry_name(0, 5), carry(other, lane, 5, 3))
        assert heads.carry(0, 5) is None
    put(Path(stream.uri), carry_name(0, 5), carry(stream, 0, 4, 3))
    assert heads.carry(0, 5) is None
    (Path(stream.uri) / state_name(0, 3)).write_bytes(
        (Path(stream.uri) / state_name(1, 3)).read_bytes()
    )
    assert heads.state(0, 3) is None
    assert (heads.furthest(0).kind, heads.furthest(0).number) == ("state", 2)


def test_a_later_plan_says_that_another_driver_has_gone_on(stream: FakeStream) -> None:
    """And a plan of another stream, or a damaged one, is no plan to run."""
    store = open_store(stream.uri)
    plan = put_plan(stream, 0, (0, "none", -1))
    assert not is_superseded(store, plan)
    put_plan(stream, 1, (0, "none", -1))
    assert is_superseded(store, plan)
    foreign = replace(stream, manifest=replace(stream.manifest, fingerprint="0" * 32))
    put_plan(foreign, 2, (0, "none", -1))
    with pytest.raises(DriftError, match=r"advances/000002\.json: fingerprint: expected"):
        read_position(store, stream.manifest)
    put(Path(stream.uri), plan_name(2), b"{")
    with pytest.raises(CorruptObjectError, match=r"delete it together with the carries of its n"):
        read_position(store, stream.manifest)
