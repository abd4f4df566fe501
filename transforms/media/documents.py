"""Documents with images and videos, before they are packed and when they are decoded."""

from collections.abc import Sequence
from dataclasses import dataclass

from transforms.media.decoded import DecodedItem
from transforms.media.items import decode_items, probe_items
from zephon_beam.keyed import Field
from zephon_beam.media.content import MediaPart, TextPart, content_items, parse_content
from zephon_beam.media.conversation import IMAGE, VIDEO, conversation_items
from zephon_beam.recipe_media import MediaRecipe

Piece = tuple[str, bool, int]
"""A text, or (name of a token, True, how often it stands there)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbedDocument:
    """A document whose items are known.

    Of content, `pieces` are its texts, and special tokens with their numbers. Of a conversation
    they are its items, each named by its type with the number of its placeholders.
    """

    text: str
    """Of a conversation, as templates see it; else empty."""
    pieces: list[Piece]


def probe_document(
    text: str,
    root: str,
    media: MediaRecipe,
    archive: str | None = None,
    key: Sequence[Field] = (),
    kind: str = "content",
) -> ProbedDocument:
    """Find out what the items of a document will be.

    Args:
        text: the JSON of its content, or of its messages.
        root: of the data set.
        media: the recipe.
        archive: name of the document's own file, if its members may be items.
        key: of the document, from which chances are drawn.
        kind: `content` or `messages`.

    Raises:
        MediaFault: its content or an item can never be used; the item is named.
        OSError: a file cannot be read now.
    """
    if kind == "messages":
        shown, items = conversation_items(text, root, archive)
        found = probe_items(items, root, media, key)
        names = [VIDEO if item.is_video else IMAGE for item in found]
        counts = [item.tokens for item in found]
        pieces = [(name, True, count) for name, count in zip(names, counts, strict=True)]
        return ProbedDocument(text=shown, pieces=pieces)
    parts = parse_content(text, root, archive)
    tokens = iter(probe_items(content_items(parts), root, media, key))
    start, end = media.token("start"), media.token("end")
    pieces = []
    for part in parts:
        if isinstance(part, TextPart):
            pieces.append((part.text, False, 0))
        elif isinstance(part, MediaPart):
            placeholder = media.token("video" if part.is_video else "image")
            around = [(start, True, 1)] if start else [], [(end, True, 1)] if end else []
            pieces += [*around[0], (placeholder, True, next(tokens).tokens), *around[1]]
    return ProbedDocument(text="", pieces=pieces)


def decode_document(
    text: str,
    root: str,
    media: MediaRecipe,
    archive: str | None = None,
    key: Sequence[Field] = (),
    kind: str = "content",
) -> list[DecodedItem]:
    """Decode the items of a document, in order, as they were probed; see `probe_document`.

    Raises:
        MediaFault: the document would not have passed probing.
        OSError: a file cannot be read now.
    """
    if kind == "messages":
        items = conversation_items(text, root, archive)[1]
    else:
        items = content_items(parse_content(text, root, archive))
    return decode_items(items, root, media, key)
