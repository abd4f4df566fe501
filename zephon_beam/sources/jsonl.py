r"""JSON Lines: one JSON object a line, read by byte ranges.

    bytes    0         10        20        30
             {"a":1}\n{"a":2}\n{"a":3}\n{"a":4}\n
    ranges   [0, 10)   [10, 20)  [20, 30)  [30, 32)
    lines    0 and 8   16        24        none

A line belongs to the range that holds its first byte, and its reader reads on as far as the line
goes. Lines end with `\n`; a `\r` before it and a byte order mark at the file's start are not part
of the document; a blank line is no document; the last line may lack its end. What is valid JSON
and what it means is what Python's `json` says: of a repeated key the last one counts.
"""

import json
from typing import Any, NoReturn

import numpy as np

from zephon_beam.errors import BadRecordError
from zephon_beam.sources.documents import Content, FileDocuments, Part
from zephon_beam.sources.faults import (
    RecordFaults,
    bad_record,
    describe_fields,
    shorten,
    wrong_field,
    wrong_type,
)
from zephon_beam.sources.open_source import SourceFile

_BOM = b"\xef\xbb\xbf"
_SPACE = " \t\r"
_FIRST_STEP = 8 * 1024
_LAST_STEP = 64 * 1024 * 1024
_STEP_GROWTH = 4
_CHECKED_BYTES = 64 * 1024

_RERUN = "then run the recipe into a new place"
_LINE_REPAIR = f"correct or remove the line, {_RERUN}"
_FIELD_REPAIR = f"correct `text` in the recipe, or the line, {_RERUN}"
_ENCODING_REPAIR = f"write the file as UTF-8, {_RERUN}"

_decode = json.JSONDecoder().raw_decode


def read(source: SourceFile, part: Part, faults: RecordFaults) -> FileDocuments:
    """Read the documents whose lines start in the byte range of a chunk.

    Raises:
        BadRecordError: a line is no JSON object with a text in the field, and faults raise.
        DriftError: the file is not that of the catalog.
    """
    data, offset = read_lines(source, part.chunk.start, part.chunk.stop)
    chunk = part.chunk.chunk
    return parse_lines(data, offset, part.content, faults, file=source.name, chunk=chunk)


def read_lines(source: SourceFile, start: int, stop: int) -> tuple[bytes, int]:
    """Read the whole lines whose first byte is in [start, stop).

    One read of the range and the byte before it, which says whether a line starts at `start`, then
    growing steps until the last line ends.

    Returns:
        (the lines, offset of their first byte in the file).
    """
    first = max(0, start - 1)
    data = source.read(first, stop - first)
    if start:
        skipped = data.find(b"\n") + 1
        if not skipped or first + skipped >= stop:
            return b"", stop
        data, first = data[skipped:], first + skipped
    pieces, position, step = [data], stop, _FIRST_STEP
    while not pieces[-1].endswith(b"\n") and position < source.size:
        piece = source.read(position, min(step, source.size - position))
        position += len(piece)
        step = min(step * _STEP_GROWTH, _LAST_STEP)
        end = piece.find(b"\n") + 1
        pieces.append(piece[:end] if end else piece)
    return b"".join(pieces), first


def parse_lines(
    data: bytes, offset: int, content: Content, faults: RecordFaults, *, file: str, chunk: int
) -> FileDocuments:
    """Parse whole lines.

    Args:
        data: the lines.
        offset: place of their first byte in the file.
        content: which field holds the document; dots lead into nested objects unless the object
            has a field of just that name.
        faults: what becomes of bad lines.
        file: the file's name, for messages.
        chunk: the chunk's number, for messages.

    Raises:
        BadRecordError: a line is no JSON object with a text in the field, and faults raise.
    """
    field = content.field
    texts: list[str] = []
    locators: list[int] = []
    simple = "." not in field
    # A lone surrogate can only come from an escape; without one no text needs to be looked at.
    escapes = _has_surrogate_escape(data)
    next_offset = offset
    for number, line in enumerate(data.split(b"\n")):
        line_offset = next_offset
        next_offset += len(line) + 1
        if line_offset == 0 and line.startswith(_BOM):
            line = line[len(_BOM) :]
        if not line or line.isspace():
            continue
        try:
            decoded = line.decode()
            document, end = _decode(decoded)
            text = document[field] if simple else _field(document, field)
            valid = type(text) is str and (end == len(decoded) or not decoded[end:].strip(_SPACE))
            if valid and escapes:
                text.encode()
        except (ValueError, KeyError, TypeError, RecursionError):
            valid, text = False, ""
        if not valid:
            place = f"byte {line_offset}, line {number + 1} of chunk {chunk}"
            try:
                text = parse_line(line, field, file=file, locator=line_offset, place=place)
            except BadRecordError as error:
                faults.report(error, len(texts))
                text = ""
        texts.append(text)
        locators.append(line_offset)
    return FileDocuments(texts=texts, locators=np.array(locators, dtype=np.int64))


def parse_line(line: bytes, field: str, *, file: str, locator: int, place: str) -> str:
    """Return the text of one line, or say what is wrong with it.

    Raises:
        BadRecordError: with a `reason` of `utf8`, `json`, `not_object`, `missing_field`,
            `not_text` or `surrogate`.
    """

    def fail(rule: str, found: str, reason: str, repair: str = _LINE_REPAIR) -> NoReturn:
        raise bad_record(file, locator, place, rule=rule, found=found, reason=reason, repair=repair)

    try:
        document = json.loads(line.decode())
    except UnicodeDecodeError as error:
        found = f"byte 0x{line[error.start]:02x} at byte {error.start} of the line"
        fail("document must be valid UTF-8", found, "utf8", _ENCODING_REPAIR)
    except (ValueError, RecursionError) as error:
        fail("document must be valid JSON", f"{shorten(line)} ({error})", "json")
    if not isinstance(document, dict):
        kind = _kind(document)
        fail("document must be a JSON object", f"{kind}: {shorten(document)}", "not_object")
    try:
        text = _field(document, field)
    except KeyError:
        fail(
            f"document must have the field {field!r}",
            f"none ({describe_fields(field, _names(document, field))})",
            "missing_field",
            _FIELD_REPAIR,
        )
    if not isinstance(text, str):
        fail(f"field {field!r} must be a text", f"{_kind(text)}: {shorten(text)}", "not_text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
        fail(f"field {field!r} must be encodable as UTF-8", found, "surrogate", _ENCODING_REPAIR)
    return text


def check_field(path: str, content: Content) -> None:
    """Look for the field in the first document of a file; a first line over 64 KiB is not checked.

    Raises:
        RecipeError: the first document has no such field, or it holds no text.
        BadRecordError: the first document has another fault.
    """
    field = content.field
    with open(path, "rb") as file:
        data = file.read(_CHECKED_BYTES)
        whole = len(data) < _CHECKED_BYTES
    lines = data.removeprefix(_BOM).split(b"\n")
    for number, line in enumerate(lines if whole else lines[:-1]):
        if not line.strip():
            continue
        try:
            parse_line(line, field, file=path, locator=-1, place=f"line {number + 1}")
        except BadRecordError as error:
            document = json.loads(line) if error.reason in ("missing_field", "not_text") else {}
            if error.reason == "missing_field":
                raise wrong_field(field, path, _names(document, field)) from error
            if error.reason == "not_text" and _field(document, field) is not None:
                raise wrong_type(field, path, _kind(_field(document, field))) from error
            if error.reason != "not_text":
                raise
        return


def _has_surrogate_escape(data: bytes) -> bool:
    r"""Say whether `\ud` occurs, in either case; several times faster than searching for both."""
    values = np.frombuffer(data, dtype=np.uint8)
    places = np.flatnonzero(values[:-2] == ord("\\"))
    marked = (values[places + 1] == ord("u")) & ((values[places + 2] | 0x20) == ord("d"))
    return bool(marked.any())


def _field(document: Any, field: str) -> Any:
    """Return a field by its exact name, or else by its dotted path; `KeyError` without one."""
    if field in document:
        return document[field]
    for name in field.split("."):
        if not isinstance(document, dict):
            raise KeyError(name)
        document = document[name]
    return document


def _names(document: dict[str, Any], field: str) -> list[str]:
    """Return the fields of a document, those of nested objects by dotted path if dots matter."""
    names: list[str] = []
    for name, value in document.items():
        if "." in field and isinstance(value, dict):
            names += [f"{name}.{inner}" for inner in value]
        else:
            names.append(name)
    return names


def _kind(value: Any) -> str:
    """Name a JSON value's type as JSON does."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    names = {str: "a text", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return names[type(value)]
