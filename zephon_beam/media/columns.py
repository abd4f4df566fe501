"""The media of a shard: what stands for each item in its row, and the pixels of its frames.

    row 0   t t M M M M t t V V V V V V V V t        items: M at 2, 4 long; V at 8, 8 long
    pixels  [M: 1 x 56 x 56 x 3] [V: 4 x 56 x 56 x 3]

A shard has these columns if its recipe has media, also where no row holds any.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]

IMAGE, VIDEO = 0, 1
"""Kinds of an item."""

ITEM_COLUMNS: dict[str, Any] = {
    "media_starts": np.int32,
    "media_lengths": np.int32,
    "media_kinds": np.uint8,
    "media_frames": np.int32,
    "media_heights": np.int32,
    "media_widths": np.int32,
    "media_failed": np.uint8,
}
"""Columns with one value an item, each large_list<dtype>, in file order.

`media_starts` is the item's first placeholder in its row and `media_lengths` their number;
`media_kinds` is 0 for an image and 1 for a video; frames, heights and widths are those of the
stored pixels; `media_failed` is 1 where decoding failed: all pixels are 0 and nothing of the
document is learned.
"""
GRID_COLUMN = "media_grid_thw"
PIXEL_COLUMN = "media_pixels"

_ITEM_RECORD = np.dtype(
    [(name, np.dtype(dtype).newbyteorder("<")) for name, dtype in ITEM_COLUMNS.items()]
    + [(GRID_COLUMN, np.dtype(np.int32).newbyteorder("<"), (3,))]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaColumns:
    """The items of consecutive samples as flat arrays; immutable by convention.

    offsets: int64[samples + 1], bounds of each sample's items.
    items: one array of offsets[-1] values for each of `ITEM_COLUMNS`.
    grids: int32[items, 3], patches along time, height and width.
    pixels: uint8[sum of frames · height · width · 3], item behind item.
    """

    offsets: Array
    items: dict[str, Array]
    grids: Array
    pixels: Array

    @property
    def pixel_offsets(self) -> Array:
        """Bounds of each item's pixels, int64[items + 1]."""
        sizes = 3 * self.items["media_frames"].astype(np.int64)
        sizes *= self.items["media_heights"]
        sizes *= self.items["media_widths"]
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))

    def frames(self, item: int, pixel_offsets: Array) -> Array:
        """Return the pixels of an item, uint8 [frames, height, width, 3], without a copy."""
        names = ("media_frames", "media_heights", "media_widths")
        shape = [int(self.items[name][item]) for name in names]
        first, last = int(pixel_offsets[item]), int(pixel_offsets[item + 1])
        return self.pixels[first:last].reshape(*shape, 3)


def media_arrow(media: MediaColumns) -> dict[str, Any]:
    """Return the columns as Arrow arrays of one value a sample, with 64-bit offsets."""
    offsets = pa.array(media.offsets, pa.int64())
    columns: dict[str, Any] = {}
    for name, dtype in ITEM_COLUMNS.items():
        values = pa.array(np.ascontiguousarray(media.items[name], dtype=dtype))
        columns[name] = pa.LargeListArray.from_arrays(offsets, values)
    grids = pa.array(np.ascontiguousarray(media.grids, np.int32).reshape(-1))
    grid_lists = pa.FixedSizeListArray.from_arrays(grids, 3)
    columns[GRID_COLUMN] = pa.LargeListArray.from_arrays(offsets, grid_lists)
    rows = pa.array(media.pixel_offsets[media.offsets], pa.int64())
    columns[PIXEL_COLUMN] = pa.LargeListArray.from_arrays(rows, pa.array(media.pixels))
    return columns


def media_of_batch(batch: Any) -> MediaColumns | None:
    """Take the columns from a record batch without copying; None if it has none.

    Raises:
        ValueError: they do not fit each other.
        KeyError: one of them is missing.
    """
    if PIXEL_COLUMN not in batch.schema.names:
        return None
    first = batch.column("media_starts")
    offsets = np.asarray(first.offsets, dtype=np.int64)
    media = MediaColumns(
        offsets=offsets,
        items={name: np.asarray(batch.column(name).values) for name in ITEM_COLUMNS},
        grids=np.asarray(batch.column(GRID_COLUMN).values.flatten()).reshape(-1, 3),
        pixels=np.asarray(batch.column(PIXEL_COLUMN).values),
    )
    bounds = media.pixel_offsets[offsets]
    if not np.array_equal(bounds, np.asarray(batch.column(PIXEL_COLUMN).offsets)):
        raise ValueError("media_pixels are not as many as frames, heights and widths say")
    return media


def media_rows(media: MediaColumns) -> Iterator[tuple[bytes, memoryview]]:
    """Yield, for each sample, what a digest covers: its items and its pixels.

    The items are their number (4 bytes) and for each its values in the order of `ITEM_COLUMNS` and
    its grid, all little-endian.
    """
    records = np.empty(int(media.offsets[-1]), _ITEM_RECORD)
    for name in ITEM_COLUMNS:
        records[name] = media.items[name]
    records[GRID_COLUMN] = media.grids
    encoded = records.tobytes()
    width = _ITEM_RECORD.itemsize
    pixels = np.ascontiguousarray(media.pixels).data
    bounds = media.offsets.tolist()
    places = media.pixel_offsets[media.offsets].tolist()
    for row in range(len(bounds) - 1):
        first, last = bounds[row], bounds[row + 1]
        head = (last - first).to_bytes(4, "little") + encoded[first * width : last * width]
        yield head, pixels[places[row] : places[row + 1]]


def check_media(media: MediaColumns, seq_len: int) -> Iterator[str]:
    """Yield what is wrong in the columns of a shard, naming the first row of each kind."""
    starts = media.items["media_starts"].astype(np.int64)
    ends = starts + media.items["media_lengths"]
    rows = np.repeat(np.arange(len(media.offsets) - 1), np.diff(media.offsets))
    outside = (starts < 0) | (media.items["media_lengths"] < 1) | (ends > seq_len)
    overlaps = np.zeros(len(starts), np.bool_)
    overlaps[1:] = (rows[1:] == rows[:-1]) & (starts[1:] < ends[:-1])
    failed = media.items["media_failed"]
    for wrong, what in (
        (outside, "lies outside the row"),
        (overlaps, "overlaps the one before"),
        (media.items["media_kinds"] > VIDEO, "is neither an image nor a video"),
        (failed > 1, "must have failed or not"),
        ((media.grids < 1).any(axis=1), "has no grid"),
    ):
        if bool(wrong.any()):
            item = int(np.flatnonzero(wrong)[0])
            yield f"row {int(rows[item])}: media item {what}: place {int(starts[item])}"
