"""Streams that are still being written, and streams that are broken."""

import logging
import sys
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams import (
    FakeStream,
    encode_rows,
    make_manifest,
    plan_stream,
    put,
    random_lanes,
    shard_count,
    write_end,
    write_shard,
    write_stream,
)
from zephon_beam.consumers import Consumer, encode_consumer
from zephon_beam.errors import (
    CorruptObjectError,
    CorruptShardError,
    DriftError,
    StoreError,
    StreamNotFoundError,
    StreamTimeoutError,
)
from zephon_beam.layout import consumer_name, end_name, shard_name
from zephon_beam.reader import StreamReader, shards


class Clock:
    """Time that passes by sleeping only; `on_sleep` may write to the stream."""

    def __init__(self, on_sleep: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.on_sleep = on_sleep

    def __call__(self) -> float:
        """Return the seconds so far."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += max(seconds, 1e-3)
        self.on_sleep()


def open_reader(
    stream: FakeStream | Path, clock: Clock | None = None, **changes: Any
) -> StreamReader:
    """Open a reader on a fake clock."""
    clock = clock or Clock()
    arguments: dict[str, Any] = {
        "global_batch_size": 4,
        "micro_batch_size": 2,
        "timeout": 5,
        **changes,
    }
    uri = stream.uri if isinstance(stream, FakeStream) else str(stream)
    return StreamReader(uri, clock=clock, sleep=clock.sleep, **arguments)


def commits(stream: FakeStream, order: list[int]) -> list[Callable[[], None]]:
    """List the writes of a whole stream, lanes taking turns in the given order.

    A lane writes its shards one by one and its end after its last shard.
    """
    queues = []
    for lane in range(len(stream.lanes)):
        shards = range(shard_count(stream, lane))
        queue = [
            lambda lane=lane, shard=shard: write_shard(stream, lane, shard) for shard in shards
        ]
        queues.append([*queue, lambda lane=lane: write_end(stream, lane)])
    writes = []
    for turn in order:
        queue = queues[turn % len(queues)]
        if queue:
            writes.append(queue.pop(0))
    return writes + [write for queue in queues for write in queue]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 13), min_size=1, max_size=4),
    order=st.lists(st.integers(0, 3), max_size=20),
    batch=st.integers(1, 9),
    world=st.integers(1, 4),
)
def test_a_stream_being_written_reads_as_the_finished_one(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    order: list[int],
    batch: int,
    world: int,
) -> None:
    """Whatever lane is ahead, on every rank: no sample is delivered at a place that may move."""
    lanes = random_lanes(lengths, seed=8)
    finished = write_stream(tmp_path_factory.mktemp("a"), lanes)
    for rank in range(world):
        growing = plan_stream(tmp_path_factory.mktemp("b"), lanes)
        writes = iter(commits(growing, order))
        clock = Clock(on_sleep=lambda writes=writes: next(writes, lambda: None)())
        topology = {"global_batch_size": batch, "dp_rank": rank, "dp_world_size": world}
        expected = list(open_reader(finished, **topology))
        got = list(open_reader(growing, clock, **topology, timeout=500))
        assert [b["sample_ids"].tolist() for b in got] == [
            b["sample_ids"].tolist() for b in expected
        ]
        for left, right in zip(got, expected, strict=True):
            np.testing.assert_array_equal(left["input_ids"], right["input_ids"])


def test_an_unknown_end_holds_back_the_steps_that_it_could_move(tmp_path: Path) -> None:
    """Lane 0 is far ahead; lane 1 may have ended after its first shard until it says so."""
    stream = plan_stream(tmp_path, random_lanes([12, 4], seed=9))
    for shard in range(3):
        write_shard(stream, 0, shard)
    write_shard(stream, 1, 0)
    reader = open_reader(stream, dp_rank=0, dp_world_size=2, placement="contiguous")
    for _ in range(2):
        next(reader)
    assert reader.next_sample == 8
    with pytest.raises(StreamTimeoutError, match=r"shards/lane-00001/000000001\.arrow"):
        next(reader)
    assert reader.next_sample == 8
    for lane in range(2):
        write_end(stream, lane)
    assert [b["sample_ids"].tolist() for b in reader] == [[8, 9], [12, 13]]


def test_a_shorter_last_shard_does_not_count_as_whole_before_its_end_is_known(
    tmp_path: Path,
) -> None:
    """The lane has ended inside the shard, which only its header says so far."""
    stream = plan_stream(tmp_path, random_lanes([8, 2], seed=9))
    for lane, shard in ((0, 0), (0, 1), (1, 0)):
        write_shard(stream, lane, shard)
    reader = open_reader(stream, dp_rank=0, dp_world_size=2, placement="contiguous")
    next(reader)
    with pytest.raises(StreamTimeoutError):
        next(reader)
    for lane in range(2):
        write_end(stream, lane)
    assert [b["sample_ids"].tolist() for b in reader] == [[4, 5], [8, -1]]


def test_waiting_ends_when_the_shard_comes_and_reports_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line on a terminal, rewritten in place; one info line; rarer and rarer warnings."""
    stream = plan_stream(tmp_path, random_lanes([4], seed=9))
    clock = Clock()
    clock.on_sleep = lambda: write_shard(stream, 0, 0) if clock.now > 130 else None
    shown: list[str] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "write", shown.append)
    caplog.set_level(logging.INFO, logger="zephon_beam.reader")
    next(open_reader(stream, clock, timeout=None, consumer="run-17"))
    assert 130 < clock.now < 132
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "WARNING", "WARNING", "WARNING"]
    assert "run-17, rank 0 of 1: waiting for shards/lane-00000" in caplog.messages[0]
    assert all(text.startswith("\r") and "\n" not in text for text in shown)
    assert not shown[-1].strip()


def test_the_line_tells_how_far_behind_the_pipeline_is_and_how_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples that the step lacks, and how many have come a second since the wait began."""
    stream = plan_stream(tmp_path, random_lanes([40, 40], seed=1))
    shown: list[str] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "write", shown.append)
    steps = iter(
        [lambda s=s, lane=lane: write_shard(stream, lane, s) for s in range(3) for lane in (0, 1)]
    )

    def write_one() -> None:
        clock.now += 1
        next(steps, lambda: None)()

    clock = Clock(write_one)
    next(open_reader(stream, clock, global_batch_size=20, timeout=None))
    lines = [text for text in shown if "behind" in text]
    assert [int(line.partition(", rank")[2].split(", ")[1].split()[0]) for line in lines] == [
        20,
        16,
        12,
        8,
        4,
        2,
    ]
    assert lines[0].rstrip().endswith("20 samples behind, 0.0 samples/s")
    waited = float(clock.now)
    rate = float(lines[-1].rstrip().removesuffix(" samples/s").rpartition(" ")[2])
    assert 18 / waited <= rate


def test_the_line_is_rewritten_once_a_second_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the reader looks fifty times a second at first; the first line comes at once."""
    stream = plan_stream(tmp_path, random_lanes([4], seed=9))
    clock = Clock()
    looks: list[float] = []
    clock.on_sleep = lambda: looks.append(clock.now)
    shown: list[float] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "write", lambda _: shown.append(clock.now))
    with pytest.raises(StreamTimeoutError):
        next(open_reader(stream, clock, timeout=20))
    removed = shown.pop()
    assert (shown[0], removed) == (0, pytest.approx(20))
    assert min(after - before for before, after in pairwise(shown)) >= 1
    assert len(shown) > 8
    assert len([look for look in looks if look < 1]) > 5


def test_a_reader_that_begins_before_its_pipeline_waits_for_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same line, then for the samples; what a pipeline writes first does not matter."""
    place = tmp_path / "new" / "stream"
    lanes = random_lanes([4], seed=9)
    shown: list[str] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "write", shown.append)
    clock = Clock()

    def create() -> None:
        if clock.now > 3:
            put(place, "catalog/web.arrow", b"")
        if clock.now > 6:
            write_stream(place, lanes)

    clock.on_sleep = create
    reader = open_reader(place, clock, timeout=None)
    assert 6 < clock.now < 8
    assert len(list(reader)) == 2
    assert all(
        "reader, rank 0 of 1: waited" in line and "stream.json in" in line
        for line in shown
        if line.strip()
    )


def test_a_stream_that_is_not_created_in_time_is_a_timeout(tmp_path: Path) -> None:
    """Not before, and with what is looked for; `timeout=0` does not wait."""
    put(tmp_path / "s", "catalog/web.arrow", b"")
    put(tmp_path / "s", "origin/lane-00000.avro", b"")
    clock = Clock()
    with pytest.raises(
        StreamTimeoutError, match=r"stream\.json in '.*' must exist within timeout=7\.5"
    ):
        open_reader(tmp_path / "s", clock, timeout=7.5)
    assert clock.now == pytest.approx(7.5)
    with pytest.raises(StreamNotFoundError, match=r"stream must hold stream\.json, found none"):
        open_reader(tmp_path / "s", clock, timeout=0)
    assert clock.now == pytest.approx(7.5)


@pytest.mark.parametrize("found", ["notes.txt", "shards/lane-00000/000000000.arrow", "", ".."])
def test_a_place_that_holds_something_else_is_not_waited_for(tmp_path: Path, found: str) -> None:
    """A folder of other things, a stream without its head, a file, a path below a file."""
    place = tmp_path / "s"
    if found in ("", ".."):
        place.write_bytes(b"a file")
        uri, named = place if found == "" else place / "deeper", str(place)
    else:
        put(place, found, b"")
        uri, named = place, found
    clock = Clock()
    with pytest.raises(StreamNotFoundError, match=rf"nothing yet, found '{named}' and no stream"):
        open_reader(uri, clock, timeout=None)
    assert clock.now == 0


def test_a_place_that_cannot_be_reached_is_not_waited_for(tmp_path: Path) -> None:
    """The store's own error says why."""
    clock = Clock()
    with pytest.raises(StoreError, match="File name too long"):
        open_reader(tmp_path / ("s" * 300), clock, timeout=None)
    assert clock.now == 0


def test_a_reader_that_waits_names_the_one_that_the_pipeline_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The slowest other one that still reads this stream, and how far behind it is."""
    stream = write_stream(tmp_path, random_lanes([40], seed=9), finite=False)
    shown: list[str] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "write", shown.append)

    def add(name: str, position: int, **changes: Any) -> None:
        known = {"fingerprint": stream.manifest.fingerprint, **changes}
        consumer = Consumer(name=name, position=position, **known)
        put(tmp_path, consumer_name(name), encode_consumer(consumer))

    add("done", 0, finished=True)
    add("of-another-stream", 0, fingerprint="0" * 32)
    add("ahead", 80)
    reader = open_reader(stream, start_sample=40, consumer="fast", timeout=31)
    with pytest.raises(StreamTimeoutError) as nobody:
        next(reader)
    assert "consumer" not in str(nobody.value)
    assert not any("consumer" in line for line in shown)
    # Its rank 0 may be a little behind its other ranks, or have said so a while ago.
    rank_1 = {"consumer": "late", "dp_rank": 1, "dp_world_size": 2, "start_sample": 40}
    add("late", 28)
    with pytest.raises(StreamTimeoutError) as itself:
        next(open_reader(stream, timeout=0, **rank_1))
    assert "slowest" not in str(itself.value)
    add("slower", 12)
    message = "waits for the slowest, consumer 'slower', which is 28 samples behind this one"
    with pytest.raises(StreamTimeoutError, match=message):
        next(reader)
    assert message in shown[-2]
    assert message in caplog.messages[-1]
    with pytest.raises(StreamTimeoutError, match="consumer 'slower'"):
        next(open_reader(stream, start_sample=40, timeout=0))
    put(tmp_path, consumer_name("broken"), b"{")
    with pytest.raises(StreamTimeoutError, match=r"goes no further: consumers/broken.json is corr"):
        next(open_reader(stream, start_sample=40, timeout=0))


def test_a_log_file_gets_no_terminal_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stderr is not a terminal here."""
    stream = plan_stream(tmp_path, random_lanes([4], seed=9))
    with pytest.raises(StreamTimeoutError):
        next(open_reader(stream))
    assert "\r" not in capsys.readouterr().err


def test_a_timeout_says_what_how_long_and_what_to_do_and_can_be_retried(tmp_path: Path) -> None:
    """The position is unchanged."""
    stream = plan_stream(tmp_path, random_lanes([4, 4], seed=9))
    write_shard(stream, 0, 0)
    clock = Clock()
    reader = open_reader(stream, clock, timeout=7.5)
    expected = (
        r"shards/lane-00001/000000000\.arrow of samples 0 to 3 must exist within timeout=7.5 s, "
        r"waited 7.5 s; .*check that the pipeline is running.*raise timeout"
    )
    with pytest.raises(StreamTimeoutError, match=expected):
        next(reader)
    assert clock.now == pytest.approx(7.5)
    write_shard(stream, 1, 0)
    assert next(reader)["sample_ids"].tolist() == [0, 2]


@pytest.mark.parametrize("timeout", [0, 5, None])
def test_a_missing_shard_before_a_later_one_is_a_broken_stream(
    tmp_path: Path, timeout: float | None
) -> None:
    """After a grace for writers that finish out of order, or at the timeout."""
    stream = write_stream(tmp_path, random_lanes([20, 20], seed=9), finite=False)
    (tmp_path / shard_name(1, 2)).unlink()
    clock = Clock()
    reader = open_reader(stream, clock, timeout=timeout)
    expected = r"lane-00001/000000002\.arrow must exist because shard 4 of its lane exists"
    with pytest.raises(CorruptObjectError, match=expected):
        list(reader)
    assert reader.next_sample == 16
    assert clock.now < 12


def test_a_shard_missing_before_a_known_end_is_a_broken_stream(tmp_path: Path) -> None:
    """The end says that the lane is longer."""
    stream = write_stream(tmp_path, random_lanes([8], seed=9))
    (tmp_path / shard_name(0, 1)).unlink()
    with pytest.raises(CorruptObjectError, match="because its lane has ended with 8 samples"):
        list(open_reader(stream))


@pytest.mark.parametrize("fields", [["sample_ids"], ["sample_ids", "global_num_valid_tokens"]])
def test_what_is_wrong_with_a_later_step_is_raised_when_it_is_next(
    tmp_path: Path, fields: list[str]
) -> None:
    """Reading ahead over step edges neither waits nor fails."""
    stream = write_stream(tmp_path, random_lanes([40], seed=9))
    (tmp_path / shard_name(0, 8)).write_bytes(b"no shard")
    reader = open_reader(stream, fields=fields)
    for _ in range(2):
        with pytest.raises(CorruptShardError, match=r"lane-00000/000000008\.arrow is corrupt"):
            list(reader)
        assert (reader.next_sample, reader.microbatch) == (32, 0)
    write_shard(stream, 0, 8)
    assert next(reader)["sample_ids"].tolist() == [32, 33]


def test_shards_that_finish_out_of_order_are_no_hole(tmp_path: Path) -> None:
    """A retried writer commits within the grace."""
    stream = plan_stream(tmp_path, random_lanes([8], seed=9))
    write_shard(stream, 0, 1)
    write_end(stream, 0)
    clock = Clock()
    clock.on_sleep = lambda: write_shard(stream, 0, 0) if clock.now > 8 else None
    assert len(list(open_reader(stream, clock, timeout=None))) == 4


def test_a_shard_that_comes_while_looking_for_later_ones_is_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commits between the look and the listing."""
    stream = plan_stream(tmp_path, random_lanes([8], seed=9))
    clock = Clock()
    reader = open_reader(stream, clock, timeout=None)
    store = type(reader._shards._store)
    plain = store.list

    def list_after_commits(self: Any, prefix: str) -> Any:
        for shard in (0, 1) if prefix.startswith("shards/") else ():
            write_shard(stream, 0, shard)
        return plain(self, prefix)

    monkeypatch.setattr(store, "list", list_after_commits)
    assert next(reader)["sample_ids"].tolist() == [0, 1]
    assert clock.now > 9


def test_shards_of_ended_lanes_are_not_needed_after_their_end(tmp_path: Path) -> None:
    """Old shards may have been deleted; the order needs the lane's length only."""
    stream = write_stream(tmp_path, random_lanes([4, 12], seed=9))
    expected = [b["sample_ids"].tolist() for b in open_reader(stream)][4:]
    (tmp_path / shard_name(0, 0)).unlink()
    reader = open_reader(stream, timeout=0, start_sample=8)
    assert [b["sample_ids"].tolist() for b in reader] == expected


def test_other_ranks_shards_are_looked_at_but_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except the newest of a lane, which might be its last one."""
    stream = write_stream(tmp_path, random_lanes([32] * 8, seed=9), finite=False)
    reader = open_reader(stream, global_batch_size=32, dp_rank=3, dp_world_size=8)
    opened: list[str] = []
    store = type(reader._shards._store)
    plain = store.open_mmap
    monkeypatch.setattr(
        store,
        "open_mmap",
        lambda self, name, *rest: opened.append(name) or plain(self, name, *rest),
    )
    for _ in range(2 * 3):
        next(reader)
    assert opened == [shard_name(3, shard) for shard in range(4)]


def test_a_shard_of_another_recipe_is_drift(tmp_path: Path) -> None:
    """Both fingerprints and the shard are named."""
    stream = write_stream(tmp_path, random_lanes([8], seed=9))
    forged = make_manifest(lanes=1, fingerprint="0" * 32)
    put(tmp_path, shard_name(0, 1), encode_rows(stream.lanes[0][4:], forged, 0, 1))
    reader = open_reader(stream)
    expected = r"lane-00000/000000001\.arrow: expected 'f{32}' \(stream\.json\), found '0{32}'"
    with pytest.raises(DriftError, match=expected):
        list(reader)
    assert reader.next_sample == 4


@pytest.mark.parametrize(
    "changes", [{"lane": 1}, {"shard": 0}, {"seq_len": 32}, {"token_dtype": "uint32"}]
)
def test_a_shard_that_belongs_elsewhere_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Lane, first sample, row length and token type are checked at each opening."""
    stream = write_stream(tmp_path, random_lanes([8, 8], seed=9))
    lane, shard = changes.pop("lane", 0), changes.pop("shard", 1)
    other = make_manifest(lanes=2, **changes)
    put(tmp_path, shard_name(0, 1), encode_rows(stream.lanes[0][4:], other, lane, shard))
    with pytest.raises(CorruptShardError, match=r"lane-00000/000000001\.arrow must be"):
        list(open_reader(stream))


def test_a_shard_with_too_few_samples_is_refused(tmp_path: Path) -> None:
    """Later samples of the lane exist."""
    stream = write_stream(tmp_path, random_lanes([12], seed=9))
    put(tmp_path, shard_name(0, 1), encode_rows(stream.lanes[0][4:6], stream.manifest, 0, 1))
    with pytest.raises(CorruptShardError, match="must have 4 samples, found 2"):
        list(open_reader(stream))


def test_a_truncated_shard_is_refused(tmp_path: Path) -> None:
    """It is named."""
    stream = write_stream(tmp_path, random_lanes([8], seed=9))
    path = tmp_path / shard_name(0, 1)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptShardError, match=r"lane-00000/000000001\.arrow is corrupt"):
        list(open_reader(stream))


def test_digests_are_verified_on_request(tmp_path: Path) -> None:
    """One changed token is seen then, and only then."""
    stream = write_stream(tmp_path, random_lanes([8], seed=9))
    path = tmp_path / shard_name(0, 1)
    data = path.read_bytes()
    row = next(row for row in stream.lanes[0][4:] if row)
    token = np.array(row[0].tokens, np.uint16).tobytes()
    place = data.index(token)
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    list(open_reader(stream))
    with pytest.raises(CorruptShardError, match="digest: expected"):
        list(open_reader(stream, verify_digests=True))


@pytest.mark.parametrize("data", [b"{", b"{}", b'{"samples": -1}', b'{"samples": "8"}', b"[]"])
def test_a_damaged_end_is_refused(tmp_path: Path, data: bytes) -> None:
    """It decides the order of everything after it."""
    stream = write_stream(tmp_path, random_lanes([8], seed=9))
    put(tmp_path, end_name(0), data)
    with pytest.raises(CorruptObjectError, match=r"end/lane-00000\.json is corrupt"):
        list(open_reader(stream))


def test_open_maps_are_bounded(tmp_path: Path) -> None:
    """Whatever the length of the stream."""
    stream = write_stream(tmp_path, random_lanes([80, 80], seed=9), samples_per_shard=1)
    reader = open_reader(stream)
    for _ in reader:
        assert len(reader._shards) <= 2 + 16
    assert len(reader._shards) == 2 + 16


def test_expanded_shards_are_bounded_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed shards hold memory of their own."""
    lanes = random_lanes([80, 80], seed=9)
    stream = write_stream(tmp_path, lanes, samples_per_shard=40, compression="zstd")
    monkeypatch.setattr(shards, "EXPANDED_BYTES", 2 * 40 * 16 * 2)
    reader = open_reader(stream)
    for _ in reader:
        assert len(reader._shards) == 1


def test_mapped_pages_are_given_back_and_load_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one shard's pages, every shard is left many times."""
    stream = write_stream(tmp_path, random_lanes([40] * 4, seed=9), samples_per_shard=20)
    expected = list(open_reader(stream))
    monkeypatch.setattr(shards, "WARM_BYTES", 1)
    given_back = []
    plain = shards.OpenShard.give_pages_back
    monkeypatch.setattr(
        shards.OpenShard, "give_pages_back", lambda self: given_back.append(self) or plain(self)
    )
    reader = open_reader(stream)
    for left, right in zip(reader, expected, strict=True):
        assert len(reader._shards._warm) == 1
        np.testing.assert_array_equal(left["labels"], right["labels"])
    assert len(given_back) > 100
    assert reader._shards._warm_bytes == next(iter(reader._shards._warm.values())).mapped_bytes
    reader.close()
    assert len(reader._shards) == 0


def test_steps_inside_seen_shards_look_at_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of a lane is cached until its index passes it."""
    stream = write_stream(tmp_path, random_lanes([64, 64], seed=9), samples_per_shard=32)
    reader = open_reader(stream)
    calls = count()
    store = type(reader._shards._store)
    plain = store.exists
    monkeypatch.setattr(store, "exists", lambda self, name: next(calls) < 99 and plain(self, name))
    for _ in reader:
        pass
    assert next(calls) <= 9
