"""What is deleted is what nobody needs, said before it is done."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verified_streams import write_whole_stream
from zephon_beam.consumers import (
    Consumer,
    decode_consumer,
    encode_consumer,
    read_consumers,
)
from zephon_beam.errors import CorruptObjectError
from zephon_beam.inspection import inspect_stream
from zephon_beam.layout import consumer_name, shard_name, state_name
from zephon_beam.retained import read_first_shards, write_first_shards
from zephon_beam.retention import delete_garbage, find_garbage
from zephon_beam.store.base import open_store
from zephon_beam.store.local import LocalStore
from zephon_beam.verification import verify_stream


def consumer(name: str, **pins: int) -> Consumer:
    """Return a consumer with pins."""
    return Consumer(name=name, fingerprint="f", position=0, pins=pins)


def test_a_consumer_survives_encoding() -> None:
    """Every field, and the first sample it needs is that of its smallest pin."""
    written = Consumer(
        name="run-1", fingerprint="f", position=7, pins={"b": 3, "a": 5}, beat=9, finished=True
    )
    assert decode_consumer(encode_consumer(written), "run-1") == written
    assert written.first_needed == 3
    assert consumer("x").first_needed == 0


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b'{"format_version": 2}'],
)
def test_a_damaged_consumer_keeps_everything(tmp_path: Path, data: bytes) -> None:
    """What it needs is unknown; the error says so and how to go on."""
    store = open_store(str(tmp_path))
    store.replace(consumer_name("run-1"), data)
    with pytest.raises(CorruptObjectError, match=r"consumers/run-1.json is corrupt.*nothing is"):
        read_consumers(store)


@given(data=st.data())
def test_every_sample_that_is_pinned_stays(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """And with it the state before its shard; the rest verifies, and its counts are the same."""
    folder = tmp_path_factory.mktemp("stream")
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3), label="lengths")
    stream = write_whole_stream(folder, lengths, samples_per_shard=2)
    store, manifest = open_store(stream.uri), stream.manifest
    total = sum(lengths)
    before = inspect_stream(stream.uri)
    whole = verify_stream(stream.uri)
    needed = 0
    for _ in range(data.draw(st.integers(1, 3), label="rounds")):
        pins = data.draw(st.lists(st.integers(0, total + 1), max_size=3), label="pins")
        consumers = [consumer(f"run-{n}", acknowledged=pin) for n, pin in enumerate(pins)]
        garbage = find_garbage(store, manifest, consumers)
        # Broken off anywhere, then done again.
        cut = data.draw(st.integers(0, len(garbage.names)), label="cut")
        write_first_shards(store, garbage.first_shards)
        for name in garbage.names[:cut]:
            store.delete(name)
        again = find_garbage(store, manifest, consumers)
        assert again.first_shards == garbage.first_shards
        assert set(again.names) == set(garbage.names[cut:])
        delete_garbage(store, manifest, again)
        needed = max(needed, min(pins, default=0))
    report = verify_stream(stream.uri)
    assert report.faults == ()
    assert report.first_sample <= needed
    assert report.stream_digest is not None
    assert report.complete_samples == whole.complete_samples == total
    after = inspect_stream(stream.uri)
    moved = {"shards", "bytes", "first_sample"}
    assert {k: v for k, v in after.items() if k not in moved} == {
        k: v for k, v in before.items() if k not in moved
    }
    for lane, first in enumerate(read_first_shards(store, manifest.lanes)):
        assert not any(store.exists(shard_name(lane, shard)) for shard in range(first))
        assert first == 0 or store.exists(state_name(lane, first - 1))
        last = -(-lengths[lane] // 2) - 1
        assert store.exists(shard_name(lane, last))


def test_nothing_is_deleted_without_consumers_or_pins(tmp_path: Path) -> None:
    """Nobody has said what it needs."""
    stream = write_whole_stream(tmp_path, [9, 8], samples_per_shard=2)
    store = open_store(stream.uri)
    assert find_garbage(store, stream.manifest, []).names == ()
    both = [consumer("new"), consumer("old", acknowledged=14)]
    assert find_garbage(store, stream.manifest, both).names == ()
    assert find_garbage(store, stream.manifest, both[1:]).names != ()


def test_where_the_stream_begins_is_said_before_anything_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is deleted would look like a hole, and be made again."""
    stream = write_whole_stream(tmp_path, [9, 8], samples_per_shard=2)
    store = LocalStore(tmp_path)
    first_of_all: list[list[int]] = []
    plain = store.delete

    def note(name: str) -> None:
        if name.startswith(("shards/", "state/")):
            first_of_all.append(read_first_shards(store, 2))
        plain(name)

    monkeypatch.setattr(store, "delete", note)
    for pin in (6, 12):
        before = len(first_of_all)
        garbage = find_garbage(store, stream.manifest, [consumer("run", acknowledged=pin)])
        delete_garbage(store, stream.manifest, garbage)
        assert len(first_of_all) > before
        assert all(first == list(garbage.first_shards) for first in first_of_all[before:])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6))
def test_the_beginning_never_moves_back(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int]]
) -> None:
    """Whoever writes what, in whatever order."""
    store = LocalStore(tmp_path_factory.mktemp("base"))
    expected = [0, 0]
    for first in writes:
        write_first_shards(store, first)
        expected = [max(pair) for pair in zip(expected, first, strict=True)]
        assert read_first_shards(store, 2) == expected


def test_a_beginning_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing names an object that a newer one has replaced since."""
    store = LocalStore(tmp_path)
    write_first_shards(store, [1, 1])
    plain = store.list

    def listed_late(prefix: str) -> list[str]:
        names = list(plain(prefix))
        monkeypatch.undo()
        write_first_shards(store, [2, 2])
        return names

    monkeypatch.setattr(store, "list", listed_late)
    assert read_first_shards(store, 2) == [2, 2]


@pytest.mark.parametrize("content", ["{", "[]", '{"format_version": 1, "first_shards": [1]}'])
def test_a_damaged_beginning_is_named(tmp_path: Path, content: str) -> None:
    """Where the stream begins must not be guessed."""
    store = LocalStore(tmp_path)
    store.replace("base/x.json", content.encode())
    with pytest.raises(CorruptObjectError, match=r"base/x.json is corrupt: .*; where the stream"):
        read_first_shards(store, 2)


def test_a_hole_behind_the_beginning_is_no_fault_and_one_after_it_is(tmp_path: Path) -> None:
    """Verification tells what was deleted on purpose from what was lost."""
    stream = write_whole_stream(tmp_path, [8, 8], samples_per_shard=2)
    store = open_store(stream.uri)
    store.delete(shard_name(0, 0))
    assert "is missing" in verify_stream(stream.uri).faults[0]
    write_first_shards(store, [1, 0])
    report = verify_stream(stream.uri)
    assert report.faults == ()
    assert report.first_sample == 3
    store.delete(state_name(0, 0))
    assert "state/lane-00000/000000000.avro must exist" in verify_stream(stream.uri).faults[0]
    assert json.loads(next((tmp_path).rglob("base/*.json")).read_text())["first_shards"] == [1, 0]
