"""Reading in several threads of one process."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.streams import encode_rows, make_manifest, random_lanes, write_stream
from zephon_beam.reader import StreamReader
from zephon_beam.shard import open_batch


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_threads_open_shards_of_many_kinds() -> None:
    """Of more kinds than are remembered, so that each look forgets one."""
    shards = []
    for seq_len in range(2, 10):
        manifest = make_manifest(seq_len=seq_len)
        (rows,) = random_lanes([2], seed=1, seq_len=seq_len)
        shards.append(encode_rows(rows, manifest, 0, 0))

    def open_all(first: int) -> int:
        return sum(open_batch(shards[(first + k) % 8], "shard")[0].count for k in range(400))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(open_all, range(0, 8, 2))) == [800] * 4


def test_one_reader_is_read_by_threads_in_turn(tmp_path: Path) -> None:
    """As one thread alone reads it."""
    stream = write_stream(tmp_path, random_lanes([40, 40], seed=3))
    expected = [batch["labels"].tobytes() for batch in _open(stream.uri)]
    reader = _open(stream.uri)
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(next, reader).result() for _ in expected]
    assert [batch["labels"].tobytes() for batch in found] == expected


def _open(uri: str) -> StreamReader:
    return StreamReader(uri, global_batch_size=4, micro_batch_size=2, timeout=0)
