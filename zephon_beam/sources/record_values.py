"""From records as Python objects, as JSON and Avro give them, to the documents that they hold."""

import json
from base64 import b64encode
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.errors import BadRecordError
from zephon_beam.sources.documents import Content, TokenLists, fields_of
from zephon_beam.sources.faults import (
    RecordFaults,
    bad_record,
    describe_fields,
    wrong_field,
    wrong_type,
)
from zephon_beam.sources.token_lists import (
    TokenFault,
    describe,
    ids_of_list,
    join_lists,
    mask_of_list,
)

Array = npt.NDArray[Any]

_RERUN = "then run the recipe into a new place"


class DocumentBuilder:
    """Takes the documents out of records, one after the other."""

    def __init__(self, content: Content, faults: RecordFaults, *, file: str, what: str) -> None:
        """Build documents of one file; `what` is a record's name for people, e.g. `line`."""
        self._content = content
        self._faults = faults
        self._file = file
        self._what = what
        self._take = {
            "text": self._text,
            "messages": self._messages,
            "content": self._messages,
            "tokens": self._tokens,
        }[content.kind]
        self._texts: list[str] = []
        self._ids: list[Array] = []
        self._masks: list[Array] = []

    def add(self, record: Any, locator: int, place: str) -> None:
        """Take the document of a record; of one that has none, an empty one.

        Args:
            record: a mapping, with texts as `bytes` or `str`.
            locator: the document's locator.
            place: where it is, for people.

        Raises:
            BadRecordError: there is none, and faults raise.
        """
        try:
            self._texts.append(self._take(record, locator, place))
        except BadRecordError as error:
            self._faults.report(error, len(self._texts))
            self.add_nothing()

    def add_nothing(self) -> None:
        """Keep the place of a record that was reported as a fault."""
        self._texts.append("")
        if self._content.kind == "tokens":
            self._ids.append(np.zeros(0, np.uint32))
            self._masks.append(np.zeros(0, np.uint8))

    def finish(self) -> tuple[list[str], TokenLists | None]:
        """Return (texts, token lists if the documents are tokens)."""
        if self._content.kind != "tokens":
            return self._texts, None
        masks = self._masks if self._content.loss_mask is not None else None
        return self._texts, join_lists(self._ids, masks)

    def _text(self, record: Any, locator: int, place: str) -> str:
        field = self._content.field
        value = self._find(record, field, locator, place)
        try:
            if isinstance(value, bytes):
                return str(value, "utf-8")
            if isinstance(value, str):
                value.encode()
                return value
        except UnicodeDecodeError as error:
            found = f"byte 0x{error.object[error.start]:02x} at byte {error.start} of it"
            rule = f"field {field!r} must be valid UTF-8"
            raise self._fault(locator, place, rule, found, "utf8") from error
        except UnicodeEncodeError as error:
            found = f"the lone surrogate U+{ord(error.object[error.start]):04X}"
            rule = f"field {field!r} must be encodable as UTF-8"
            raise self._fault(locator, place, rule, found, "surrogate") from error
        rule = f"field {field!r} must be a text"
        raise self._fault(locator, place, rule, describe(value), "not_text")

    def _messages(self, record: Any, locator: int, place: str) -> str:
        field = self._content.field
        value = self._find(record, field, locator, place)
        try:
            text = messages_text(_decoded(parts_as_text(value, self._content.kind)))
            text.encode()
        except TypeError as error:
            items = "parts" if self._content.kind == "content" else "messages"
            rule = f"field {field!r} must be a list of {items}"
            raise self._fault(locator, place, rule, describe(value), f"not_{items}") from error
        except UnicodeError as error:
            rule = f"texts in field {field!r} must be valid UTF-8"
            raise self._fault(locator, place, rule, str(error), "utf8") from error
        return text

    def _tokens(self, record: Any, locator: int, place: str) -> str:
        content = self._content
        ids = ids_of_list(
            self._find(record, content.field, locator, place), content.field, content.id_limit
        )
        if isinstance(ids, TokenFault):
            raise self._fault(locator, place, *ids)
        mask: Array | TokenFault = np.zeros(0, np.uint8)
        if content.loss_mask is not None:
            value = self._find(record, content.loss_mask, locator, place)
            mask = mask_of_list(value, content.loss_mask, len(ids))
        if isinstance(mask, TokenFault):
            raise self._fault(locator, place, *mask)
        self._ids.append(ids)
        self._masks.append(mask)
        return ""

    def _find(self, record: Any, field: str, locator: int, place: str) -> Any:
        if not isinstance(record, dict):
            rule = "document must be a JSON object"
            raise self._fault(locator, place, rule, describe(record), "not_object")
        try:
            return find_field(record, field)
        except KeyError as error:
            rule = f"document must have the field {field!r}"
            found = f"none ({describe_fields(field, field_names(record, field))})"
            raise self._fault(locator, place, rule, found, "missing_field") from error

    def _fault(
        self, locator: int, place: str, rule: str, found: str, reason: str
    ) -> BadRecordError:
        repair = f"correct or remove the {self._what}, {_RERUN}"
        return bad_record(
            self._file, locator, place, rule=rule, found=found, reason=reason, repair=repair
        )


def find_field(record: Any, field: str) -> Any:
    """Return a field by its exact name, or else by its dotted path; `KeyError` without one."""
    if field in record:
        return record[field]
    for name in field.split("."):
        if not isinstance(record, dict) or name not in record:
            raise KeyError(name)
        record = record[name]
    return record


def field_names(record: dict[str, Any], field: str) -> list[str]:
    """Return the fields of a record, those of nested ones by dotted path if dots matter."""
    names: list[str] = []
    for name, value in record.items():
        if "." in field and isinstance(value, dict):
            names += [f"{name}.{inner}" for inner in value]
        else:
            names.append(name)
    return names


def check_lists(record: Any, path: str, content: Content) -> None:
    """Look for the lists of ids, and their loss mask, in the first record of a file.

    Raises:
        RecipeError: it has no such field, or the field holds something else; null may do.
    """
    fields = record if isinstance(record, dict) else {}
    for field, key in fields_of(content):
        try:
            value = find_field(fields, field)
        except KeyError as error:
            raise wrong_field(field, path, field_names(fields, field), key) from error
        is_list = isinstance(value, list) and set(map(type, value)) <= {int, bool}
        if value is not None and not is_list:
            raise wrong_type(field, path, describe(value), key)


def messages_text(value: Any) -> str:
    """Return a conversation as one JSON text: no spaces, keys in their order, no escapes needed.

    Raises:
        TypeError: it is no list of objects.
    """
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise TypeError("no list of objects")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def parts_as_text(value: Any, kind: str) -> Any:
    """Spell the bytes in parts of content, or of messages' content, as texts that JSON can hold.

    Raises:
        UnicodeError: a field that holds a text is not UTF-8.
    """
    if not _is_objects(value):
        return value
    if kind == "content":
        return [_part_as_text(part) for part in value]
    return [
        {
            name: [_part_as_text(part) for part in item]
            if name == "content" and _is_objects(item)
            else item
            for name, item in message.items()
        }
        for message in value
    ]


_TEXT_FIELDS = frozenset(
    ("type", "text", "path", "url", "base64", "member", "image", "video", "image_url", "video_url")
)


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _part_as_text(part: dict[str, Any]) -> dict[str, Any]:
    """Spell `bytes` as base64, and other fields as the texts that they are, if they are."""
    spelt: dict[str, Any] = {}
    for name, item in part.items():
        if isinstance(item, dict):
            spelt[name] = _part_as_text(item)
        elif not isinstance(item, bytes):
            spelt[name] = item
        elif name in _TEXT_FIELDS:
            spelt[name] = item.decode()
        else:
            try:
                spelt[name] = b64encode(item).decode() if name == "bytes" else item.decode()
            except UnicodeDecodeError:
                spelt[name] = b64encode(item).decode()
    return spelt


def _decoded(value: Any) -> Any:
    """Turn what Avro gave as bytes into texts."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    return value
