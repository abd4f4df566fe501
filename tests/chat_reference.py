"""Conversations as tokens and masks, put together by hand: no Jinja, no offsets of a tokenizer."""

from collections.abc import Sequence
from typing import Any

from tests.chat_folders import BOS, build_tokenizer

Message = dict[str, Any]
Piece = tuple[str, bool, bool]
"""Text, whether it is a special token of the template, whether it is learned."""

TOKENIZER = build_tokenizer()
"""Byte-level, so the name of a token has one character for each byte that it stands for."""


def plain_encode(text: str) -> list[int]:
    """Encode text that holds no special token, whatever it looks like."""
    TOKENIZER.encode_special_tokens = True
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def byte_count(token: int) -> int:
    """Return how many bytes of text a token stands for."""
    name = TOKENIZER.id_to_token(token)
    return len(name.encode() if token >= first_added() else name)


def first_added() -> int:
    """Return the first id of the tokens that were added behind the vocabulary."""
    return int(TOKENIZER.get_vocab_size(with_added_tokens=False))


def by_hand(pieces: Sequence[Piece]) -> tuple[list[int], list[int]]:
    """Put a conversation together: texts between special tokens are encoded each as a whole.

    A token is learned iff one of its bytes is; then every learned token becomes a label.
    """
    tokens: list[int] = []
    learned: list[int] = []
    stretch: list[tuple[str, bool]] = []

    def finish() -> None:
        flags = [flag for text, flag in stretch for _ in text.encode()]
        place = 0
        for token in plain_encode("".join(text for text, _ in stretch)):
            tokens.append(token)
            learned.append(int(any(flags[place : place + byte_count(token)])))
            place += byte_count(token)
        assert place == len(flags)
        stretch.clear()

    for text, special, flag in pieces:
        if special:
            finish()
            tokens.append(TOKENIZER.token_to_id(text))
            learned.append(int(flag))
        else:
            stretch.append((text, flag))
    finish()
    return tokens, [*learned[1:], 0]


def chatml_pieces(
    messages: Sequence[Message], *, newline_learned: bool, places: Sequence[int]
) -> list[Piece]:
    """Write a conversation down as ChatML."""
    pieces: list[Piece] = []
    for place, message in enumerate(messages):
        learned = place in places
        pieces.append(("<|im_start|>", True, False))
        pieces.append((f"{message['role']}\n", False, False))
        pieces.append((message["content"], False, learned))
        pieces.append(("<|im_end|>", True, learned))
        pieces.append(("\n", False, learned and newline_learned))
    return pieces


def llama_pieces(messages: Sequence[Message], places: Sequence[int]) -> list[Piece]:
    """Write a conversation down as Llama 3 does."""
    pieces: list[Piece] = [(BOS, True, False)]
    for place, message in enumerate(messages):
        learned = place in places
        pieces.append(("<|start_header_id|>", True, False))
        pieces.append((message["role"], False, False))
        pieces.append(("<|end_header_id|>", True, False))
        pieces.append(("\n\n", False, False))
        pieces.append((message["content"].strip(), False, learned))
        pieces.append(("<|eot_id|>", True, learned))
    return pieces
