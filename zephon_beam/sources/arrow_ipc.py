"""Arrow IPC files (also Feather version 2) and streams: one chunk a record batch, read in parts.

A batch is decoded as a whole, of a file only the columns that are read; it stays in memory while
its parts are read one after the other.
"""

import io
from collections import OrderedDict
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_beam.errors import SourceError
from zephon_beam.sources.arrow_arrays import (
    check_columns,
    column_names,
    read_columns,
    resolve_columns,
    take_column,
)
from zephon_beam.sources.arrow_messages import Layout, read_layout
from zephon_beam.sources.documents import Content, FileDocuments, Part
from zephon_beam.sources.faults import RecordFaults
from zephon_beam.sources.open_source import SourceFile
from zephon_beam.sources.places import OpenFile, RangeStream, opened_file

_KEPT_BYTES = 256 * 1024 * 1024
_RERUN = "then run the recipe into a new place"

Arrays = tuple[Any, ...]
"""The columns of a batch that documents are read from."""


def read(source: SourceFile, part: Part, faults: RecordFaults) -> FileDocuments:
    """Read the documents of some rows of a record batch.

    Raises:
        BadRecordError: a row has no document of the content's kind, and faults raise.
        SourceError: the file has no such column, or is damaged.
        DriftError: the file is not that of the catalog.
    """
    chunk, content = part.chunk, part.content
    first, count = part.rows(source.name)
    rows = chunk.stop - chunk.start
    place = (source.path, source.version, chunk.row_group, content)
    arrays = _batches.take(place)
    if arrays is None:
        arrays = _load(source, chunk.row_group, rows, content)
    if first + count < rows:
        _batches.keep(place, arrays)
    stretch = tuple(array[first : first + count] for array in arrays)
    first_row = chunk.start + first
    texts, tokens = read_columns([stretch], content, faults, file=source.name, first_row=first_row)
    locators = np.arange(len(texts), dtype=np.int64) + first_row
    return FileDocuments(texts=texts, locators=locators, tokens=tokens)


def read_row_groups(path: str) -> tuple[tuple[int, int], ...]:
    """Return (rows, expanded bytes) of each record batch from the heads of all messages.

    Raises:
        SourceError: the file is not Arrow IPC, or is damaged.
    """
    with opened_file(path) as file:
        if not file.size:
            return ()
        layout = read_layout(_reading(file), file.size, path)
        if layout.is_file:
            with _open_file(RangeStream(file.duplicate()), path) as reader:
                found = reader.num_record_batches
            if found != len(layout.batches):
                raise _damaged(path, f"{len(layout.batches)} batches, but {found} in its footer")
    return tuple((batch.rows, batch.expanded_bytes) for batch in layout.batches)


def check_field(path: str, content: Content) -> None:
    """Look for the columns in the schema of a file.

    Raises:
        RecipeError: there is no such column, or it holds something else.
        SourceError: the file is not Arrow IPC, or is damaged.
    """
    with opened_file(path) as file:
        layout = read_layout(_reading(file), file.size, path)
        check_columns(_schema(_reading(file), layout, path), path, content)


class _Batches:
    """Columns of batches that are being read part by part, each for one thread at a time.

    The longest unused ones are dropped when they are too many bytes together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[Any, Arrays] = OrderedDict()
        self._lock = Lock()

    def take(self, place: Any) -> Arrays | None:
        with self._lock:
            return self._kept.pop(place, None)

    def keep(self, place: Any, arrays: Arrays) -> None:
        with self._lock:
            self._kept[place] = arrays
            total = sum(map(_buffer_bytes, self._kept.values()))
            while total > self._limit and len(self._kept) > 1:
                total -= _buffer_bytes(self._kept.popitem(last=False)[1])


_batches = _Batches(_KEPT_BYTES)


def _buffer_bytes(arrays: Arrays) -> int:
    return sum(array.get_total_buffer_size() for array in arrays)


def _load(source: SourceFile, batch: int, rows: int, content: Content) -> Arrays:
    """Read the columns of a batch, of a stream with the dictionaries that stand before it."""
    layout, schema = _open(source.path, source.size, source.version, source.name)
    paths = resolve_columns(schema, content, source.name)
    columns = sorted({schema.get_field_index(path[0]) for path in paths})
    options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
    try:
        if layout.is_file:
            with pa.PythonFile(_SourceStream(source), mode="r") as file:
                found = pa.ipc.open_file(file, options=options).get_batch(batch)
        else:
            needed = [source.read(m.start, m.stop - m.start) for m in layout.needed(batch)]
            with pa.ipc.open_stream(pa.py_buffer(b"".join(needed)), options=options) as reader:
                found = reader.read_next_batch()
        found.validate()
        if list(found.schema) != [schema.field(column) for column in columns]:
            raise _damaged(source.name, f"batch {batch}: its columns are not those of the schema")
        arrays = tuple(take_column(found, path) for path in paths)
    except (pa.ArrowException, IndexError, StopIteration, UnicodeDecodeError) as error:
        raise _damaged(source.name, f"batch {batch}: {_one_line(error)}") from error
    except OSError as error:
        # Arrow reports damage as an OSError without a number; the system's own have one.
        if error.errno is not None:
            raise
        raise _damaged(source.name, f"batch {batch}: {_one_line(error)}") from error
    if found.num_rows != rows:
        raise _damaged(source.name, f"batch {batch}: {found.num_rows} rows instead of {rows}")
    return arrays


@lru_cache(maxsize=256)
def _open(path: str, size: int, _version: tuple[int, int], file: str) -> tuple[Layout, Any]:
    with opened_file(path) as opened:
        read_bytes = _reading(opened)
        layout = read_layout(read_bytes, size, file)
        return layout, _schema(read_bytes, layout, file)


def _schema(read_bytes: Any, layout: Layout, file: str) -> Any:
    message = layout.schema
    try:
        data = pa.py_buffer(read_bytes(message.start, message.stop - message.start))
        with pa.ipc.open_stream(data) as reader:
            # Looks at all names, which damage may have left without meaning.
            column_names(reader.schema)
            return reader.schema
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(file, f"schema: {_one_line(error)}") from error


def _open_file(file: Any, path: str) -> Any:
    try:
        return pa.ipc.open_file(pa.PythonFile(file, mode="r"))
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _damaged(path, f"footer: {_one_line(error)}") from error


def _reading(file: OpenFile) -> Any:
    def read_bytes(start: int, length: int) -> bytes:
        return file.pread(length, start)

    return read_bytes


class _SourceStream(io.RawIOBase):
    """A source file as Arrow wants to read it: with a position."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._source.size}
        self._place = starts[whence] + offset
        return self._place

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._source.size - self._place)
        data = self._source.read(self._place, left if size < 0 else min(size, left))
        self._place += len(data)
        return data


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _damaged(file: str, reason: str) -> SourceError:
    return SourceError(
        f"{file}: expected whole Arrow data, found damage ({reason}); every run would stop here; "
        f"restore it, or leave it out of `files`, {_RERUN}"
    )
