"""Samples of an archive that are documents with images and videos.

    content: jpg+txt        the image in KEY.jpg, then the text in KEY.txt
    content: json.parts     the list of parts in KEY.json, which name members: {"member": "jpg"}

A member that is an image or a video is never read here: a document says where its bytes lie in the
archive, which is not compressed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zephon_beam.errors import RecipeError
from zephon_beam.sources.documents import Content

IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm")
VIDEOS = ("mp4", "m4v", "mov", "mkv", "webm", "avi", "ts", "mpg", "mpeg", "ogv", "flv")
_JOINT = "+"

Range = tuple[int, int]
"""(first byte of a member's content in the archive, bytes)."""


class MissingMemberError(LookupError):
    """A sample lacks a member that its document names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleContent:
    """Which members of a sample its document is made of."""

    document: Content
    """The member that is read: the text, or the list of parts."""
    names: tuple[str, ...]
    """Fields in the order of the parts, in lower case; empty: the list of parts says."""


def sample_content(content: Content) -> SampleContent:
    """Read what a recipe says of a data set of archives.

    Raises:
        RecipeError: several members are joined, and not exactly one of them is a text.
    """
    if content.kind != "content" or _JOINT not in content.field:
        return SampleContent(document=content, names=())
    names = content.field.split(_JOINT)
    texts = [name for name in names if media_kind(name) is None]
    if len(texts) != 1 or "" in names:
        raise RecipeError(
            "content must join images and videos with exactly one text, got "
            f"{content.field!r}, of which {texts} are texts; write e.g. content: jpg+txt, or name "
            "a JSON member that lists the parts"
        )
    document = replace(content, kind="text", field=texts[0])
    return SampleContent(
        document=document, names=tuple(name if name in texts else name.lower() for name in names)
    )


def media_kind(name: str) -> str | None:
    """Return `image` or `video` by the ending of a field's name; None: a text."""
    ending = name.lower().rsplit(".", 1)[-1]
    return "image" if ending in IMAGES else "video" if ending in VIDEOS else None


def content_text(text: str, content: SampleContent, ranges: Mapping[str, Range]) -> str:
    """Return the JSON of a sample's parts, with members as places in the archive.

    Args:
        text: of the member that was read.
        content: what the recipe says.
        ranges: of each member, by its field.

    Raises:
        MissingMemberError: there is no member of a name.
    """
    if content.names:
        parts: list[Any] = [
            {"type": "text", "text": text}
            if media_kind(name) is None
            else {"type": media_kind(name), "range": _range(name, ranges)}
            for name in content.names
        ]
    else:
        parts = [_placed(part, ranges) for part in json.loads(text)]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def messages_of_sample(text: str, ranges: Mapping[str, Range]) -> str:
    """Return the JSON of a sample's messages, with members as places in the archive.

    Args:
        text: of the member that was read.
        ranges: of each member, by its field.

    Raises:
        MissingMemberError: there is no member of a name.
    """
    messages = json.loads(text)
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            message["content"] = [_placed(part, ranges) for part in content]
    return json.dumps(messages, ensure_ascii=False, separators=(",", ":"))


def _placed(part: Any, ranges: Mapping[str, Range]) -> Any:
    """Replace the name of a member by its place."""
    if not isinstance(part, dict) or part.get("member") is None:
        return part
    placed = {key: value for key, value in part.items() if key != "member"}
    return {**placed, "range": _range(str(part["member"]).lower(), ranges)}


def _range(name: str, ranges: Mapping[str, Range]) -> Range:
    found = ranges.get(name)
    if found is None:
        raise MissingMemberError(name)
    return found
