"""The images and videos of microbatches, with what joins them to the placeholders.

flattened rows     t t M M M M t t t V V V V V V t …       M: image 0, V: video 1
media_positions    2 3 4 5 9 10 11 12 13 14                places of the placeholders
media_cu_tokens    0 4 10                                  those of item i: [cu[i], cu[i + 1])
media_cu_frames    0 1 5                                   frames, counted likewise
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from zephon_beam.errors import RecipeError
from zephon_beam.manifest import Manifest
from zephon_beam.media.presets import PRESETS
from zephon_beam.reader.blocks import Block
from zephon_beam.samples import Array

MEDIA_FIELDS = (
    "pixel_values",
    "media_grid_thw",
    "media_cu_frames",
    "media_cu_tokens",
    "media_positions",
    "media_kinds",
    "media_failed",
    "mrope_position_ids",
)
"""Fields of streams whose recipe has `media`; built where they are asked for."""


def check_media_fields(fields: Sequence[str], manifest: Manifest) -> int:
    """Check that a stream has the media fields that are asked for.

    Returns:
        Patches along each side of what one placeholder stands for.

    Raises:
        RecipeError: it has not.
    """
    asked = [field for field in fields if field in MEDIA_FIELDS]
    media = manifest.recipe.get("media")
    if asked and media is None:
        raise RecipeError(
            f"fields must be of a stream with media, got {asked[0]!r}; this stream's recipe has no "
            "`media`; leave the field out"
        )
    preset = None if media is None else media["preset"]
    if "mrope_position_ids" in asked and preset != "qwen2_vl":
        raise RecipeError(
            "mrope_position_ids must be asked of a stream with the preset qwen2_vl, got "
            f"{preset!r}; use position_ids"
        )
    return 1 if preset is None else PRESETS[preset].merge


@dataclass(frozen=True, kw_only=True)
class MediaBlock:
    """The items of a block of rows, in the order of their placeholders."""

    block: Block
    merge: int
    """Patches along each side of one placeholder."""

    def fields(self, field: str, micro_batch_size: int) -> list[Any]:
        """Return one of `MEDIA_FIELDS` of each microbatch.

        Determinism: depends on the rows and the sizes alone.
        """
        if field == "mrope_position_ids":
            places = range(0, self.block.row_count, micro_batch_size)
            whole = self._mrope
            return [whole[:, first : first + micro_batch_size] for first in places]
        bounds = np.arange(0, self.block.row_count + 1, micro_batch_size)
        edges = np.searchsorted(self._rows, bounds).tolist()
        size = micro_batch_size * self.block.seq_len
        return [
            self._of(field, first, last, number * size)
            for number, (first, last) in enumerate(pairwise(edges))
        ]

    def _of(self, field: str, first: int, last: int, base: int) -> Any:
        """Return a field of items [first, last), in a microbatch that begins at a flat place."""
        dtype = self.block.index_dtype
        if field == "pixel_values":
            return [self._pixels(item) for item in range(first, last)]
        if field == "media_grid_thw":
            return self._grids[first:last].astype(dtype)
        if field in ("media_kinds", "media_failed"):
            return self._items[field][first:last]
        lengths = self._items["media_lengths"][first:last].astype(np.int64)
        if field == "media_positions":
            before = np.cumsum(lengths) - lengths
            starts = self._flat_starts[first:last] - base - before
            return (np.repeat(starts, lengths) + np.arange(int(lengths.sum()))).astype(dtype)
        counts = self._items["media_frames"][first:last] if field == "media_cu_frames" else lengths
        sums = np.zeros(last - first + 1, np.int32)
        np.cumsum(counts, dtype=np.int32, out=sums[1:])
        return sums

    @cached_property
    def _places(self) -> list[tuple[Any, int, int, int]]:
        """(media of a shard, first item, one behind the last, first row) of each part."""
        places = []
        row = 0
        for part in self.block.parts:
            media = part.shard.media
            bounds = media.offsets[[part.first, part.first + part.count]].tolist()
            places.append((media, bounds[0], bounds[1], row - part.first))
            row += part.count
        return places

    @cached_property
    def _items(self) -> dict[str, Array]:
        names = ("media_starts", "media_lengths", "media_kinds", "media_frames", "media_failed")
        empty = np.zeros(0, np.uint8)
        return {
            name: np.concatenate(
                [empty, *(media.items[name][first:last] for media, first, last, _ in self._places)]
            )
            for name in names
        }

    @cached_property
    def _grids(self) -> Array:
        found = [media.grids[first:last] for media, first, last, _ in self._places]
        return np.concatenate([np.zeros((0, 3), np.int32), *found])

    @cached_property
    def _rows(self) -> Array:
        """Row of each item in the block, int64[items]."""
        rows = [np.zeros(0, np.int64)]
        for media, first, last, shift in self._places:
            own = np.searchsorted(media.offsets, np.arange(first, last), side="right") - 1
            rows.append(own + shift)
        return np.concatenate(rows)

    @cached_property
    def _flat_starts(self) -> Array:
        """Place of each item's first placeholder in the flattened block, int64[items]."""
        return self._rows * self.block.seq_len + self._items["media_starts"]

    @cached_property
    def _pixel_offsets(self) -> list[Array]:
        """Bounds of the pixels of each part's items among those of its shard."""
        return [media.pixel_offsets for media, _, _, _ in self._places]

    def _pixels(self, item: int) -> Array:
        for (media, first, last, _), bounds in zip(self._places, self._pixel_offsets, strict=True):
            if item < last - first:
                return np.array(media.frames(first + item, bounds))
            item -= last - first
        raise IndexError(f"block has no item {item}")

    @cached_property
    def _mrope(self) -> Array:
        """Places along time, height and width, [3, rows, seq_len].

        Text has one place in all three; an item spreads from the place after the text before it,
        and the text behind it goes on after its largest place.

        Source: `get_rope_index` of Qwen2-VL in Transformers; Wang et al., "Qwen2-VL" (2024).
        """
        block = self.block
        flat = np.tile(block.position_ids.reshape(1, -1), (3, 1))
        ends = block.run_ends
        lengths = self._items["media_lengths"].tolist()
        for item, start in enumerate(self._flat_starts.tolist()):
            time, tall, wide = self._grids[item].tolist()
            tall, wide = tall // self.merge, wide // self.merge
            stop = start + lengths[item]
            run_end = int(ends[np.searchsorted(ends, start, side="right")])
            begin = int(flat[0, start])
            places = np.indices((time, tall, wide)).reshape(3, -1)
            flat[:, stop:run_end] += max(time, tall, wide) - lengths[item]
            flat[:, start:stop] = places + begin
        return flat.reshape(3, block.row_count, block.seq_len)
