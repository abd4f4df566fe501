"""Interleaved content: the list of texts, images and videos that a document is.

    [{"type": "text", "text": "A cat:"}, {"type": "image", "path": "cats/7.jpg"}, …]

An item names its file relative to the data set's root, or holds its bytes as base64. No path
leads out of the root: a recipe that runs on other people's data must not read other files.
"""

import binascii
import json
import os
from base64 import b64decode
from dataclasses import dataclass
from typing import Any

from zephon_beam.errors import ZephonBeamError

_SOURCES = ("path", "url", "base64", "bytes", "range")


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
            parts.append(_part(entry, root, archive))
        except MediaFault as fault:
            raise MediaFault(fault.reason, f"part {number} {fault}") from fault
    if not parts:
        raise MediaFault("content", "content must have at least one part, got none")
    return parts


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


def _part(entry: Any, root: str, archive: str | None) -> ContentPart:
    kind = entry.get("type")
    if kind == "text":
        text = entry.get("text")
        if not isinstance(text, str):
            raise MediaFault("content", f"must have a text in `text`, got {type(text).__name__}")
        return TextPart(text=text)
    if kind not in ("image", "video"):
        raise MediaFault("content", f"must have a `type` of text, image or video, got {kind!r}")
    given = [name for name in _SOURCES if entry.get(name) is not None]
    if len(given) != 1:
        raise MediaFault("content", f"must have one of {', '.join(_SOURCES[:4])}, got {given}")
    value = entry[given[0]]
    is_video = kind == "video"
    if given[0] == "range":
        if archive is None:
            raise MediaFault("content", "must have no `range`, for its file is no archive")
        return MediaPart(is_video=is_video, path=archive, range=_range(value))
    if not isinstance(value, str):
        raise MediaFault("content", f"must have a text in `{given[0]}`, got {value!r:.60}")
    if given[0] == "path":
        return MediaPart(is_video=is_video, path=value)
    if given[0] == "url":
        prefix = root.rstrip("/") + "/"
        if "://" not in root or not value.startswith(prefix):
            raise MediaFault(
                "outside",
                f"must have a `url` below the data set's root {root!r}, got {value!r:.200}",
            )
        return MediaPart(is_video=is_video, path=value[len(prefix) :])
    try:
        return MediaPart(is_video=is_video, data=b64decode(value, validate=True))
    except (binascii.Error, ValueError) as error:
        raise MediaFault("content", f"must have base64 in `{given[0]}` ({error})") from error


def _range(value: Any) -> tuple[int, int]:
    valid = isinstance(value, list) and len(value) == 2
    if not valid or not all(type(number) is int and number >= 0 for number in value):
        raise MediaFault("content", f"must have two numbers in `range`, got {value!r:.60}")
    return value[0], value[1]
