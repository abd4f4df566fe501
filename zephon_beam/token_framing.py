"""`bos`, `eos` and loss masks of documents that are tokens already."""

from typing import Any

import numpy as np

from zephon_beam.chat.framing import widen
from zephon_beam.chat.masks import loss_mask
from zephon_beam.sources.documents import TokenLists
from zephon_beam.tokenizer import Array, Framing


def frame_token_lists(
    lists: TokenLists, framing: Framing, dtype: Any, *, kept: Array
) -> tuple[Array, Array, Array | None]:
    """Add `bos` and `eos` to the documents that do not have them yet, and narrow the ids.

    An `eos` that is added is learned, as that of plain text is.

    Args:
        lists: the documents.
        framing: what the recipe asks for.
        dtype: type of the result, wide enough for the vocabulary.
        kept: bool[documents]; the others are empty and stay so.

    Returns:
        (tokens dtype[total + added], offsets int64[documents + 1], loss mask uint8[total + added]
        of the labels, or None if all are learned).

    Determinism: each document depends on its own tokens and the framing alone.
    """
    offsets = lists.offsets
    filled = np.diff(offsets) > 0
    padded = lists.tokens if len(lists.tokens) else np.zeros(1, np.uint32)
    before, after = np.zeros(len(filled), bool), np.zeros(len(filled), bool)
    if framing.bos is not None:
        firsts = padded[np.where(filled, offsets[:-1], 0)]
        before = kept & ~(filled & (firsts == framing.bos))
    if framing.eos is not None:
        lasts = padded[np.where(filled, offsets[1:] - 1, 0)]
        after = kept & ~(filled & (lasts == framing.eos))
    first, last = framing.bos or 0, framing.eos or 0
    tokens, framed = widen(
        lists.tokens.astype(dtype), offsets, before, after, first=first, last=last
    )
    if lists.learned is None:
        return tokens, framed, None
    learned, _ = widen(lists.learned, offsets, before, after, first=1, last=1)
    return tokens, framed, loss_mask(learned, framed)
