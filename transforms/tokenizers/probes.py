"""The fixed texts on which two tokenizers must agree before one may stand in for the other.

They are made of what has told such libraries apart: rare Unicode, runs that are longer than any
buffer, composition under NFC with new characters, special-token text in every neighbourhood, and
the text of every token of the vocabulary, so that every merge is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import shake_128
from itertools import product
from typing import Any

import numpy as np

from transforms.tokenizers.byte_level import token_text

PROBE_VERSION = 1
"""Part of every stored verdict; raise it whenever a probe changes."""

_FUZZ_DOCUMENTS = 1200
_SURROGATES = range(0xD800, 0xE000)
_SCALARS = (
    *(range(0x20000), range(0x20000, 0x20100), range(0x2F800, 0x2FA00), range(0x30000, 0x30100)),
    *(range(0xE0000, 0xE0200), range(0xF0000, 0xF0100), range(0x10FF00, 0x110000)),
)
"""Planes 0 and 1 whole; of the others, which are alike throughout, what is special in them."""
_WITH_LETTERS = 0x10000
_COMPOSING = (range(0x11380, 0x113D0), range(0x16100, 0x16140), range(0x16D40, 0x16D80))
"""Blocks in which Unicode 16 put characters that compose; older tables leave them as they are."""
_RUN = 8_000
_TOKENS_PROBED = 400
_FRAGMENTS = (
    *("the", " of", "The", " QUICK", "fox", "_name", " x1", "camelCase", "\u00e9t\u00e9", "\u017f"),
    *("'s", "'S", "'\u017f", "'\u017fS", "'ll", "'LL", "'ve", "'RE", "'t", "'d", "''", "\u2019s"),
    *(" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n", "\n ", "\u00a0", "\u3000", "\u2003"),
    *("\u0085", "\u2028", "\u200b", "\ufeff", "\x00", "\x0b", "\x1c", "\x7f", "\u180e", "\u202f"),
    *("0", "12", "345", "6789", "1234567", " 42", "\u0663\u0664", "\u00bd", "\u2167", "\u00b2"),
    *(
        ".",
        ",",
        "!?",
        "...",
        "://",
        "()",
        "{}",
        " =",
        "==",
        "->",
        "#!",
        "\u2026",
        "\u00ab",
        "\u3002",
    ),
    *("\u6f22\u5b57", "\u304b\u306a", "\ud55c\uae00", "\u1112\u1161\u11ab", "\u0939\u093f\u0928"),
    *(
        "\u0627\u0644",
        "\u05e9\u05dc",
        "\u0e44\u0e17\u0e22",
        "\u0434\u0430",
        "\u03c2\u03a3",
        "\u01c5",
    ),
    *("e\u0301", "\u0301", "a\u0323\u0302", "q\u0307\u0323", "\u212b", "\u1e9b\u0323", "\ufb01"),
    *(
        "\U0001f600",
        "\U0001f469\u200d\U0001f680",
        "\U0001f1e9\U0001f1ea",
        "\u2764\ufe0f",
        "\U0001d504",
    ),
    *(
        "\U00020000",
        "\U000e0061",
        "\U0010ffff",
        "\ufffd",
        "\uffff",
        "\u0378",
        "\ue000",
        "\U0001e900",
    ),
    *("\U000113c2", "\U000113b8", "\U000113c9", "\U0001611e", "\U00016d63", "\U00016d67"),
)


def plain_probes(vocabulary: Mapping[str, int]) -> Iterator[str]:
    """Yield the texts that say nothing of special tokens.

    Args:
        vocabulary: byte-level tokens and their ids.

    Determinism: depends on the vocabulary and `PROBE_VERSION` alone.
    """
    yield from ("", " ", "a", "\n", "'\u017f'S", "a'\u017f'S b'S", "\u017f's", "'\u017f")
    yield from _fuzz(_FUZZ_DOCUMENTS, "plain")
    yield from _code_points()
    yield from _compositions()
    yield from _long_runs()
    yield from _vocabulary_texts(vocabulary)
    yield "".join(_fuzz(1000, "long"))


def special_probes(tokens: Sequence[str]) -> Iterator[str]:
    """Yield texts in which added tokens stand, whole and broken, in every neighbourhood.

    Args:
        tokens: contents of the added tokens; of very many the first and the last are used.
    """
    half = _TOKENS_PROBED // 2
    used = list(dict.fromkeys([*tokens[:half], *tokens[-half:]]))
    for token in used:
        yield from (
            *(token, token * 3, f"a{token}b", f" {token} ", f"\n{token}\n", f"  {token}\t{token}"),
            *(
                token[:-1],
                token[1:],
                f"{token[:-1]} {token}",
                f"{token[:1]}{token}",
                f"e{token}\u0301",
            ),
            *(
                token.upper(),
                token.lower(),
                f"1{token}2",
                f"'{token}s",
                f"\u6f22{token}\u0301\u5b57",
            ),
        )
    few = [*used[:6], *used[-6:]]
    yield from (first + second for first, second in product(few, few))
    yield from (first[:-2] + second for first, second in product(few, few))
    # One long document: a library may look for special tokens differently beyond some length.
    pieces = list(_fuzz(1000, "special"))
    for place in range(0, len(pieces), 3):
        pieces[place] += used[place % len(used)] if used else ""
    yield "".join(pieces)


def added_contents(description: Mapping[str, Any]) -> list[str]:
    """Return the contents of a tokenizer file's added tokens, in order."""
    return [str(token["content"]) for token in description.get("added_tokens") or []]


def _fuzz(count: int, name: str) -> Iterator[str]:
    """Yield documents of 1 to 64 fragments, with single code points of all planes in between."""
    places = [place for block in _SCALARS for place in block if place not in _SURROGATES]
    drawn = np.frombuffer(shake_128(f"probe {name}".encode()).digest(count * 68 * 2), "<u2")
    for document in drawn.reshape(count, 68).tolist():
        pieces = [
            _FRAGMENTS[number % len(_FRAGMENTS)] for number in document[: 1 + document[-1] % 64]
        ]
        spread = document[-2] * 3 % len(places)
        pieces.insert(document[-3] % len(pieces), chr(places[spread]))
        yield "".join(pieces)


def _code_points() -> Iterator[str]:
    """Yield every code point, 256 a document: in a row, and those of plane 0 between words."""
    for block in _SCALARS:
        for first in range(block.start, block.stop, 256):
            if first in _SURROGATES:
                continue
            characters = [chr(place) for place in range(first, first + 256)]
            yield "".join(characters)
            if first < _WITH_LETTERS:
                yield "a ".join(characters)


def _compositions() -> Iterator[str]:
    """Yield all pairs of characters within the blocks that compose."""
    for block in _COMPOSING:
        characters = [chr(place) for place in block]
        for first in characters:
            yield "".join(f"{first}{second} " for second in characters)


def _long_runs() -> Iterator[str]:
    for piece in (
        "a",
        " ",
        "\n",
        "\t",
        "0",
        "=",
        "\u6f22",
        "\u0301",
        "\U0001f600",
        "ab ",
        " \n",
        "\r\n",
    ):
        yield piece * (_RUN // len(piece))
        yield f"x{piece * (_RUN // len(piece))}y"
    yield " " * (12 * _RUN)
    yield f"{' ' * (12 * _RUN)}x"


def _vocabulary_texts(vocabulary: Mapping[str, int]) -> Iterator[str]:
    """Yield the text of every token that is whole text, a few hundred a document."""
    texts = [text for token in vocabulary if (text := token_text(token)) is not None]
    for first in range(0, len(texts), 256):
        yield "\n".join(texts[first : first + 256])
