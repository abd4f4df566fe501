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
from zephon_beam.sources.places import opened_file
from zephon_beam.sources.record_values import DocumentBuilder, check_lists, messages_text

_BOM = b"\xef\xbb\xbf"
_SPACE = " \t\r"
_FIRST_STEP = 8 * 1024
_LAST_STEP = 64 * 1024 * 1024
_STEP_GROWTH = 4
CHECKED_BYTES = 64 * 1024
"""How much of a file is looked at before any work."""
_DEEPEST = 256

_RERUN = "then run the recipe into a new place"
_ENCODING_REPAIR = f"write the file as UTF-8, {_RERUN}"


class _Branched(dict[str, Any]):
    """An object that holds a container, so that its line may be nested deeply."""


def _mark_branched(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its fields, those included that later ones of the same name replace."""
    kind: type[dict[str, Any]] = dict
    for _, value in pairs:
        if isinstance(value, (dict, list)):
            kind = _Branched
    return kind(pairs)


_decode = json.JSONDecoder().raw_decode
_decode_marked = json.JSONDecoder(object_pairs_hook=_mark_branched).raw_decode


def read(source: SourceFile, part: Part, faults: RecordFaults) -> FileDocuments:
    """Read the documents whose lines start in the byte range of a chunk.

    Raises:
        BadRecordError: a line is no JSON object with a text in the field, and faults raise.
        DriftError: the file is not that of the catalog.
    """
    data, offset = read_lines(source, part.chunk.start, part.chunk.stop)
    where = f"chunk {part.chunk.chunk}"
    return parse_lines(data, offset, part.content, faults, file=source.name, where=where)


def read_lines(source: SourceFile, start: int, stop: int) -> tuple[bytes, int]:
    """Read the whole lines whose first byte is in [start, stop).

    One read of the range and the byte before it, which says whether a line starts at `start`, then
    growing steps until the last line ends.

    Returns:
        (the lines, offset of their first byte in the file).
    """
    first = max(0, start - 1)
    data = source.read(first, stop - first)
    skipped = data.find(b"\n") + 1 if start else 0
    if start and (not skipped or first + skipped >= stop):
        return b"", stop
    # Joining a view copies a chunk once; slicing it before would be another time.
    pieces: list[bytes | memoryview] = [memoryview(data)[skipped:]]
    position, step, is_whole = stop, _FIRST_STEP, data.endswith(b"\n")
    while not is_whole and position < source.size:
        piece = source.read(position, min(step, source.size - position))
        position += len(piece)
        step = min(step * _STEP_GROWTH, _LAST_STEP)
        end = piece.find(b"\n") + 1
        pieces.append(piece[:end] if end else piece)
        is_whole = bool(end)
    return b"".join(pieces), first + skipped


def parse_lines(
    data: bytes, offset: int, content: Content, faults: RecordFaults, *, file: str, where: str
) -> FileDocuments:
    """Parse whole lines.

    Args:
        data: the lines.
        offset: place of their first byte in the file.
        content: which field holds the document; dots lead into nested objects unless the object
            has a field of just that name.
        faults: what becomes of bad lines.
        file: the file's name, for messages.
        where: what lines are counted in, for messages.

    Returns:
        The documents; of conversations, the JSON of `messages_text`.

    Raises:
        BadRecordError: a line is no JSON object with a text in the field, and faults raise.
    """
    if content.kind == "tokens":
        builder = DocumentBuilder(content, faults, file=file, what="line")
        return _parse_token_lines(data, offset, builder, faults, file=file, where=where)
    field = content.field
    texts: list[str] = []
    locators: list[int] = []
    simple = "." not in field
    is_text = content.kind == "text"
    decode = _decode_marked if is_text else _decode
    next_offset = offset
    if is_text and simple and data.isascii():
        texts, starts = _parse_plain_lines(data, field)
        locators = [offset + start for start in starts[:-1]]
        next_offset += starts[-1]
        data = data[starts[-1] :]
    for number, line in enumerate(data.split(b"\n"), len(texts)):
        line_offset = next_offset
        next_offset += len(line) + 1
        if line_offset == 0 and line.startswith(_BOM):
            line = line[len(_BOM) :]
        if not line or line.isspace():
            continue
        try:
            decoded = line.decode()
            document, end = decode(decoded)
            if not (is_text and type(document) is dict) and _is_deep(line):
                raise RecursionError("nested too deeply")
            text = document[field] if simple else _field(document, field)
            if not is_text:
                text = messages_text(text)
            valid = type(text) is str and (end == len(decoded) or not decoded[end:].strip(_SPACE))
            if valid and not text.isascii():
                # A lone surrogate is no text that UTF-8 knows.
                text.encode()
        except (ValueError, KeyError, TypeError, RecursionError):
            valid, text = False, ""
        if not valid:
            place = f"byte {line_offset}, line {number + 1} of {where}"
            try:
                text = parse_object(line, content, file=file, locator=line_offset, place=place)
            except BadRecordError as error:
                faults.report(error, len(texts))
                text = ""
        texts.append(text)
        locators.append(line_offset)
    return FileDocuments(texts=texts, locators=np.array(locators, dtype=np.int64))


def _parse_plain_lines(data: bytes, field: str) -> tuple[list[str], list[int]]:
    """Parse lines of ASCII as far as each is an object with a text in the field, and nothing else.

    Characters are bytes there, so lines are decoded all at once and parsed in place.

    Returns:
        (texts, place of the first byte of each line and of the first one that is not parsed).
    """
    lines = data.decode("ascii")
    texts: list[str] = []
    starts = [0]
    start, size = 0, len(lines)
    while start < size:
        stop = lines.find("\n", start)
        if stop < 0:
            stop = size
        try:
            document, end = _decode_marked(lines, start)
            text = document[field]
            if end != stop or type(text) is not str:
                break
            if type(document) is not dict and _is_deep(data[start:stop]):
                break
            if not text.isascii():
                text.encode()
        except (ValueError, KeyError, TypeError, RecursionError):
            # What is wrong, or only unusual, is for the caller to say.
            break
        texts.append(text)
        start = min(stop + 1, size)
        starts.append(start)
    return texts, starts


def parse_object(
    data: bytes, content: Content, *, file: str, locator: int, place: str, thing: str = "line"
) -> str:
    """Return the document in one JSON object, or say what is wrong with it.

    Args:
        data: the object.
        content: which field holds the document.
        file: the file's name, for messages.
        locator: the document's locator.
        place: where the object is, for people.
        thing: what holds the object, for people.

    Raises:
        BadRecordError: with a `reason` of `utf8`, `json`, `not_object`, `missing_field`,
            `not_text`, `not_messages`, `not_parts` or `surrogate`.
    """
    field, kind = content.field, content.kind
    what = f"field {field!r}" if field else "document"
    line_repair = f"correct or remove the {thing}, {_RERUN}"

    def fail(rule: str, found: str, reason: str, repair: str = line_repair) -> NoReturn:
        raise bad_record(file, locator, place, rule=rule, found=found, reason=reason, repair=repair)

    document = parse_value(data, file=file, locator=locator, place=place, thing=thing)
    if not isinstance(document, dict) and field:
        found = f"{_kind(document)}: {shorten(document)}"
        fail("document must be a JSON object", found, "not_object")
    try:
        value = _field(document, field) if field else document
    except KeyError:
        fail(
            f"document must have the field {field!r}",
            f"none ({describe_fields(field, _names(document, field))})",
            "missing_field",
            f"correct `{kind}` in the recipe, or the {thing}, {_RERUN}",
        )
    try:
        text = value if kind == "text" else messages_text(value)
        if not isinstance(text, str):
            found = f"{_kind(value)}: {shorten(value)}"
            fail(f"{what} must be a text", found, "not_text")
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        found = f"the lone surrogate U+{code:04X} at character {error.start}"
        fail(f"{what} must be encodable as UTF-8", found, "surrogate", _ENCODING_REPAIR)
    except TypeError:
        found = f"{_kind(value)}: {shorten(value)}"
        items = "parts" if kind == "content" else "messages"
        fail(f"{what} must be a list of {items}", found, f"not_{items}")
    return text


def parse_value(data: bytes, *, file: str, locator: int, place: str, thing: str) -> Any:
    """Return one JSON value, or say what is wrong with it.

    Raises:
        BadRecordError: with a `reason` of `utf8` or `json`.
    """

    def fail(rule: str, found: str, reason: str, repair: str) -> NoReturn:
        raise bad_record(file, locator, place, rule=rule, found=found, reason=reason, repair=repair)

    repair = f"correct or remove the {thing}, {_RERUN}"
    if _is_deep(data):
        found = f"{shorten(data)}, which is nested more deeply"
        fail(f"document must be nested at most {_DEEPEST} levels deep", found, "json", repair)
    try:
        return json.loads(data.decode())
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at byte {error.start} of the {thing}"
        fail("document must be valid UTF-8", found, "utf8", _ENCODING_REPAIR)
    except ValueError as error:
        fail("document must be valid JSON", f"{shorten(data)} ({error})", "json", repair)


def _parse_token_lines(
    data: bytes,
    offset: int,
    builder: DocumentBuilder,
    faults: RecordFaults,
    *,
    file: str,
    where: str,
) -> FileDocuments:
    """Parse whole lines whose documents are lists of ids."""
    locators: list[int] = []
    next_offset = offset
    for number, line in enumerate(data.split(b"\n")):
        line_offset = next_offset
        next_offset += len(line) + 1
        if line_offset == 0:
            line = line.removeprefix(_BOM)
        if not line or line.isspace():
            continue
        place = f"byte {line_offset}, line {number + 1} of {where}"
        try:
            record = parse_value(line, file=file, locator=line_offset, place=place, thing="line")
            builder.add(record, line_offset, place)
        except BadRecordError as error:
            faults.report(error, len(locators))
            builder.add_nothing()
        locators.append(line_offset)
    texts, tokens = builder.finish()
    return FileDocuments(texts=texts, locators=np.array(locators, dtype=np.int64), tokens=tokens)


def check_field(path: str, content: Content) -> None:
    """Look for the field in the first document of a file; a first line over 64 KiB is not checked.

    Raises:
        RecipeError: the first document has no such field, or it holds no text.
        BadRecordError: the first document has another fault.
    """
    with opened_file(path) as file:
        data = file.pread(CHECKED_BYTES, 0)
        whole = len(data) < CHECKED_BYTES
    check_lines(data, path, content, whole=whole)


def check_lines(data: bytes, path: str, content: Content, *, whole: bool) -> None:
    """Look for the field in the first document among the first bytes of a file.

    Args:
        data: the bytes.
        path: path of the file, for messages.
        content: which field holds the document.
        whole: whether there are no more bytes.

    Raises:
        RecipeError: the first document has no such field, or it holds something else.
        BadRecordError: the first document has another fault.
    """
    lines = data.removeprefix(_BOM).split(b"\n")
    for number, line in enumerate(lines if whole else lines[:-1]):
        if not line.strip():
            continue
        check_object(line, path, content, place=f"line {number + 1}", thing="line")
        return


def check_object(data: bytes, path: str, content: Content, *, place: str, thing: str) -> None:
    """Look for the field in one JSON object; one that is null there may do.

    Raises:
        RecipeError: it has no such field, or the field holds something else.
        BadRecordError: it has another fault.
    """
    field, kind = content.field, content.kind
    if kind == "tokens":
        record = parse_value(data, file=path, locator=-1, place=place, thing=thing)
        check_lists(record, path, content)
        return
    try:
        parse_object(data, content, file=path, locator=-1, place=place, thing=thing)
    except BadRecordError as error:
        if error.reason == "missing_field":
            raise wrong_field(field, path, _names(json.loads(data), field), kind) from error
        if error.reason not in ("not_text", "not_messages", "not_parts"):
            raise
        document = json.loads(data)
        value = _field(document, field) if field else document
        if value is not None:
            raise wrong_type(field, path, _kind(value), kind) from error


def _is_deep(data: bytes) -> bool:
    """Say whether brackets nest beyond a fixed depth.

    Python's own limit depends on its version and on how deep the caller's stack is, so what it
    refuses on one machine it may read on another.
    """
    if data.count(b"[") + data.count(b"{") <= _DEEPEST:
        return False
    # Without escapes every other piece between quotes lies in a text.
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    values = np.frombuffer(b"".join(bare.split(b'"')[::2]), dtype=np.uint8) | 0x20
    is_open = values[(values == ord("{")) | (values == ord("}"))] == ord("{")
    depth = np.cumsum(np.where(is_open, 1, -1))
    return bool(depth.max(initial=0) > _DEEPEST)


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
