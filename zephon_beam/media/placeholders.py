"""Placeholders among tokens: where they are, that no text forges them, what is learned."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.chat.masks import loss_mask
from zephon_beam.media.conversation import IMAGE, VIDEO
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


def placeholder_counts(
    ids: Array, offsets: Array, items: Spans, *, image: int, video: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Say how often each token of rendered conversations stands for its item.

    A template writes one placeholder for each item. Those of images stand for the images in their
    order, those of videos for the videos, whatever their order among each other.

    Args:
        ids: uint32[total], encoded conversations.
        offsets: int64[documents + 1], bounds of each.
        items: of each conversation, named by their types, with their numbers of placeholders.
        image: id of the placeholder of images.
        video: id of the placeholder of videos; if it is the same, a conversation may hold only
            one type.

    Returns:
        (int64[total], 1 for tokens that are no placeholders; bool[documents], which do not have one
        placeholder for each item: nothing of these is to be used).
    """
    documents = len(offsets) - 1
    owners = np.repeat(np.arange(documents), np.diff(items.bounds))
    is_video = np.array([piece == VIDEO for piece in items.pieces], np.bool_)
    wrong = np.zeros(documents, np.bool_)
    groups = [(image, ~is_video), (video, is_video)]
    if image == video:
        kinds = [np.bincount(owners[chosen], minlength=documents) for _, chosen in groups]
        wrong |= (kinds[0] > 0) & (kinds[1] > 0)
        groups = [(image, np.ones(len(owners), np.bool_))]
    found = []
    for token, chosen in groups:
        places = np.flatnonzero(ids == token)
        holders = np.searchsorted(offsets, places, side="right") - 1
        written = np.bincount(holders, minlength=documents)
        wrong |= written != np.bincount(owners[chosen], minlength=documents)
        found.append((places, holders, chosen))
    counts = np.ones(len(ids), np.int64)
    repeats = np.ones(len(owners), np.int64) if items.repeats is None else items.repeats
    for places, holders, chosen in found:
        counts[places[~wrong[holders]]] = repeats[chosen & ~wrong[owners]]
    return counts, wrong


def repeat_tokens(
    counts: Array, offsets: Array, *columns: Array
) -> tuple[npt.NDArray[np.int64], list[Array]]:
    """Write each token as often as it counts.

    Args:
        counts: int64[total], how often.
        offsets: int64[documents + 1], bounds of each document.
        columns: dtype[total] each.

    Returns:
        (int64[documents + 1], the columns, longer).
    """
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    return sums[offsets], [np.repeat(column, counts) for column in columns]


def describe_items(items: Spans, document: int) -> str:
    """Say for people how many items a conversation has."""
    pieces = items.pieces[int(items.bounds[document]) : int(items.bounds[document + 1])]
    return f"{pieces.count(IMAGE)} images and {pieces.count(VIDEO)} videos"


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
