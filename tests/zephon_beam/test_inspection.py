"""Inspecting a stream counts what was committed, exactly."""

import json
from pathlib import Path

import pytest

from tests.streams import write_end, write_shard
from tests.verified_streams import DROPPED, TRUNCATED, tokens_in_rows, write_whole_stream
from zephon_beam.errors import CorruptObjectError, CorruptShardError, StreamNotFoundError
from zephon_beam.inspection import inspect_stream
from zephon_beam.layout import end_name, shard_name, state_name

CONTRACT = {
    "fingerprint",
    "lanes",
    "seq_len",
    "samples",
    "complete_samples",
    "tokens",
    "padding_fraction",
    "finished",
    "datasets",
}
DATASET_CONTRACT = {
    "weight",
    "tokens",
    "share",
    "documents",
    "truncated_tokens",
    "dropped_tokens",
    "quarantined",
}


def test_counts_equal_those_of_the_rows(tmp_path: Path) -> None:
    """Tokens, shares, padding and documents are what the rows and the lane states hold."""
    stream = write_whole_stream(tmp_path, [9, 8, 5])
    found = inspect_stream(str(tmp_path))
    assert found.keys() >= CONTRACT
    rows = [row for lane in stream.lanes for row in lane]
    tokens = [tokens_in_rows(rows, dataset) for dataset in (0, 1)]
    assert found["samples"] == found["complete_samples"] == 22
    assert found["tokens"] == sum(tokens)
    assert found["padding_fraction"] == pytest.approx(1 - sum(tokens) / (22 * 16))
    assert found["finished"] is True
    assert found["lane_samples"] == [9, 8, 5]
    assert found["shards"] == 3 + 2 + 2
    assert found["bytes"] == sum(path.stat().st_size for path in tmp_path.glob("shards/*/*"))
    assert list(found["datasets"]) == ["web", "code"]
    web, code = found["datasets"].values()
    assert web.keys() >= DATASET_CONTRACT
    assert (web["weight"], code["weight"]) == (0.25, 3)
    assert [web["tokens"], code["tokens"]] == tokens
    assert web["share"] == tokens[0] / sum(tokens)
    assert (web["documents"], code["documents"]) == (22, 22 + 3)
    assert (web["truncated_tokens"], web["dropped_tokens"]) == (3 * TRUNCATED, 3 * DROPPED)
    assert (web["quarantined"], code["quarantined"]) == (0, 3)
    assert found["quarantine"] == f"{tmp_path}/quarantine"
    assert json.loads(json.dumps(found)) == found


def test_a_hole_ends_the_complete_prefix(tmp_path: Path) -> None:
    """Nothing behind a missing shard is counted: it cannot be read."""
    stream = write_whole_stream(tmp_path, [12, 12, 12])
    (tmp_path / shard_name(1, 1)).unlink()
    found = inspect_stream(str(tmp_path))
    assert found["lane_samples"] == [12, 4, 12]
    assert found["samples"] == 28
    rows = [row for lane, n in zip(stream.lanes, (12, 4, 12), strict=True) for row in lane[:n]]
    assert found["tokens"] == tokens_in_rows(rows, 0) + tokens_in_rows(rows, 1)
    assert found["complete_samples"] == 4 * 3 + 1
    assert found["finished"] is False


def test_a_stream_without_samples_is_all_zero(tmp_path: Path) -> None:
    """A stream that was just created can be inspected."""
    write_whole_stream(tmp_path, [0, 0], finite=False)
    found = inspect_stream(str(tmp_path))
    assert found["samples"] == found["complete_samples"] == found["tokens"] == 0
    assert found["padding_fraction"] == 0.0
    assert found["finished"] is False
    assert found["datasets"]["web"]["share"] == 0.0


def test_a_live_stream_is_finished_only_with_its_last_shard(tmp_path: Path) -> None:
    """The end of a lane may be known before its shards are there."""
    stream = write_whole_stream(tmp_path, [6, 6])
    (tmp_path / shard_name(0, 1)).unlink()
    assert inspect_stream(str(tmp_path))["finished"] is False
    write_shard(stream, 0, 1)
    assert inspect_stream(str(tmp_path))["finished"] is True
    (tmp_path / end_name(1)).unlink()
    found = inspect_stream(str(tmp_path))
    assert (found["finished"], found["samples"]) == (False, 12)
    write_end(stream, 1)
    assert inspect_stream(str(tmp_path))["finished"] is True


def test_compressed_shards_count_the_same(tmp_path: Path) -> None:
    """How a shard is stored changes its bytes, not what it holds."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    write_whole_stream(plain, [9, 7])
    write_whole_stream(packed, [9, 7], compression="zstd")
    found = [inspect_stream(str(folder)) for folder in (plain, packed)]
    assert found[0].pop("bytes") != found[1].pop("bytes")
    assert [entry.pop("quarantine") for entry in found] == [
        f"{folder}/quarantine" for folder in (plain, packed)
    ]
    assert found[0] == found[1]


def test_no_stream_is_told_apart_from_an_empty_one(tmp_path: Path) -> None:
    """The path is named."""
    with pytest.raises(StreamNotFoundError, match=r"stream must hold stream.json, found none in '"):
        inspect_stream(str(tmp_path))


def test_what_cannot_be_counted_is_an_error(tmp_path: Path) -> None:
    """A missing lane state, a damaged end or shard are never counted as nothing."""
    write_whole_stream(tmp_path, [4, 4])
    state = tmp_path / state_name(1, 0)
    kept = state.read_bytes()
    state.unlink()
    with pytest.raises(CorruptObjectError, match=r"state/lane-00001/000000000.avro must exist"):
        inspect_stream(str(tmp_path))
    state.write_bytes(kept)
    (tmp_path / end_name(0)).write_text('{"samples": -4}')
    with pytest.raises(
        CorruptObjectError, match=r"end/lane-00000.json is corrupt: samples must be"
    ):
        inspect_stream(str(tmp_path))
    (tmp_path / end_name(0)).unlink()
    (tmp_path / shard_name(0, 0)).write_bytes(b"no shard")
    with pytest.raises(CorruptShardError, match=r"shards/lane-00000/000000000.arrow is corrupt"):
        inspect_stream(str(tmp_path))


def test_lane_states_tell_the_tokens_of_shards() -> None:
    """They account for every token, so that a long stream need not be read to be counted."""
    stream = str(Path(__file__).parents[1] / "golden" / "version_1")
    read, told = inspect_stream(stream), inspect_stream(stream, by_states=True)
    assert read["tokens"] > 0
    assert told.pop("bytes") == 0
    assert read.pop("bytes") > 0
    assert told == read
