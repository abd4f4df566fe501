"""A shard in which any bit is wrong is told from a whole one, and never more than that."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.streams import encode_rows, make_manifest, random_lanes, write_stream
from zephon_beam.errors import CorruptShardError, ZephonBeamError
from zephon_beam.layout import shard_name
from zephon_beam.reader import StreamReader
from zephon_beam.samples import row_digests
from zephon_beam.shard import END_MARK, decode_shard_and_counts, same_shard, verify_shard


def make_shard(*, masked: bool, compression: str = "none") -> bytes:
    """Encode a shard of four rows."""
    manifest = make_manifest(has_loss_mask=masked, lanes=1)
    (rows,) = random_lanes([4], seed=5, masked=masked)
    return encode_rows(rows, manifest, 0, 0, compression)


@pytest.mark.parametrize(("masked", "compression"), [(False, "none"), (True, "zstd")])
def test_any_flipped_bit_is_told_or_changes_nothing(masked: bool, compression: str) -> None:
    """Also one in Arrow's own description of the columns, which Arrow would believe."""
    data = make_shard(masked=masked, compression=compression)
    header, samples, counts = decode_shard_and_counts(data, "s")
    digests = row_digests(samples)
    told = []
    for bit in range(0, 8 * len(data), 41):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = verify_shard(bytes(damaged), "s")
        except CorruptShardError as error:
            told.append(str(error))
            continue
        _, others, other_counts = decode_shard_and_counts(bytes(damaged), "s")
        assert row_digests(others) == digests
        assert np.array_equal(other_counts, counts)
        # What a shard says of its place is compared with its name by whoever opens it.
        assert found.digest == header.digest
    assert len(told) > len(data) // 20
    assert all("delete it and run the recipe" in text or "version" in text for text in told)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_shard_that_ends_too_early_is_told_by_its_end(compression: str) -> None:
    """Wherever it is cut off; a whole one has the mark."""
    data = make_shard(masked=True, compression=compression)
    assert data.endswith(END_MARK)
    for length in range(0, len(data), 11):
        assert not data[:length].endswith(END_MARK)
        with pytest.raises(CorruptShardError, match=r"s is corrupt: .*delete it and run"):
            verify_shard(data[:length], "s")


def test_a_retry_does_not_take_a_damaged_shard_for_its_own() -> None:
    """Labels that count are not part of the digest, but trainers divide by them."""
    data = make_shard(masked=False)
    _, _, counts = decode_shard_and_counts(data, "s")
    place = data.index(counts.astype("<i4").tobytes())
    damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    assert same_shard(data, data)
    with pytest.raises(CorruptShardError, match=r"valid_tokens are not those of its rows"):
        same_shard(damaged, data)


@pytest.mark.parametrize("compiled", [False, True] if find_spec("numba") else [False])
@pytest.mark.parametrize("verify_digests", [False, True])
def test_a_reader_of_any_damaged_shard_gives_its_rows_or_an_error_of_ours(
    tmp_path: Path, verify_digests: bool, compiled: bool
) -> None:
    """Without digests a wrong value is not seen, but wrong places never end in a traceback."""
    lanes = random_lanes([4], seed=5, masked=True)
    stream = write_stream(tmp_path, lanes, has_loss_mask=True)
    path = tmp_path / shard_name(0, 0)
    whole = path.read_bytes()
    right = [
        batch["labels"].tobytes() for batch in open_reader(stream.uri, verify_digests, compiled)
    ]
    told = 0
    for bit in range(0, 8 * len(whole), 61):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(damaged))
        try:
            found = [
                batch["labels"].tobytes()
                for batch in open_reader(stream.uri, verify_digests, compiled)
            ]
        except ZephonBeamError:
            told += 1
            continue
        assert found == right or not verify_digests
    assert told > 20


def open_reader(uri: str, verify_digests: bool, compiled: bool) -> StreamReader:
    """Open a reader that waits for nothing."""
    return StreamReader(
        uri,
        global_batch_size=2,
        micro_batch_size=2,
        timeout=0,
        verify_digests=verify_digests,
        compiled=compiled,
    )


def test_nothing_is_taken_from_a_file_that_is_no_shard(tmp_path: Path) -> None:
    """Whatever it is."""
    for content in (b"", b"ARROW1", bytes(400), Path(__file__).read_bytes()):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(CorruptShardError, match="x is corrupt"):
            verify_shard((tmp_path / "x").read_bytes(), "x")
