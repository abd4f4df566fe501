"""Readers that share a local cache are killed at any moment; the others notice nothing."""

import multiprocessing
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.streams import random_lanes, write_stream
from zephon_beam.reader import StreamReader
from zephon_beam.store import cache, remote
from zephon_beam.store.base import open_store
from zephon_beam.store.cache import CACHE_BYTES

READERS = 3
MESSAGE_SECS = 120
"""A reader that says nothing for so long waits for a lock that nobody holds."""


def read_batches(stream: str, start: int = 0) -> Iterator[str]:
    """Yield a digest of every batch."""
    reader = StreamReader(
        stream, global_batch_size=16, micro_batch_size=8, fields=["tokens"], start_sample=start
    )
    for batch in reader:
        yield blake2b(batch["tokens"].tobytes(), digest_size=8).hexdigest()


def read_for_ever(
    stream: str, expected: list[str], told: Connection, environment: dict[str, str]
) -> None:
    """Read a stream again and again, telling after each batch whether it was the right one."""
    os.environ.update(environment)
    remote.SMALL_BYTES = 0
    write = cache._write

    def write_slowly(file: int, content: bytes) -> None:
        for place in range(0, len(content), 4):
            write(file, content[place : place + 4])

    # So that many die in the middle of a file.
    cache._write = write_slowly
    while True:
        for found, wanted in zip(read_batches(stream), expected, strict=True):
            told.send_bytes(b"y" if found == wanted else b"n")


class Reader:
    """A reader in a process of its own."""

    def __init__(self, stream: str, expected: list[str]) -> None:
        self._told, sender = multiprocessing.Pipe(duplex=False)
        # A fork of a process that has the libraries, and has not used them.
        context = multiprocessing.get_context("forkserver")
        words = (stream, expected, sender, dict(os.environ))
        self.process: BaseProcess = context.Process(target=read_for_ever, args=words, daemon=True)
        self.process.start()
        sender.close()

    def take(self, batches: int) -> None:
        """Wait for so many batches, and require that they are right."""
        for _ in range(batches):
            assert self._told.poll(MESSAGE_SECS)
            assert self._told.recv_bytes() == b"y"

    def kill(self) -> None:
        """Kill it in whatever it does."""
        self.process.kill()
        self.process.join()
        self._told.close()


@contextmanager
def reading(stream: str, expected: list[str]) -> Iterator[list[Reader]]:
    """Run several readers."""
    readers = [Reader(stream, expected) for _ in range(READERS)]
    try:
        yield readers
    finally:
        for reader in readers:
            reader.kill()


@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["gcs", "s3"])
def test_killed_readers_leave_nothing_and_harm_nobody(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    kills: int,
) -> None:
    """They fill a cache that holds half of the stream; no file, lock or memory outlives them."""
    bucket: str = request.getfixturevalue(kind)
    multiprocessing.set_forkserver_preload(
        ["zephon_beam.reader", "zephon_beam.store.remote", "google.cloud.storage", "obstore"]
    )
    lanes = random_lanes([96, 96], seed=5, seq_len=512)
    plain = write_stream(tmp_path / "plain", lanes, seq_len=512, samples_per_shard=8)
    packed = write_stream(
        tmp_path / "packed", lanes, seq_len=512, samples_per_shard=8, compression="zstd"
    )
    store = open_store(f"{bucket}/s")
    for path in sorted(Path(packed.uri).rglob("*.*")):
        store.put_if_absent(path.relative_to(packed.uri).as_posix(), path.read_bytes())
    expected = list(read_batches(plain.uri))
    shards = [path.stat().st_size for path in Path(plain.uri).rglob("*.arrow")]
    limit = sum(shards) // 2
    monkeypatch.setenv(CACHE_BYTES, str(limit))
    chance = random.Random(kills)
    with reading(store.uri, expected) as readers:
        for _ in range(kills):
            victim = chance.randrange(READERS)
            readers[victim].take(chance.randrange(len(expected)))
            readers[victim].kill()
            readers[victim] = Reader(store.uri, expected)
        for reader in readers:
            reader.take(len(expected))
            maps = Path(f"/proc/{reader.process.pid}/maps").read_text()
            assert str(own_cache) in maps
            assert "/dev/shm" not in maps
    # Whoever fills it next removes what the killed ones left.
    monkeypatch.setattr(remote, "SMALL_BYTES", 0)
    assert list(read_batches(store.uri)) == expected
    files = [path for path in own_cache.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == {own_cache.name, "objects", "locks"}
    copies = [path for path in files if path.parent.name == "objects"]
    assert copies
    assert not [path for path in copies if path.name.startswith(".tmp-")]
    assert sum(path.stat().st_size for path in copies) <= limit
