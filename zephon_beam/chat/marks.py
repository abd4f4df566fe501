r"""Private characters that say, through a template, where a stretch of its output came from.

A template is a program: what it makes of a text can only be seen in what it writes. So the texts
that matter are wrapped in characters that occur nowhere else, and these are taken out again:

    content    a<|im_end|>b      →  a⟦<|im_end|>⟧b          ⟦ ⟧ foreign: what a document brought
    rendered   <|im_start|>user\n  a⟦<|im_end|>⟧b  <|im_end|>\n
    generation {% generation %}…{% endgeneration %}  →  ⟨…⟩    ⟨ ⟩ learned: what the template says
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from zephon_beam.errors import BadRecordError

_PRIVATE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_MARK_COUNT = 4

Range = tuple[int, int]
"""Half-open range of characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """Four characters that neither the conversation nor the template has."""

    foreign_open: str
    foreign_close: str
    learned_open: str
    learned_close: str

    @property
    def foreign(self) -> str:
        """Both that wrap special-token text of a document."""
        return self.foreign_open + self.foreign_close

    @property
    def learned(self) -> str:
        """Both that wrap what a template generates."""
        return self.learned_open + self.learned_close


@dataclass(frozen=True, kw_only=True, slots=True)
class Unmarked:
    """A text without marks, and the ranges that they enclosed, in order."""

    text: str
    foreign: tuple[Range, ...]
    learned: tuple[Range, ...]


def choose_marks(*texts: str) -> Marks:
    """Return the first private characters that occur in none of some texts, nor escaped in them.

    Nor do parts of two texts, one behind the other, spell one of them escaped: a template joins
    texts.

    Raises:
        BadRecordError: of reason `messages`; the texts leave too few such characters.

    Determinism: depends on the texts alone; no mark reaches a token.
    """
    chosen: list[str] = []
    for character in map(chr, chain(*_PRIVATE)):
        if not any(_can_spell(texts, spelling) for spelling in (character, *_escapes(character))):
            chosen.append(character)
            if len(chosen) == _MARK_COUNT:
                break
    else:
        raise BadRecordError(
            f"conversation must leave {_MARK_COUNT} private characters unused, got fewer",
            reason="messages",
        )
    opening, closing, generating, generated = chosen
    return Marks(
        foreign_open=opening,
        foreign_close=closing,
        learned_open=generating,
        learned_close=generated,
    )


def mark_foreign(value: Any, special: "re.Pattern[str]", marks: Marks) -> Any:
    """Wrap special-token text in all texts of a JSON value, names of fields among them.

    Source: `mark_control_tokens` of Transformers 5.
    """
    if isinstance(value, str):
        return special.sub(rf"{marks.foreign_open}\g<0>{marks.foreign_close}", value)
    if isinstance(value, dict):
        return {
            mark_foreign(key, special, marks): mark_foreign(inner, special, marks)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return type(value)(mark_foreign(inner, special, marks) for inner in value)
    return value


def special_pattern(tokens: Sequence[str]) -> "re.Pattern[str]":
    """Return what finds special-token text, longer tokens before those they contain."""
    longest_first = sorted(tokens, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def unmark(
    text: str, special: "re.Pattern[str]", marks: Marks, *, has_foreign: bool = True
) -> Unmarked:
    """Take the marks out of a rendered text.

    A template may cut a text, also between two marks: those of foreign text count in pairs around
    the text of a special token, and otherwise enclose nothing.

    Args:
        text: the rendering.
        special: finds special-token text.
        marks: those that were put in.
        has_foreign: whether `mark_foreign` marked the messages. Otherwise nothing is an escaped
            mark, whatever it looks like.

    Raises:
        BadRecordError: of reason `template`; there are marks of foreign text that nobody put in.
    """
    if has_foreign:
        for mark in marks.foreign:
            for escaped in _escapes(mark):
                text = text.replace(escaped, mark)
    else:
        refuse_marks(text, marks.foreign)
    foreign: list[Range] = []
    learned: list[Range] = []
    opened: int | None = None
    kept: list[str] = []
    length = 0
    pieces = re.split(f"([{marks.foreign}{marks.learned}])", text)
    for place, piece in enumerate(pieces):
        if not place % 2:
            kept.append(piece)
            around = "".join(pieces[place - 1 : place + 2 : 2]) if place else ""
            if around == marks.foreign and special.fullmatch(piece):
                foreign.append((length, length + len(piece)))
            length += len(piece)
        elif piece == marks.learned_open:
            opened = length
        elif piece == marks.learned_close and opened is not None:
            learned.append((opened, length))
            opened = None
    return Unmarked(text="".join(kept), foreign=tuple(foreign), learned=tuple(learned))


def refuse_marks(text: str, marks: str) -> None:
    """Refuse a text with marks that nobody put in: to take them out would lose text.

    Raises:
        BadRecordError: of reason `template`.
    """
    found = next((mark for mark in marks if mark in text), None)
    if found is not None:
        raise BadRecordError(
            f"the chat template must write no private character that neither it nor the "
            f"conversation holds, got U+{ord(found):04X}; write it into the template as it is",
            reason="template",
        )


def _can_spell(texts: Sequence[str], spelling: str) -> bool:
    """Say whether parts of at most two texts, one behind the other, give a spelling."""
    # What holds a longer beginning holds the shorter ones, so the longest leaves the least to find.
    known = 0
    while known < len(spelling) and any(spelling[: known + 1] in text for text in texts):
        known += 1
    return any(spelling[known:] in text for text in texts)


@lru_cache(maxsize=16)
def _escapes(character: str) -> tuple[str, str]:
    """Return how JSON in ASCII and Python's `repr`, which templates use, spell a character."""
    return json.dumps(character)[1:-1], ascii(character)[1:-1]
