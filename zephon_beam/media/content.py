"""Interleaved content: the list of texts, images and videos that a document is.

    [{"type": "text", "text": "A cat:"}, {"type": "image", "path": "cats/7.jpg"}, …]

An item names its file relative to the data set's root, or holds its bytes as base64. No path
leads out of the root: a recipe that runs on other people's data must not read other files. What
names neither is looked for as chat datasets spell it:

    {"type": "image", "image": "cats/7.jpg"}                     a path, an address or a data: URL
    {"type": "image", "image": {"bytes": …, "path": "7.jpg"}}    as Hugging Face `datasets` stores
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}
"""

import binascii
import json
import os
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zephon_beam.errors import ZephonBeamError

_SOURCES = ("path", "url", "base64", "bytes", "range")
_KINDS = {"image": "image", "image_url": "image", "video": "video", "video_url": "video"}
"""Types of items, and what they are."""
_DATA = "data:"
_BASE64 = ";base64"


class MediaFault(ZephonBeamError, ValueError):
    """A document's content or one of its media can never be used."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """One word for programs."""

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the reason when a worker process sends the error to its parent."""
        return MediaFault, (self.reason, str(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPart:
    """A stretch of text."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaPart:
    """An image or a video, by exactly one of three sources."""

    is_video: bool
    path: str | None = None
    """Relative to the data set's root."""
    data: bytes | None = None
    range: tuple[int, int] | None = None
    """First byte and number of bytes within `path`, an archive; None: the whole file."""


ContentPart = TextPart | MediaPart


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedItem:
    """An item and where it stands in its document."""

    number: int
    """Tells it apart from the others of its document, for what is left to chance."""
    where: str
    """For people."""
    part: MediaPart

    def named(self, fault: MediaFault) -> MediaFault:
        """Say which item a fault is of."""
        path = f" ({self.part.path})" if self.part.path is not None else ""
        return MediaFault(fault.reason, f"{self.where}{path}: {fault}")


def parse_content(text: str, root: str, archive: str | None = None) -> list[ContentPart]:
    """Read the parts of a document.

    Args:
        text: the JSON of its content.
        root: of the data set; a `url` must begin with it.
        archive: name of the document's own file, if its members may be items.

    Raises:
        MediaFault: not a list of parts, or one that is none.
    """
    parts: list[ContentPart] = []
    for number, entry in enumerate(json.loads(text)):
        try:
            parts.append(parse_part(entry, root, archive))
        except MediaFault as fault:
            raise MediaFault(fault.reason, f"part {number} {fault}") from fault
    if not parts:
        raise MediaFault("content", "content must have at least one part, got none")
    return parts


def content_items(parts: Sequence[ContentPart]) -> list[PlacedItem]:
    """Return the items among the parts of a document, in order."""
    return [
        PlacedItem(number=number, where=f"part {number}", part=part)
        for number, part in enumerate(parts)
        if isinstance(part, MediaPart)
    ]


def resolve_path(root: str, path: str) -> str:
    """Return where a file of a data set is.

    Raises:
        MediaFault: the path, or a link in it, leads out of the root.
    """
    pieces = path.split("/")
    if not path or path.startswith("/") or "\\" in path or "\0" in path or "://" in path:
        raise MediaFault("outside", f"path must be relative to the data set's root, got {path!r}")
    if ".." in pieces or "" in pieces[:-1]:
        raise MediaFault("outside", f"path must have no empty or '..' steps, got {path!r}")
    if "://" in root:
        return f"{root.rstrip('/')}/{path}"
    joined = os.path.join(root, path)
    real_root = os.path.realpath(root)
    if os.path.commonpath((real_root, os.path.realpath(joined))) != real_root:
        raise MediaFault(
            "outside", f"path must lead to a file below the data set's root, got the link {path!r}"
        )
    return joined


def parse_part(entry: Mapping[str, Any], root: str, archive: str | None = None) -> ContentPart:
    """Read one part; see `parse_content`.

    Raises:
        MediaFault: it is none; the message begins with what it must have.
    """
    kind = entry.get("type")
    if kind == "text":
        text = entry.get("text")
        if not isinstance(text, str):
            raise MediaFault("content", f"must have a text in `text`, got {type(text).__name__}")
        return TextPart(text=text)
    if kind not in _KINDS:
        raise MediaFault("content", f"must have a `type` of text, image or video, got {kind!r}")
    name, value = _source(entry, _KINDS[kind])
    is_video = _KINDS[kind] == "video"
    if name == "range":
        if archive is None:
            raise MediaFault("content", "must have no `range`, for its file is no archive")
        return MediaPart(is_video=is_video, path=archive, range=_range(value))
    if not isinstance(value, str):
        raise MediaFault("content", f"must have a text in `{name}`, got {value!r:.60}")
    if name == "path":
        return MediaPart(is_video=is_video, path=value)
    if name == "url" and not value.startswith(_DATA):
        prefix = root.rstrip("/") + "/"
        if "://" not in root or not value.startswith(prefix):
            raise MediaFault(
                "outside",
                f"must have a `url` below the data set's root {root!r}, got {value!r:.200}",
            )
        return MediaPart(is_video=is_video, path=value[len(prefix) :])
    if name == "url":
        head, _, value = value.partition(",")
        if not head.endswith(_BASE64):
            raise MediaFault("content", f"must have base64 in its data: URL, got {head!r:.60}")
    try:
        return MediaPart(is_video=is_video, data=b64decode(value, validate=True))
    except (binascii.Error, ValueError) as error:
        raise MediaFault("content", f"must have base64 in `{name}` ({error})") from error


def _source(entry: Mapping[str, Any], kind: str) -> tuple[str, Any]:
    """Return (key, value) of what an item is read from, in our spelling or in that of others."""
    given = [name for name in _SOURCES if entry.get(name) is not None]
    other = next((entry[key] for key in (kind, f"{kind}_url") if entry.get(key) is not None), None)
    if not given and isinstance(other, Mapping):
        inner = {name: other[name] for name in _SOURCES[:4] if other.get(name) is not None}
        # The path beside bytes is that of the file which they once were.
        inner = {"bytes": inner["bytes"]} if "bytes" in inner else inner
        return _source(inner, kind)
    if not given and isinstance(other, str):
        return "url" if "://" in other or other.startswith(_DATA) else "path", other
    if len(given) != 1:
        raise MediaFault("content", f"must have one of {', '.join(_SOURCES[:4])}, got {given}")
    return given[0], entry[given[0]]


def _range(value: Any) -> tuple[int, int]:
    valid = isinstance(value, list) and len(value) == 2
    if not valid or not all(type(number) is int and number >= 0 for number in value):
        raise MediaFault("content", f"must have two numbers in `range`, got {value!r:.60}")
    return value[0], value[1]
