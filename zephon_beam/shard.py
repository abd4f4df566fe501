"""The shard codec: consecutive samples of one lane as one immutable Arrow IPC file.

One record batch, one row a sample. Column names, types and metadata keys are a public contract:
other programs read shards by them. The digest of a shard is that of its samples, whatever codec
it is stored with.
"""

import io
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_beam.errors import CorruptShardError
from zephon_beam.media.columns import media_arrow, media_of_batch
from zephon_beam.samples import SEGMENT_COLUMNS, Array, Samples, digest_of_rows, row_digests

FORMAT_VERSION = 1

END_MARK = b"ARROW1"
"""The last bytes of every whole shard."""

_UNREADABLE = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    MemoryError,
)
"""What Arrow raises where a bit of what describes the columns is wrong."""
_COLUMN_TYPES = {
    **{name: pa.list_(pa.from_numpy_dtype(dtype)) for name, dtype in SEGMENT_COLUMNS.items()},
    "valid_tokens": pa.int32(),
}
_ROW_TYPES = {"tokens": (pa.uint16(), pa.uint32()), "loss_mask": (pa.uint8(),)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardHeader:
    """What a shard says of itself in its schema metadata."""

    fingerprint: str
    lane: int
    first_sample: int
    """Global number of the shard's first sample while all lanes run: index · lanes + lane."""
    count: int
    digest: str
    """Hexadecimal BLAKE2b over the logical digests of the rows."""
    format_version: int = FORMAT_VERSION


def encode_shard(
    samples: Samples, *, fingerprint: str, lane: int, first_sample: int, compression: str = "none"
) -> bytes:
    """Encode samples as a shard file.

    Returns:
        The bytes of an Arrow IPC file with one record batch.

    Determinism: depends on the arguments alone; Arrow writes no time, host or version into it.
    """
    header = {
        "format_version": str(FORMAT_VERSION),
        "fingerprint": fingerprint,
        "lane": str(lane),
        "first_sample": str(first_sample),
        "count": str(len(samples)),
        "digest": digest_of_rows(row_digests(samples)),
    }
    columns: dict[str, Any] = {"tokens": _rows_column(samples.tokens)}
    offsets = pa.array(samples.segment_offsets, pa.int32())
    for name, dtype in SEGMENT_COLUMNS.items():
        values = pa.array(np.ascontiguousarray(samples.segments[name], dtype=dtype))
        columns[name] = pa.ListArray.from_arrays(offsets, values)
    columns["valid_tokens"] = pa.array(samples.valid_tokens, pa.int32())
    if samples.loss_mask is not None:
        columns["loss_mask"] = _rows_column(samples.loss_mask)
    if samples.media is not None:
        columns |= media_arrow(samples.media)
    fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    schema = pa.schema(fields, metadata=header)
    batch = pa.record_batch(list(columns.values()), schema=schema)
    return _encode_batch(batch, None if compression == "none" else compression)


def decode_header(data: bytes | memoryview, name: str) -> ShardHeader:
    """Read only the header of a shard.

    Raises:
        CorruptShardError: not a whole shard of a format version that this version reads.
    """
    return _header(_open(data, name).schema, name)


def open_batch(data: bytes | memoryview, name: str) -> tuple[ShardHeader, Any]:
    """Open a shard as its header and its one record batch; no column is decoded yet.

    Raises:
        CorruptShardError: truncated, its columns are not of their types, or of an unknown format
            version.
    """
    reader = _open(data, name)
    schema = reader.schema
    header = _header(schema, name)
    try:
        batch = reader.get_batch(0)
        # Arrow believes what it reads: without this a wrong length is memory of others.
        batch.validate(full=True)
        _check_schema(schema)
    except _UNREADABLE as error:
        raise CorruptShardError(_corrupt(name, str(error))) from error
    if header.count != batch.num_rows:
        reason = f"header says {header.count} rows, found {batch.num_rows}"
        raise CorruptShardError(_corrupt(name, reason))
    return header, batch


def expand_shard(data: bytes) -> bytes:
    """Return a shard file with the same rows and header, not compressed.

    What is no whole shard is returned as it is, for whoever opens it to say so.
    """
    buffer = pa.py_buffer(data)
    try:
        batch = pa.ipc.open_file(buffer).get_batch(0)
    except (pa.ArrowInvalid, OSError):
        return data
    begin, end = buffer.address, buffer.address + buffer.size
    stored = [part for column in batch.columns for part in column.buffers() if part]
    if all(begin <= part.address < end for part in stored if part.size):
        return data
    return _encode_batch(batch, None)


def decode_shard(data: bytes | memoryview, name: str) -> tuple[ShardHeader, Samples]:
    """Decode a shard without copying its columns (uncompressed shards).

    Args:
        data: the whole file; arrays keep referring to it.
        name: what to call it in errors.

    Raises:
        CorruptShardError: truncated, altered in structure, or of an unknown format version.
    """
    header, samples, _ = decode_shard_and_counts(data, name)
    return header, samples


def decode_shard_and_counts(
    data: bytes | memoryview, name: str
) -> tuple[ShardHeader, Samples, Array]:
    """Decode as `decode_shard`, and the stored `valid_tokens` of each sample, int32[samples]."""
    header, batch = open_batch(data, name)
    try:
        _check_segment_counts(batch)
        count = batch.num_rows
        column = {field: batch.column(field) for field in batch.schema.names}
        lists = column["segment_lengths"]
        offsets = np.asarray(lists.offsets, dtype=np.int64)
        segments = {field: np.asarray(column[field].values) for field in SEGMENT_COLUMNS}
        valid_tokens = np.asarray(column["valid_tokens"])
        mask = column.get("loss_mask")
        samples = Samples(
            tokens=np.asarray(column["tokens"].values).reshape(count, -1),
            segment_offsets=offsets,
            segments=segments,
            loss_mask=None if mask is None else np.asarray(mask.values).reshape(count, -1),
            media=media_of_batch(batch),
        )
    except (AttributeError, *_UNREADABLE) as error:
        raise CorruptShardError(_corrupt(name, str(error))) from error
    return header, samples, valid_tokens


def verify_digest(header: ShardHeader, samples: Samples, name: str) -> list[bytes]:
    """Recompute the digest of a decoded shard and return the row digests.

    Raises:
        CorruptShardError: the content is not what was committed.
    """
    digests = row_digests(samples)
    found = digest_of_rows(digests)
    if found != header.digest:
        raise CorruptShardError(_corrupt(name, f"digest: expected {header.digest}, found {found}"))
    return digests


def verify_shard(data: bytes | memoryview, name: str) -> ShardHeader:
    """Decode a shard and compare everything that readers use of it with its digest.

    Raises:
        CorruptShardError: the content is not what was committed.
    """
    header, samples, valid_tokens = decode_shard_and_counts(data, name)
    verify_digest(header, samples, name)
    if not np.array_equal(valid_tokens, samples.valid_tokens):
        raise CorruptShardError(_corrupt(name, "valid_tokens are not those of its rows"))
    return header


def same_shard(stored: bytes, computed: bytes) -> bool:
    """Say whether two shard files hold the same rows under the same identity.

    Raises:
        CorruptShardError: the stored one is damaged.
    """
    return verify_shard(stored, "stored shard") == decode_header(computed, "computed shard")


def _open(data: bytes | memoryview, name: str) -> Any:
    try:
        return pa.ipc.open_file(pa.py_buffer(data))
    except _UNREADABLE as error:
        raise CorruptShardError(_corrupt(name, str(error))) from error


def _check_segment_counts(batch: Any) -> None:
    """Refuse segment columns that do not have one value for each segment of the rows.

    Raises:
        ValueError: one has more or fewer.
    """
    lists = {field: batch.column(field) for field in SEGMENT_COLUMNS if field in batch.schema.names}
    if "segment_lengths" in lists:
        count = lists["segment_lengths"].offsets[-1].as_py()
        for field, column in lists.items():
            if len(column.values) != count:
                raise ValueError(f"{field} must have {count} values, got {len(column.values)}")


def _check_schema(schema: Any) -> None:
    """Refuse columns that are there and are not of the type that their names promise.

    Raises:
        ValueError: one has another type.
    """
    if not any(schema.equals(known) for known in tuple(_sound_schemas)):
        _check_types(schema)
        _sound_schemas.append(schema.remove_metadata())


_sound_schemas: deque[Any] = deque(maxlen=4)
"""Schemas of shards that were opened before: all shards of a stream have one."""


def _check_types(schema: Any) -> None:
    for field in schema:
        expected = _COLUMN_TYPES.get(field.name)
        if expected is not None and field.type != expected:
            raise ValueError(f"{field.name} must be {expected}, got {field.type}")
        allowed = _ROW_TYPES.get(field.name)
        is_row = isinstance(field.type, pa.FixedSizeListType)
        if allowed is not None and not (is_row and field.type.value_type in allowed):
            raise ValueError(f"{field.name} must be rows of {allowed[0]}, got {field.type}")


def _header(schema: Any, name: str) -> ShardHeader:
    try:
        metadata = schema.metadata or {}
        version = int(metadata[b"format_version"])
        header = ShardHeader(
            fingerprint=metadata[b"fingerprint"].decode(),
            lane=int(metadata[b"lane"]),
            first_sample=int(metadata[b"first_sample"]),
            count=int(metadata[b"count"]),
            digest=metadata[b"digest"].decode(),
            format_version=version,
        )
    except KeyError as error:
        lacking = error.args[0].decode()
        raise CorruptShardError(_corrupt(name, f"metadata lacks {lacking!r}")) from error
    except ValueError as error:
        raise CorruptShardError(_corrupt(name, f"metadata lacks {error}")) from error
    if version != FORMAT_VERSION:
        raise CorruptShardError(
            f"{name}: format version must be {FORMAT_VERSION}, got {version}; "
            "read it with the version of zephon-beam that wrote it"
        )
    return header


def _encode_batch(batch: Any, codec: str | None) -> bytes:
    # Arrow's own stream grows and shrinks by copying, and its content would be another copy.
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _rows_column(values: Array) -> Any:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _corrupt(name: str, reason: str) -> str:
    return (
        f"{name} is corrupt: {reason}; nothing after it can be trusted; delete it and run the "
        "recipe again, which recomputes it from the lane state before it"
    )
