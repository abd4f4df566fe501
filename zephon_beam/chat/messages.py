"""Conversations as they are read: a list of messages, checked before a template sees them."""

import json
from typing import Any

from zephon_beam.errors import BadRecordError

Message = dict[str, Any]

ASSISTANT = "assistant"
"""Role whose turns are learned."""

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's thoughts; the first is the one that most templates read."""
_SHOWN_CHARACTERS = 60


def parse_conversation(text: str) -> list[Message]:
    """Check a conversation and bring it into the form that templates expect.

    As in Transformers, fields that are null are left out, for templates ask whether a field is
    there, and thoughts are given under both names that templates read. Any other field, such as
    `tool_calls` or `name`, is kept as it is.

    Args:
        text: JSON of a list of objects, each with a `role` and a text `content`, which may be
            null or missing where the message has tool calls or thoughts.

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
    return [_check_message(place, message) for place, message in enumerate(found)]


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


def _check_message(place: int, message: Any) -> Message:
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
    if content is not None and not isinstance(content, str):
        raise _fault(f"content of message {place} must be a text, got {_shown(content)}")
    if thoughts is None:
        return kept
    return {"thinking": thoughts, **kept, "reasoning_content": thoughts}


def _fault(message: str) -> BadRecordError:
    return BadRecordError(message, reason="messages")


def _shown(value: Any) -> str:
    text = "null" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
