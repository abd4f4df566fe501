"""Placeholders among tokens: where they are, that no text forges them, what is learned."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.chat.masks import loss_mask
from zephon_beam.sources.documents import Spans

Array = npt.NDArray[Any]


def forged_documents(
    ids: Array, offsets: Array, spans: Spans, media_ids: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """Say in which documents texts came out as tokens that only items may have, bool[documents].

    Args:
        ids: uint32[total], encoded documents.
        offsets: int64[documents + 1], bounds of each.
        spans: what they were encoded from.
        media_ids: of placeholders and of what stands around them.
    """
    repeats = np.ones(len(spans.pieces), np.int64) if spans.repeats is None else spans.repeats
    expected = _sums(np.where(spans.special, repeats, 0), spans.bounds)
    return np.asarray(_sums(np.isin(ids, media_ids), offsets) != expected)


def empty_documents(ids: Array, offsets: Array, chosen: Array) -> tuple[Array, Array]:
    """Leave nothing of the chosen documents, bool[documents]."""
    lengths = np.diff(offsets)
    kept = np.repeat(~chosen, lengths)
    lengths[chosen] = 0
    return ids[kept], np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))


def media_loss_mask(
    tokens: Array, offsets: Array, media_ids: Sequence[int]
) -> npt.NDArray[np.uint8]:
    """Return the loss mask of documents of which all is learned but placeholders.

    Returns:
        uint8[total]: 1 iff the token that follows in the same document is learned.
    """
    return loss_mask((~np.isin(tokens, media_ids)).astype(np.uint8), offsets)


def _sums(values: Array, bounds: Array) -> Array:
    totals = np.concatenate((np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)))
    return np.asarray(totals[bounds[1:]] - totals[bounds[:-1]])
