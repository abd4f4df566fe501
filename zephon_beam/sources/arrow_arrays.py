"""From Arrow columns, whatever file they were in, to the documents that they hold.

Texts are decoded straight from the buffers, with 64-bit offsets; lists of ids stay where they are
if their type allows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zephon_beam.errors import BadRecordError
from zephon_beam.sources.arrow_lists import ListRows
from zephon_beam.sources.documents import Content, TokenLists, fields_of
from zephon_beam.sources.faults import RecordFaults, bad_record, wrong_field, wrong_file, wrong_type
from zephon_beam.sources.record_values import messages_text, parts_as_text
from zephon_beam.sources.token_lists import concatenate_lists, describe

Path = tuple[str, ...]
"""A top-level column and the struct fields below it."""

_TEXTS = (
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
    pa.string_view(),
    pa.binary_view(),
)
_RERUN = "then run the recipe into a new place"


def resolve(schema: Any, field: str, key: str) -> Path:
    """Return the path of a column by its exact name, or else by its dotted path.

    Args:
        schema: of the file.
        field: name that a key of the recipe gives.
        key: that key: `text`, `messages`, `content`, `tokens` or `loss_mask`.

    Raises:
        KeyError: there is no such column.
        TypeError: it holds something else than the key asks for; the message names what.
    """
    path = (field,) if field in schema.names else tuple(field.split("."))
    if schema.names.count(path[0]) != 1:
        raise KeyError(field)
    kind = schema.field(path[0]).type
    for name in path[1:]:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            raise KeyError(field)
        kind = kind.field(kind.get_field_index(name)).type
    if not _holds(kind, key):
        raise TypeError(f"values of type {kind}")
    return path


def check_columns(schema: Any, path: str, content: Content) -> None:
    """Look for the columns that documents are read from in the schema of a data set's first file.

    Raises:
        RecipeError: there is no such column, or it holds something else.
    """
    for field, key in fields_of(content):
        try:
            resolve(schema, field, key)
        except KeyError as error:
            raise wrong_field(field, path, column_names(schema), key) from error
        except TypeError as error:
            raise wrong_type(field, path, str(error), key) from error


def resolve_columns(schema: Any, content: Content, file: str) -> tuple[Path, ...]:
    """Return the paths of the columns that documents are read from in any file of a data set.

    Raises:
        SourceError: there is no such column, or it holds something else.
    """
    paths = []
    for field, key in fields_of(content):
        try:
            paths.append(resolve(schema, field, key))
        except (KeyError, TypeError) as error:
            raise wrong_file(file, field, key, error, column_names(schema)) from error
    return tuple(paths)


def column_names(schema: Any) -> list[str]:
    """Return the columns of a schema, nested ones by dotted path."""
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


def take_column(batch: Any, path: Path) -> Any:
    """Return a column of a record batch; a field of a null struct is null."""
    column = batch.column(batch.schema.get_field_index(path[0]))
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def read_columns(
    rows: Sequence[tuple[Any, ...]],
    content: Content,
    faults: RecordFaults,
    *,
    file: str,
    first_row: int,
) -> tuple[list[str], TokenLists | None]:
    """Take the documents out of columns.

    Args:
        rows: stretches of rows, one after the other; each has an array for every field of the
            content.
        content: what the columns hold.
        faults: what becomes of bad rows.
        file: the file's name, for messages.
        first_row: number of the first row in its file, which is its locator.

    Returns:
        (texts, token lists if the documents are tokens).

    Raises:
        BadRecordError: a row holds no document, and faults raise.
    """
    reader = _Reader(content, faults, file, first_row)
    for arrays in rows:
        reader.add(*arrays)
    if content.kind != "tokens":
        return reader.texts, None
    return reader.texts, concatenate_lists(reader.lists)


class _Reader:
    def __init__(self, content: Content, faults: RecordFaults, file: str, first_row: int) -> None:
        self.texts: list[str] = []
        self.lists: list[TokenLists] = []
        self._content = content
        self._faults = faults
        self._file = file
        self._first_row = first_row

    def add(self, array: Any, mask: Any = None) -> None:
        if self._content.kind == "text":
            self._add_texts(array)
        elif self._content.kind in ("messages", "content"):
            self._add_lists(array)
        else:
            self._add_tokens(array, mask)

    def _add_texts(self, array: Any) -> None:
        rule = f"field {self._content.field!r} must be "
        data, bounds, nulls = _text_buffers(array)
        texts = self.texts
        start = int(bounds[0])
        for place, stop in enumerate(bounds[1:].tolist()):
            text = ""
            try:
                if place in nulls:
                    self._report(len(texts), f"{rule}a text", "null", "not_text")
                else:
                    text = str(data[start:stop], "utf-8")
            except UnicodeDecodeError as error:
                found = f"byte 0x{error.object[error.start]:02x} at byte {error.start} of it"
                self._report(len(texts), f"{rule}valid UTF-8", found, "utf8")
            texts.append(text)
            start = stop

    def _add_lists(self, array: Any) -> None:
        items = "parts" if self._content.kind == "content" else "messages"
        rule = f"field {self._content.field!r} must be a list of {items}"
        for place in range(len(array)):
            value, text = None, ""
            try:
                value = array[place].as_py()
                text = messages_text(parts_as_text(value, self._content.kind))
                text.encode()
            except TypeError:
                self._report(len(self.texts), rule, describe(value), f"not_{items}")
                text = ""
            except UnicodeError as error:
                rule_of_texts = f"texts in field {self._content.field!r} must be valid UTF-8"
                self._report(len(self.texts), rule_of_texts, str(error), "utf8")
                text = ""
            self.texts.append(text)

    def _add_tokens(self, array: Any, mask: Any) -> None:
        rows = ListRows(array, mask, self._content)
        for place, fault in rows.faults:
            self._report(len(self.texts) + place, *fault)
        self.texts += [""] * len(array)
        self.lists.append(rows.lists())

    def _report(self, place: int, rule: str, found: str, reason: str) -> None:
        self._faults.report(self._fault(self._first_row + place, rule, found, reason), place)

    def _fault(self, row: int, rule: str, found: str, reason: str) -> BadRecordError:
        repair = f"correct or remove the row, {_RERUN}"
        place = f"row {row}"
        return bad_record(
            self._file, row, place, rule=rule, found=found, reason=reason, repair=repair
        )


def _text_buffers(array: Any) -> tuple[memoryview, npt.NDArray[np.int64], set[int]]:
    """Return (bytes of all texts, int64[rows + 1] bounds in them, places of nulls)."""
    if pa.types.is_dictionary(array.type):
        # The values are widened before they are repeated, or 32-bit offsets could overflow.
        values = array.dictionary.cast(pa.large_binary())
        array = pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
    if not len(array):
        return memoryview(b""), np.zeros(1, np.int64), set()
    nulls = set(np.flatnonzero(array.is_null()).tolist()) if array.null_count else set()
    flat = array.cast(pa.large_binary())
    _, offsets, body = flat.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[flat.offset : flat.offset + len(flat) + 1]
    return memoryview(body) if body is not None else memoryview(b""), bounds, nulls


def _holds(kind: Any, key: str) -> bool:
    types = pa.types
    if key == "text":
        return (kind.value_type if types.is_dictionary(kind) else kind) in _TEXTS
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not is_list:
        return False
    if key in ("messages", "content"):
        return bool(types.is_struct(kind.value_type))
    is_mask = key == "loss_mask" and types.is_boolean(kind.value_type)
    return bool(types.is_integer(kind.value_type) or is_mask)
