"""What is looked up at once: bounded, and never more than what is sound."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.streams import random_lanes, write_stream
from zephon_beam.errors import CorruptShardError
from zephon_beam.layout import shard_name
from zephon_beam.reader import StreamReader, read_ahead
from zephon_beam.samples import Array

TEN_ROWS = 10 * 16
"""In tokens: rows of these streams have 16."""


@pytest.mark.parametrize("global_batch_size", [4, 200])
def test_shards_that_are_looked_up_at_once_leave_descriptors_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, global_batch_size: int
) -> None:
    """However many shards the rows of a step, or of many small ones, lie in."""
    stream = write_stream(tmp_path, random_lanes([400], seed=9), samples_per_shard=1)
    monkeypatch.setattr(read_ahead, "MOST_SHARDS", 30)
    monkeypatch.setattr(read_ahead, "TOKENS_OF_MANY_SHARDS", TEN_ROWS)
    reader = StreamReader(
        stream.uri, global_batch_size=global_batch_size, micro_batch_size=2, timeout=0
    )
    before = len(os.listdir("/dev/fd"))
    held, ids = [], []
    for batch in reader:
        held.append(len(os.listdir("/dev/fd")) - before)
        ids += batch["sample_ids"].tolist()
    assert ids == list(range(400))
    # Those of the rows that are looked up, and those that the reader keeps: one a lane and 16.
    assert 30 <= max(held) <= 30 + 10 + 17


def test_a_damaged_shard_does_not_hold_back_the_rows_long_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one large step: rows are looked up in pieces, and what is sound is delivered."""
    stream = write_stream(tmp_path, random_lanes([200], seed=9))
    expected = [batch["labels"] for batch in _read_one_step(stream.uri)]
    monkeypatch.setattr(read_ahead, "TOKENS_OF_MANY_SHARDS", TEN_ROWS)
    (tmp_path / shard_name(0, 40)).write_bytes(b"no shard")
    reader = _read_one_step(stream.uri)
    found: list[Array] = []
    with pytest.raises(CorruptShardError, match=r"lane-00000/000000040\.arrow is corrupt"):
        found.extend(batch["labels"] for batch in reader)
    assert 160 // 2 - 5 < reader.microbatch <= 160 // 2
    assert len(found) == reader.microbatch
    np.testing.assert_array_equal(found, expected[: len(found)])


def _read_one_step(uri: str) -> StreamReader:
    return StreamReader(uri, global_batch_size=200, micro_batch_size=2, timeout=0)
