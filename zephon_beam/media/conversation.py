"""Images and videos in conversations: messages whose content is a list of parts.

    {"role": "user", "content": [{"type": "image", "path": "7.jpg"}, {"type": "text", "text": "?"}]}

The chat template writes one placeholder for each item, wherever its family puts it; what it sees
of an item is its type. Items are told by their order, as by the processors of Transformers.
"""

import json
from typing import Any

from zephon_beam.media.content import MediaFault, MediaPart, PlacedItem, TextPart, parse_part

IMAGE, VIDEO = "image", "video"
"""Types of items, as templates know them."""


def conversation_items(
    text: str, root: str, archive: str | None = None
) -> tuple[str, list[PlacedItem]]:
    """Take the items out of a conversation.

    Args:
        text: the JSON of its messages.
        root: of the data set; a `url` must begin with it.
        archive: name of the document's own file, if its members may be items.

    Returns:
        (the conversation as templates see it, its items in order). Parts are left with their type,
        texts without fields that are null, for templates ask whether a field is there. What is no
        list of messages is returned as it is.

    Raises:
        MediaFault: a part is none.
    """
    messages = json.loads(text)
    if not any(isinstance(message.get("content"), list) for message in messages):
        return text, []
    items: list[PlacedItem] = []
    shown = []
    for place, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            where = f"message {place}"
            message = {**message, "content": _shown(content, where, root, archive, items)}
        shown.append(message)
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")), items


def _shown(
    content: list[Any], where: str, root: str, archive: str | None, items: list[PlacedItem]
) -> list[dict[str, Any]]:
    """Return the parts of a message as templates see them, and add its items to the others."""
    shown: list[dict[str, Any]] = []
    for number, entry in enumerate(content):
        place = f"part {number} of {where}"
        if not isinstance(entry, dict):
            raise MediaFault("content", f"{place} must be an object, got {type(entry).__name__}")
        try:
            part = parse_part(entry, root, archive)
        except MediaFault as fault:
            raise MediaFault(fault.reason, f"{place} {fault}") from fault
        if isinstance(part, TextPart):
            shown.append({key: value for key, value in entry.items() if value is not None})
        elif isinstance(part, MediaPart):
            shown.append({"type": VIDEO if part.is_video else IMAGE})
            items.append(PlacedItem(number=len(items), where=place, part=part))
    return shown
