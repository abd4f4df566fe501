"""Parquet: one chunk a row group, read part by part from the one column that holds the text.

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
import pyarrow.compute as pc
import pyarrow.parquet as pq

from zephon_beam.catalog.chunks import count_parts
from zephon_beam.errors import BadRecordError, SourceError
from zephon_beam.sources.documents import Content, FileDocuments, Part
from zephon_beam.sources.faults import (
    RecordFaults,
    bad_record,
    describe_fields,
    wrong_field,
    wrong_type,
)
from zephon_beam.sources.open_source import SourceFile

_BUFFER_BYTES = 1 << 20
_OPEN_READERS = 16
_RERUN = "then run the recipe into a new place"
_NOT_FOUND = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


def read(source: SourceFile, part: Part, faults: RecordFaults) -> FileDocuments:
    """Read the documents of some rows of a row group.

    Raises:
        BadRecordError: a row has no text, or one that is not valid UTF-8, and faults raise.
        SourceError: the file has no such column of text, or is damaged.
        DriftError: the file is not that of the catalog.
    """
    chunk, first, field = part.chunk, part.part * part.part_rows, part.content.field
    rows = chunk.stop - chunk.start
    if not 0 <= part.part < count_parts(rows, part.part_rows):
        raise ValueError(f"chunk {chunk.chunk} of {source.name} has no part {part.part}")
    place = (source.path, source.version, chunk.row_group, field, part.part_rows)
    try:
        reader = _take_reader(place, first) or _RowReader(source, chunk.row_group, field)
        arrays = reader.read(first, min(part.part_rows, rows - first))
    except pa.ArrowException as error:
        raise _damaged(source.name, chunk.row_group, error) from error
    except OSError as error:
        # Arrow reports damage as an OSError without a number; the system's own have one.
        if error.errno is not None:
            raise
        raise _damaged(source.name, chunk.row_group, error) from error
    if reader.row < rows:
        _keep_reader(place, reader)
    texts: list[str] = []
    for array in arrays:
        _decode(array, texts, faults, source.name, chunk.start + first, field)
    locators = np.arange(len(texts), dtype=np.int64) + chunk.start + first
    return FileDocuments(texts=texts, locators=locators)


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
        RecipeError: there is no such column, or it holds no text.
        SourceError: the file is not Parquet, or its footer is damaged.
    """
    field = content.field
    with _open_footer(path) as file:
        schema = file.schema_arrow
    try:
        _resolve(schema, field)
    except KeyError as error:
        raise wrong_field(field, path, _names(schema)) from error
    except TypeError as error:
        raise wrong_type(field, path, str(error)) from error


class _RowReader:
    """The text column of one row group, read forward."""

    def __init__(self, source: SourceFile, row_group: int, field: str) -> None:
        self.row = 0
        self._name = source.name
        self._row_group = row_group
        self._file = pq.ParquetFile(source.path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        self._path = _resolve_column(self._file.schema_arrow, field, source.name)
        self._batches: Iterator[Any] | None = None
        self._rest: Any = None

    def read(self, first: int, count: int) -> list[Any]:
        """Return rows [first, first + count) as arrays; `first` must not lie behind."""
        if self._batches is None:
            self._batches = self._file.iter_batches(
                batch_size=max(1, count),
                row_groups=[self._row_group],
                columns=[".".join(self._path)],
                use_threads=False,
            )
        self._advance(first - self.row)
        return self._advance(count)

    def _advance(self, count: int) -> list[Any]:
        """Take the next rows; batches need not be as long as asked for."""
        arrays = []
        while count:
            array = self._rest if self._rest is not None else self._next_array()
            taken = array[:count]
            self._rest = array[count:] if len(array) > count else None
            self.row += len(taken)
            count -= len(taken)
            arrays.append(taken)
        return arrays

    def _next_array(self) -> Any:
        batch = next(self._batches or iter(()), None)
        if batch is None:
            raise SourceError(
                f"{self._name}: row group {self._row_group} ends at row {self.row}, before its "
                f"footer says; the file is damaged; restore it, {_RERUN}"
            )
        column = batch.column(batch.schema.get_field_index(self._path[0]))
        for name in self._path[1:]:
            column = pc.struct_field(column, name)
        return column


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


def _decode(
    array: Any, texts: list[str], faults: RecordFaults, file: str, first_row: int, field: str
) -> None:
    """Append a column's texts, decoded strictly; `first_row` is the row of the first of `texts`."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not len(array):
        return
    nulls = set(np.flatnonzero(array.is_null()).tolist()) if array.null_count else set()
    flat = array.cast(pa.large_binary())
    _, offsets, body = flat.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[flat.offset : flat.offset + len(flat) + 1]
    data = memoryview(body) if body is not None else memoryview(b"")
    start = int(bounds[0])
    for place, stop in enumerate(bounds[1:].tolist()):
        row = first_row + len(texts)
        text = ""
        try:
            if place in nulls:
                rule = f"field {field!r} must be a text"
                faults.report(_bad_row(file, row, rule, "null", "not_text"), len(texts))
            else:
                text = str(data[start:stop], "utf-8")
        except UnicodeDecodeError as error:
            found = f"byte 0x{error.object[error.start]:02x} at byte {error.start} of it"
            rule = f"field {field!r} must be valid UTF-8"
            faults.report(_bad_row(file, row, rule, found, "utf8"), len(texts))
        texts.append(text)
        start = stop


def _resolve(schema: Any, field: str) -> tuple[str, ...]:
    """Return the path of a column by its exact name, or else by its dotted path.

    Raises:
        KeyError: there is no such column.
        TypeError: it holds no text; the message names what it holds.
    """
    path = (field,) if field in schema.names else tuple(field.split("."))
    if schema.names.count(path[0]) != 1:
        raise KeyError(field)
    kind = schema.field(path[0]).type
    for name in path[1:]:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            raise KeyError(field)
        kind = kind.field(kind.get_field_index(name)).type
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    if values not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        raise TypeError(f"values of type {kind}")
    return path


def _resolve_column(schema: Any, field: str, file: str) -> tuple[str, ...]:
    try:
        return _resolve(schema, field)
    except KeyError as error:
        raise SourceError(
            f"{file}: expected a column {field!r} of text, found none; "
            f"{describe_fields(field, _names(schema))}; every file of a data set needs it; correct "
            f"the file or `text` in the recipe, {_RERUN}"
        ) from error
    except TypeError as error:
        raise SourceError(
            f"{file}: expected a column {field!r} of text, found {error}; every file of a data set "
            f"needs it; correct the file or `text` in the recipe, {_RERUN}"
        ) from error


def _names(schema: Any) -> list[str]:
    """Return the columns of a file, nested ones by dotted path."""
    names: list[str] = []
    pending = [(field.name, field.type) for field in reversed(schema)]
    while pending:
        name, kind = pending.pop()
        if pa.types.is_struct(kind):
            inner = [kind.field(place) for place in reversed(range(kind.num_fields))]
            pending += [(f"{name}.{field.name}", field.type) for field in inner]
        else:
            names.append(name)
    return names


def _open_footer(path: str) -> Any:
    try:
        return pq.ParquetFile(path)
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


def _bad_row(file: str, row: int, rule: str, found: str, reason: str) -> BadRecordError:
    repair = f"correct or remove the row, {_RERUN}"
    return bad_record(file, row, f"row {row}", rule=rule, found=found, reason=reason, repair=repair)
