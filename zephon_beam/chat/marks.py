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
from typing import Any

_PRIVATE = range(0xF0000, 0xFFFFE)
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

    Determinism: depends on the texts alone; no mark reaches a token.
    """
    chosen: list[str] = []
    for code in _PRIVATE:
        spellings = (chr(code), *_escapes(chr(code)))
        if not any(spelling in text for text in texts for spelling in spellings):
            chosen.append(chr(code))
            if len(chosen) == _MARK_COUNT:
                break
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
        return [mark_foreign(inner, special, marks) for inner in value]
    return value


def special_pattern(tokens: Sequence[str]) -> "re.Pattern[str]":
    """Return what finds special-token text, longer tokens before those they contain."""
    longest_first = sorted(tokens, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def unmark(text: str, special: "re.Pattern[str]", marks: Marks) -> Unmarked:
    """Take the marks out of a rendered text.

    A template may cut a text, also between two marks: those of foreign text count in pairs around
    the text of a special token, and otherwise enclose nothing.
    """
    for mark in marks.foreign:
        for escaped in _escapes(mark):
            text = text.replace(escaped, mark)
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


@lru_cache(maxsize=16)
def _escapes(character: str) -> tuple[str, str]:
    """Return how JSON in ASCII and Python's `repr`, which templates use, spell a character."""
    return json.dumps(character)[1:-1], ascii(character)[1:-1]
