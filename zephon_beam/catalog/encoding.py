"""The catalog as an Arrow IPC file: one record batch, one row a file, in name order.

Column names, types and metadata keys are a public contract. Like a shard's, the digest is
*logical*: it covers the values, not the file's bytes, so another version of Arrow that pads them
otherwise writes the same catalog.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_beam.errors import CorruptObjectError

FORMAT_VERSION = 1

IntArray = npt.NDArray[np.int64]

_DIGEST_BYTES = 16
_TEXTS = ("name", "identity")
_NUMBERS = ("size", "chunks", "first_chunk")
_LISTS = ("row_group_rows", "row_group_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextColumn:
    """UTF-8 texts as they lie in the file: text `i` is data[offsets[i]:offsets[i + 1]]."""

    offsets: IntArray
    data: memoryview

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.offsets) - 1

    def __getitem__(self, place: int) -> str:
        """Return one text."""
        first, last = self.offsets[place : place + 2].tolist()
        return bytes(self.data[first:last]).decode()


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogTable:
    """The content of a catalog as flat arrays that may be views of a mapped file.

    names, identities: one text a file; sizes, chunks, first_chunks: int64[files].
    row_group_rows, row_group_bytes: int64[row groups of all files], in file order; empty for
    formats without row groups. Chunk `c` of such a format is row group `c`.
    """

    dataset: str
    format: str
    chunk_bytes: int
    part_rows: int
    names: TextColumn
    identities: TextColumn
    sizes: IntArray
    chunks: IntArray
    first_chunks: IntArray
    row_group_rows: IntArray
    row_group_bytes: IntArray


def text_column(texts: list[str]) -> TextColumn:
    """Lay texts out as Arrow does."""
    bodies = [text.encode() for text in texts]
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(body) for body in bodies], out=offsets[1:])
    return TextColumn(offsets=offsets, data=memoryview(b"".join(bodies)))


def table_digest(table: CatalogTable) -> str:
    """Hash every value of a catalog; no two different catalogs share an encoding.

    Returns:
        BLAKE2b, 32 hexadecimal digits.
    """
    state = blake2b(digest_size=_DIGEST_BYTES)
    for word in (str(FORMAT_VERSION), table.dataset, table.format):
        state.update(len(word.encode()).to_bytes(8, "little") + word.encode())
    counts = (table.chunk_bytes, table.part_rows, len(table.sizes), len(table.row_group_rows))
    state.update(np.array(counts, dtype="<i8").tobytes())
    for texts in (table.names, table.identities):
        state.update(_little(texts.offsets))
        state.update(texts.data)
    for numbers in (table.sizes, table.chunks, table.first_chunks):
        state.update(_little(numbers))
    for numbers in (table.row_group_rows, table.row_group_bytes):
        state.update(_little(numbers))
    return state.hexdigest()


def encode_table(table: CatalogTable) -> bytes:
    """Encode a catalog as an Arrow IPC file.

    Determinism: depends on the table alone; there is no time, host or absolute path in it.
    """
    metadata = {
        "format_version": str(FORMAT_VERSION),
        "dataset": table.dataset,
        "format": table.format,
        "chunk_bytes": str(table.chunk_bytes),
        "part_rows": str(table.part_rows),
        "digest": table_digest(table),
    }
    columns = {
        "name": _text_array(table.names),
        "size": pa.array(table.sizes),
        "identity": _text_array(table.identities),
        "chunks": pa.array(table.chunks),
        "first_chunk": pa.array(table.first_chunks),
    }
    if table.part_rows:
        bounds = pa.array(np.append(table.first_chunks, len(table.row_group_rows)))
        for name, values in zip(_LISTS, (table.row_group_rows, table.row_group_bytes), strict=True):
            columns[name] = pa.LargeListArray.from_arrays(bounds, pa.array(values))
    fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    schema = pa.schema(fields, metadata=metadata)
    batch = pa.record_batch(list(columns.values()), schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def decode_table(data: bytes | memoryview, name: str) -> tuple[CatalogTable, str]:
    """Decode a catalog without copying or reading its columns.

    Returns:
        (the table, the digest that it was written with).

    Raises:
        CorruptObjectError: truncated, altered in structure, or of an unknown format version.
    """
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        metadata = {key.decode(): text.decode() for key, text in reader.schema.metadata.items()}
        version = int(metadata["format_version"])
    except (pa.ArrowException, OSError, ValueError, KeyError, AttributeError) as error:
        raise CorruptObjectError(_corrupt(name, str(error))) from error
    if version != FORMAT_VERSION:
        raise CorruptObjectError(
            f"{name}: format version must be {FORMAT_VERSION}, got {version}; "
            "read it with the version of zephon-beam that wrote it"
        )
    try:
        batch = reader.get_batch(0)
        batch.validate()
        texts = {column: _texts(batch.column(column)) for column in _TEXTS}
        numbers = {column: _numbers(batch.column(column)) for column in _NUMBERS}
        part_rows = int(metadata["part_rows"])
        no_rows = np.zeros(0, dtype=np.int64)
        lists = {
            column: _numbers(batch.column(column).values) if part_rows else no_rows
            for column in _LISTS
        }
        table = CatalogTable(
            dataset=metadata["dataset"],
            format=metadata["format"],
            chunk_bytes=int(metadata["chunk_bytes"]),
            part_rows=part_rows,
            names=texts["name"],
            identities=texts["identity"],
            sizes=numbers["size"],
            chunks=numbers["chunks"],
            first_chunks=numbers["first_chunk"],
            row_group_rows=lists["row_group_rows"],
            row_group_bytes=lists["row_group_bytes"],
        )
        digest = metadata["digest"]
    except (pa.ArrowException, OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CorruptObjectError(_corrupt(name, str(error))) from error
    if not len(table.sizes):
        raise CorruptObjectError(_corrupt(name, "it lists no files"))
    return table, digest


def verify_table(table: CatalogTable, digest: str, name: str) -> None:
    """Compare all values with the digest they were written with.

    Raises:
        CorruptObjectError: a value is not what was written.
    """
    found = table_digest(table)
    if found != digest:
        raise CorruptObjectError(_corrupt(name, f"digest: expected {digest}, found {found}"))


def same_catalog(stored: bytes, computed: bytes) -> bool:
    """Say whether two catalog files hold the same values, whatever version of Arrow wrote them."""
    try:
        table, digest = decode_table(stored, "stored catalog")
        verify_table(table, digest, "stored catalog")
    except CorruptObjectError:
        return False
    return digest == decode_table(computed, "computed catalog")[1]


def _text_array(texts: TextColumn) -> Any:
    buffers = [None, pa.py_buffer(texts.offsets), pa.py_buffer(texts.data)]
    return pa.Array.from_buffers(pa.large_string(), len(texts), buffers)


def _texts(array: Any) -> TextColumn:
    if array.type != pa.large_string() or array.null_count:
        raise ValueError(f"a text column holds {array.type} with {array.null_count} nulls")
    _, offsets, data = array.buffers()
    values = np.frombuffer(offsets, dtype=np.int64, count=len(array) + 1)
    body = memoryview(data) if data is not None else memoryview(b"")
    return TextColumn(offsets=values, data=body[: int(values[-1])])


def _numbers(array: Any) -> IntArray:
    if array.type != pa.int64() or array.null_count:
        raise ValueError(f"a number column holds {array.type} with {array.null_count} nulls")
    values: IntArray = array.to_numpy(zero_copy_only=True)
    return values


def _little(values: IntArray) -> Any:
    return np.ascontiguousarray(values, dtype="<i8").data


def _corrupt(name: str, reason: str) -> str:
    return (
        f"{name} is corrupt: {reason}; the order of its sources can no longer be known; restore it "
        "from a copy, or run the recipe into a new place, which writes the same bytes"
    )
