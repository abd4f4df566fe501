"""Conversations as they are read: a list of messages, checked before a template sees them."""

import json
import re
from typing import Any

from zephon_beam.errors import BadRecordError

Message = dict[str, Any]

ASSISTANT = "assistant"
"""Role whose turns are learned."""

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's thoughts; the first is the one that most templates read."""
_SHOWN_CHARACTERS = 60


class Parts(list[dict[str, Any]]):
    """A message's content in parts, which no template may write as if it were one text."""

    def __str__(self) -> str:
        """Refuse to be written.

        Raises:
            TypeError: always; what Python shows of a list is not what a message says.
        """
        raise TypeError("it knows no content in parts, and would write them as Python does")


def parse_conversation(text: str, *, with_media: bool = False) -> list[Message]:
    """Check a conversation and bring it into the form that templates expect.

    As in Transformers, fields that are null are left out, for templates ask whether a field is
    there, and thoughts are given under both names that templates read. Any other field, such as
    `tool_calls` or `name`, is kept as it is.

    Args:
        text: JSON of a list of objects, each with a `role` and a text `content`, which may be
            null or missing where the message has tool calls or thoughts. Content may also be a list
            of parts: `{"type": "text", "text": …}`.
        with_media: whether parts may be images and videos, too, of which only the type is given.

    Returns:
        The messages, at least one.

    Raises:
        BadRecordError: of reason `messages`; it names the message and says nothing of the file.

    Source: `_normalize_chat_messages` and `_alias_reasoning_fields` of Transformers 5.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _fault(f"conversation must be valid JSON, got {error}") from error
    if not isinstance(found, list):
        raise _fault(f"conversation must be a list of messages, got {_shown(found)}")
    if not found:
        raise _fault("conversation must have at least one message, got an empty list")
    return [_check_message(place, message, with_media) for place, message in enumerate(found)]


def assistant_places(messages: list[Message]) -> list[int]:
    """Return the places of the assistant's messages, in order."""
    return [place for place, message in enumerate(messages) if message["role"] == ASSISTANT]


def all_text(messages: list[Message]) -> str:
    """Join every text of a conversation, names of fields among them, by NUL characters.

    Raises:
        BadRecordError: one of them is no Unicode text.
    """
    texts: list[str] = []
    pending: list[Any] = [messages]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            texts += value
            pending += value.values()
    joined = "\0".join(texts)
    try:
        joined.encode()
    except UnicodeEncodeError as error:
        found = f"U+{ord(joined[error.start]):04X}"
        raise _fault(f"conversation must be Unicode text, got half a character: {found}") from error
    return joined


def refuse_spelt_tokens(messages: list[Message], special: "re.Pattern[str]") -> None:
    """Refuse parts whose texts spell a special token together: a template joins them.

    Args:
        messages: of a conversation.
        special: finds the text of special tokens.

    Raises:
        BadRecordError: of reason `forged`.
    """
    for place, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, Parts):
            continue
        texts = [part["text"] for part in content if part["type"] == "text"]
        for pieces in (texts, [text.strip() for text in texts]):
            edges, length = set(), 0
            for piece in pieces:
                length += len(piece)
                edges.add(length)
            for found in special.finditer("".join(pieces)):
                if any(edge in edges for edge in range(found.start() + 1, found.end())):
                    raise BadRecordError(
                        f"texts of message {place} must not spell a special token together, got "
                        f"{found.group()!r}",
                        reason="forged",
                    )


def _check_message(place: int, message: Any, with_media: bool) -> Message:
    if not isinstance(message, dict):
        raise _fault(f"message {place} must be an object, got {_shown(message)}")
    kept = {key: value for key, value in message.items() if value is not None}
    role = kept.get("role")
    if not isinstance(role, str) or not role:
        raise _fault(
            f"message {place} must have a role such as user or assistant, got "
            f"{_shown(role)} among the fields {', '.join(map(repr, message)) or 'none'}"
        )
    content = kept.get("content")
    thoughts = next((kept[name] for name in _REASONING if name in kept), None)
    if content is None and not kept.get("tool_calls") and thoughts is None:
        raise _fault(
            f"message {place} must have content, tool_calls or reasoning_content, got none"
        )
    if isinstance(content, list):
        kept["content"] = Parts(
            _check_part(f"part {number} of message {place}", part, with_media)
            for number, part in enumerate(content)
        )
    elif content is not None and not isinstance(content, str):
        raise _fault(f"content of message {place} must be a text, got {_shown(content)}")
    if thoughts is None:
        return kept
    return {"thinking": thoughts, **kept, "reasoning_content": thoughts}


def _check_part(where: str, part: Any, with_media: bool) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise _fault(f"{where} must be an object, got {_shown(part)}")
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return {key: value for key, value in part.items() if value is not None}
    if with_media and kind in ("image", "video"):
        return {"type": kind}
    if kind == "text":
        raise _fault(f"{where} must have a text in `text`, got {_shown(part.get('text'))}")
    others = "text, image or video" if with_media else "text where the recipe has no `media`"
    raise _fault(f"{where} must have a `type` of {others}, got {_shown(kind)}")


def _fault(message: str) -> BadRecordError:
    return BadRecordError(message, reason="messages")


def _shown(value: Any) -> str:
    text = "null" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
