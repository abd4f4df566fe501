"""The media of one shard while they are gathered."""

from collections.abc import Sequence

import numpy as np

from transforms.media.decoded import DecodedItem, MediaItem
from zephon_beam.media.columns import IMAGE, ITEM_COLUMNS, VIDEO, MediaColumns
from zephon_beam.samples import Array, Samples
from zephon_beam.sources.documents import Quarantined

_Placed = tuple[int, int, DecodedItem]
"""(row, first placeholder in it, item)."""


_FRAME_TOKENS = 2
"""What stands around an item at the most."""


def place_items(
    items: Sequence[MediaItem], are_videos: Array, *, are_told: bool, lost_tokens: int | None
) -> list[tuple[int, int]] | None:
    """Find out which placeholders of a segment stand for which item of its document.

    Images and videos come each in their own order: a chat template may write all images of a
    message before its videos.

    Args:
        items: of the document, in order.
        are_videos: bool[placeholders], which of them stand for videos.
        are_told: whether `are_videos` says so; else one token stands for both, in order.
        lost_tokens: of a document that may have been cut, by how much the segment is shorter than
            a row; None: it was not cut.

    Returns:
        (item, its first placeholder) by placeholder; None if they do not fit each other.
    """
    waiting: dict[bool, list[int]] = {False: [], True: []}
    for number in reversed(range(len(items))):
        waiting[are_told and items[number].is_video].append(number)
    placed: list[tuple[int, int]] = []
    first = 0
    while first < len(are_videos):
        is_video = are_told and bool(are_videos[first])
        if not waiting[is_video]:
            return None
        number = waiting[is_video].pop()
        last = first + items[number].tokens
        if last > len(are_videos) or (are_told and (are_videos[first:last] != is_video).any()):
            return None
        placed.append((number, first))
        first = last
    missing = [items[number].tokens + _FRAME_TOKENS for number in (*waiting[False], *waiting[True])]
    if missing and (lost_tokens is None or lost_tokens >= sum(missing)):
        return None
    return placed


class ShardMedia:
    """Gathers the decoded items of a shard, in any order."""

    def __init__(self, samples: Samples) -> None:
        """Begin with the rows, which hold placeholders only."""
        self._samples = samples
        self._items: list[_Placed] = []
        self._mask = None if samples.loss_mask is None else samples.loss_mask.copy()
        counts = np.diff(samples.segment_offsets)
        self._rows = np.repeat(np.arange(len(samples)), counts)
        self.faults: list[Quarantined] = []
        """Documents with items that could not be decoded."""

    def segment(self, segment: int) -> tuple[int, int, Array]:
        """Return (row, first place in it, tokens) of a segment."""
        segments = self._samples.segments
        row, start = int(self._rows[segment]), int(segments["segment_starts"][segment])
        length = int(segments["segment_lengths"][segment])
        return row, start, self._samples.tokens[row, start : start + length]

    def source(self, segment: int) -> tuple[int, int, int, int]:
        """Return (data set, file, locator, pass) of a segment."""
        names = ("source_dataset", "source_file", "source_document", "source_pass")
        dataset, file, document, pass_ = (int(self._samples.segments[n][segment]) for n in names)
        return dataset, file, document, pass_

    def add(self, row: int, place: int, item: DecodedItem) -> None:
        """Put an item at its first placeholder."""
        self._items.append((row, place, item))

    def mask(self, segment: int) -> None:
        """Leave nothing of a segment to be learned."""
        row, start, tokens = self.segment(segment)
        if self._mask is not None:
            self._mask[row, start : start + len(tokens)] = 0

    def finish(self) -> Samples:
        """Return the rows with their media, of which nothing is kept here."""
        items = sorted(self._items, key=lambda placed: placed[:2])
        counts = np.bincount([row for row, _, _ in items], minlength=len(self._samples))
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        facts = [_facts(place, decoded) for _, place, decoded in items]
        values = np.array(facts, np.int64).reshape(len(items), len(ITEM_COLUMNS))
        grids = [decoded.item.grid for _, _, decoded in items]
        self._items.clear()
        media = MediaColumns(
            offsets=offsets.astype(np.int64),
            items={
                name: values[:, column].astype(dtype)
                for column, (name, dtype) in enumerate(ITEM_COLUMNS.items())
            },
            grids=np.array(grids, np.int32).reshape(-1, 3),
            pixels=_joined_pixels(items),
        )
        samples = self._samples
        return Samples(
            tokens=samples.tokens,
            segment_offsets=samples.segment_offsets,
            segments=samples.segments,
            loss_mask=self._mask,
            media=media,
        )


def _joined_pixels(items: list[_Placed]) -> Array:
    """Put the pixels of items behind each other, and let go of each item on the way.

    A shard's pixels may be hundreds of megabytes, so they are not held twice.
    """
    joined = np.empty(sum(decoded.pixels.size for _, _, decoded in items), np.uint8)
    stop = len(joined)
    while items:
        pixels = items.pop()[2].pixels.reshape(-1)
        joined[stop - len(pixels) : stop] = pixels
        stop -= len(pixels)
    return joined


def _facts(place: int, decoded: DecodedItem) -> tuple[int, ...]:
    """Return the values of `ITEM_COLUMNS` for an item, in order."""
    item = decoded.item
    return (
        place,
        item.tokens,
        VIDEO if item.is_video else IMAGE,
        item.frame_count,
        item.geometry.height,
        item.geometry.width,
        int(decoded.failure is not None),
    )
