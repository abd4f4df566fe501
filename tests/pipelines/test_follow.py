"""A run that follows its consumers: neither far behind nor far ahead, deleting what is over."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipelines.small_streams import (
    LANES,
    ROOT,
    SHARD_SAMPLES,
    SmallStream,
    environment,
    run,
    tree,
    write_recipe,
)
from zephon_beam.consumers import Consumer, encode_consumer
from zephon_beam.errors import ResumeError
from zephon_beam.layout import consumer_name
from zephon_beam.reader import StreamReader
from zephon_beam.store.base import open_store
from zephon_beam.verification import verify_stream

LOOKAHEAD = 2 * LANES * SHARD_SAMPLES
SLACK = 6 * LANES * SHARD_SAMPLES
"""Samples that may be there beyond what was wanted: whole shards, and lanes that are further."""
DEADLINE_SECS = 60


@pytest.fixture(scope="module")
def endless(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallStream:
    """Return a stream without end whose lanes keep little open, so that advances are small."""
    changes = [("interleave: 3", "interleave: 1"), ("16KiB", "4KiB")]
    recipe = write_recipe(corpus / "window.yaml", changes=changes)
    folder = tmp_path_factory.mktemp("window") / "stream"
    facts = run(recipe, folder, until_samples=900)
    return SmallStream(recipe=recipe, folder=folder, tree=tree(folder), facts=facts)


@contextmanager
def following(recipe: Path, stream: Path, *flags: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `zephon-beam run --follow` beside the block."""
    words = ["run", str(recipe), "--stream", str(stream), "--follow"]
    words += ["--lookahead", str(LOOKAHEAD), "--advance-bytes", "16KiB", *flags]
    with subprocess.Popen(
        [sys.executable, "-m", "pipelines.main", *words],
        env=environment(),
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(path: Path) -> None:
    """Wait until something exists."""
    end = time.monotonic() + DEADLINE_SECS
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.05)


def read_steps(reader: StreamReader, count: int) -> list[Any]:
    """Return the tokens of the next steps."""
    return [next(reader)["input_ids"].copy() for _ in range(count)]


def open_reader(stream: Path, **options: Any) -> StreamReader:
    """Open a reader of steps of four samples each."""
    fields = ["input_ids", "sample_ids"]
    sizes = {"global_batch_size": 4, "micro_batch_size": 4, "timeout": DEADLINE_SECS}
    return StreamReader(str(stream), fields=fields, **sizes, **options)


def shard_total(stream: Path) -> int:
    """Count the shards that exist."""
    return sum(1 for _ in (stream / "shards").rglob("*.arrow"))


def equal(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Compare steps byte by byte."""
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))


def test_a_trainer_is_followed_and_what_it_needs_no_more_is_deleted(
    endless: SmallStream, tmp_path: Path
) -> None:
    """It reads what an unlimited run made, while only a window of it exists."""
    expected = read_steps(open_reader(endless.folder), 120)
    stream = tmp_path / "stream"
    with following(endless.recipe, stream, "--retain", "pins") as process:
        wait_for(stream / "stream.json")
        reader = open_reader(stream, consumer="run-1")
        found, largest = [], 0
        for step in range(120):
            found += read_steps(reader, 1)
            if step % 10 == 9:
                reader.acknowledge(reader.state_dict())
            largest = max(largest, shard_total(stream))
            time.sleep(0.02)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECS) == 130
    assert equal(found, expected)
    assert largest * SHARD_SAMPLES <= LOOKAHEAD + SLACK + 40
    report = verify_stream(str(stream))
    assert report.faults == ()
    assert 0 < report.first_sample <= 480
    left = tree(stream)
    assert {name: endless.tree.get(name) for name in left} == left
    with pytest.raises(ResumeError, match=r"sample must be at least \d+, got 0"):
        read_steps(open_reader(stream), 1)


def test_a_pin_keeps_its_samples(endless: SmallStream, tmp_path: Path) -> None:
    """A trainer that goes back to it reads the same bytes again."""
    expected = read_steps(open_reader(endless.folder), 60)
    stream = tmp_path / "stream"
    with following(endless.recipe, stream, "--retain", "pins"):
        wait_for(stream / "stream.json")
        reader = open_reader(stream, consumer="run-1")
        read_steps(reader, 20)
        state = reader.state_dict()
        reader.pin("best", state)
        read_steps(reader, 40)
        reader.acknowledge(reader.state_dict())
        end = time.monotonic() + DEADLINE_SECS
        while not (stream / "base").exists():
            assert time.monotonic() < end
            read_steps(reader, 1)
        time.sleep(1.5)
        reader = open_reader(stream, consumer="run-1")
        reader.load_state_dict(state)
        assert equal(read_steps(reader, 40), expected[20:])


def test_the_slowest_consumer_decides(endless: SmallStream, tmp_path: Path) -> None:
    """A fast one waits for it, and goes on when it has been forgotten."""
    stream = tmp_path / "stream"
    with following(endless.recipe, stream):
        wait_for(stream / "stream.json")
        fast = open_reader(stream, consumer="fast")
        open_reader(stream, consumer="slow")
        end = time.monotonic() + 4
        steps = 0
        while time.monotonic() < end:
            if fast.next_sample < LOOKAHEAD + SLACK and shard_total(stream) * SHARD_SAMPLES > (
                fast.next_sample + LANES * SHARD_SAMPLES
            ):
                read_steps(fast, 1)
                steps += 1
            time.sleep(0.02)
        assert steps
        assert shard_total(stream) * SHARD_SAMPLES <= LOOKAHEAD + SLACK
        store = open_store(str(stream))
        store.delete(consumer_name("slow"))
        read_steps(fast, 60)


def test_killed_at_random_while_following_and_deleting(
    endless: SmallStream, tmp_path: Path
) -> None:
    """Driver and trainer both; the trainer reads what an undisturbed run made."""
    expected = read_steps(open_reader(endless.folder), 100)
    stream = tmp_path / "stream"
    found: list[Any] = []
    state: dict[str, Any] = {}
    kills = 0
    while len(found) < 100:
        with following(endless.recipe, stream, "--retain", "pins") as process:
            wait_for(stream / "stream.json")
            reader = open_reader(stream, consumer="run-1")
            reader.load_state_dict(state)
            for _ in range(min(25, 100 - len(found))):
                found += read_steps(reader, 1)
                state = reader.state_dict()
                reader.acknowledge(state)
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
    assert kills == 4
    assert equal(found, expected)
    assert verify_stream(str(stream)).faults == ()


def test_a_consumer_of_another_stream_is_not_waited_for(
    endless: SmallStream, tmp_path: Path
) -> None:
    """Its position means nothing here; what it pins is kept all the same."""
    stream = tmp_path / "stream"
    with following(endless.recipe, stream, "--retain", "pins"):
        wait_for(stream / "stream.json")
        stranger = Consumer(name="other", fingerprint="0" * 32, position=0, pins={"x": 0})
        open_store(str(stream)).replace(consumer_name("other"), encode_consumer(stranger))
        reader = open_reader(stream, consumer="run-1")
        for _ in range(8):
            read_steps(reader, 10)
            reader.acknowledge(reader.state_dict())
        assert not (stream / "base").exists()
