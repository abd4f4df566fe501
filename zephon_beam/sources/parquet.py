"""Parquet: one chunk a row group, read part by part from the columns that hold documents.

A row group can only be decoded from its start, and is too large to be held. Its parts are usually
wanted one after the other, so a few readers stay open at the place that they have reached.
"""

import errno
from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zephon_beam.errors import SourceError
from zephon_beam.sources.arrow_arrays import (
    check_columns,
    read_columns,
    resolve_columns,
    take_column,
)
from zephon_beam.sources.documents import Content, FileDocuments, Part
from zephon_beam.sources.faults import RecordFaults
from zephon_beam.sources.open_source import SourceFile
from zephon_beam.sources.places import open_stream

_BUFFER_BYTES = 1 << 20
_OPEN_READERS = 16
_RERUN = "then run the recipe into a new place"
_NOT_FOUND = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


def read(source: SourceFile, part: Part, faults: RecordFaults) -> FileDocuments:
    """Read the documents of some rows of a row group.

    Raises:
        BadRecordError: a row has no document of the content's kind, and faults raise.
        SourceError: the file has no such column, or is damaged.
        DriftError: the file is not that of the catalog.
    """
    chunk, content = part.chunk, part.content
    first, count = part.rows(source.name)
    place = (source.path, source.version, chunk.row_group, content, part.part_rows)
    try:
        reader = _take_reader(place, first) or _RowReader(source, chunk.row_group, content)
        arrays = reader.read(first, count)
    except pa.ArrowException as error:
        raise _damaged(source.name, chunk.row_group, error) from error
    except OSError as error:
        # Arrow reports damage as an OSError without a number; the system's own have one.
        if error.errno is not None:
            raise
        raise _damaged(source.name, chunk.row_group, error) from error
    if reader.row < chunk.stop - chunk.start:
        _keep_reader(place, reader)
    first_row = chunk.start + first
    texts, tokens = read_columns(arrays, content, faults, file=source.name, first_row=first_row)
    locators = np.arange(len(texts), dtype=np.int64) + first_row
    return FileDocuments(texts=texts, locators=locators, tokens=tokens)


def read_row_groups(path: str) -> tuple[tuple[int, int], ...]:
    """Return (rows, expanded bytes) of each row group from the footer.

    Raises:
        SourceError: the file is not Parquet, or its footer is damaged.
    """
    with _open_footer(path) as file:
        metadata = file.metadata
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        return tuple((group.num_rows, group.total_byte_size) for group in groups)


def check_field(path: str, content: Content) -> None:
    """Look for the column in the footer of a file.

    Raises:
        RecipeError: there is no such column, or it holds something else.
        SourceError: the file is not Parquet, or its footer is damaged.
    """
    with _open_footer(path) as file:
        check_columns(file.schema_arrow, path, content)


class _RowReader:
    """The columns of one row group that documents are read from, read forward."""

    def __init__(self, source: SourceFile, row_group: int, content: Content) -> None:
        self.row = 0
        self._name = source.name
        self._row_group = row_group
        stream = open_stream(source.path, identity=source.identity)
        self._file = pq.ParquetFile(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        self._paths = resolve_columns(self._file.schema_arrow, content, source.name)
        self._batches: Iterator[Any] | None = None
        self._rest: Any = None

    def read(self, first: int, count: int) -> list[tuple[Any, ...]]:
        """Return rows [first, first + count), in stretches, as an array for each column.

        `first` must not lie behind.
        """
        if self._batches is None:
            self._batches = self._file.iter_batches(
                batch_size=max(1, count),
                row_groups=[self._row_group],
                columns=[".".join(path) for path in self._paths],
                use_threads=False,
            )
        self._advance(first - self.row)
        return self._advance(count)

    def _advance(self, count: int) -> list[tuple[Any, ...]]:
        """Take the next rows; batches need not be as long as asked for."""
        stretches = []
        while count:
            arrays = self._rest if self._rest is not None else self._next_arrays()
            taken = tuple(array[:count] for array in arrays)
            left = len(arrays[0]) > count
            self._rest = tuple(array[count:] for array in arrays) if left else None
            self.row += len(taken[0])
            count -= len(taken[0])
            stretches.append(taken)
        return stretches

    def _next_arrays(self) -> tuple[Any, ...]:
        batch = next(self._batches or iter(()), None)
        if batch is None:
            raise SourceError(
                f"{self._name}: row group {self._row_group} ends at row {self.row}, before its "
                f"footer says; the file is damaged; restore it, {_RERUN}"
            )
        return tuple(take_column(batch, path) for path in self._paths)


_readers: OrderedDict[Any, _RowReader] = OrderedDict()
_readers_lock = Lock()


def _take_reader(place: Any, first: int) -> _RowReader | None:
    """Take the reader of a row group for one thread's use, if it has not passed the row."""
    with _readers_lock:
        reader = _readers.pop(place, None)
    return reader if reader is not None and reader.row <= first else None


def _keep_reader(place: Any, reader: _RowReader) -> None:
    with _readers_lock:
        _readers[place] = reader
        if len(_readers) > _OPEN_READERS:
            _readers.popitem(last=False)


def _open_footer(path: str) -> Any:
    try:
        return pq.ParquetFile(open_stream(path))
    except pa.ArrowException as error:
        raise _unreadable(path, error) from error
    except OSError as error:
        if error.errno is not None and error.errno not in _NOT_FOUND:
            raise
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> SourceError:
    reason = " ".join(str(error).split())
    return SourceError(
        f"{path}: expected a Parquet file, found none ({reason}); nothing can be read from it; "
        "restore the file, or leave it out of `files`"
    )


def _damaged(file: str, row_group: int, error: Exception) -> SourceError:
    reason = " ".join(str(error).split())
    return SourceError(
        f"{file}: expected whole Parquet data, found damage in row group {row_group} ({reason}); "
        f"every run would stop here; restore the file, or leave it out of `files`, {_RERUN}"
    )
