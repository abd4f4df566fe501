"""The fields of a batch, and microbatches cut from blocks of rows.

Several microbatches are built at once, as one block, and handed out as views of it: NumPy's cost
per call is then shared.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.checks import nearest
from zephon_beam.errors import RecipeError
from zephon_beam.manifest import Manifest
from zephon_beam.reader.blocks import Block, Rows, cut_rows
from zephon_beam.reader.media import MEDIA_FIELDS, MediaBlock, check_media_fields
from zephon_beam.reader.pool import ArrayPool
from zephon_beam.samples import Array

FIELDS = (
    "input_ids",
    "labels",
    "position_ids",
    "segment_ids",
    "loss_mask",
    "dataset_ids",
    "cu_seqlens",
    "cu_seqlens_padded",
    "cu_seqlens_real",
    "max_seqlen",
    "num_valid_tokens",
    "global_num_valid_tokens",
    "sample_ids",
    "tokens",
)
DEFAULT_FIELDS = (
    "input_ids",
    "labels",
    "position_ids",
    "segment_ids",
    "loss_mask",
    "cu_seqlens",
    "max_seqlen",
    "num_valid_tokens",
    "sample_ids",
)
BLOCK_TOKENS = 1 << 18
"""Tokens built at a time: enough to share NumPy's cost per call, few enough for a cache."""
_BOUNDS = frozenset(("cu_seqlens", "cu_seqlens_padded", "cu_seqlens_real"))
_LARGE_FIELDS = frozenset(FIELDS[:6]) | {"tokens"}
_ARRAY_FIELDS = _LARGE_FIELDS | {"sample_ids"}


def check_fields(fields: Sequence[str] | None) -> tuple[str, ...]:
    """Check the names of the fields to build; None means `DEFAULT_FIELDS`.

    Raises:
        RecipeError: a name is unknown; the nearest one is named.
    """
    if fields is None:
        return DEFAULT_FIELDS
    if isinstance(fields, str):
        raise RecipeError(
            f"fields must be a sequence of names, got the text {fields!r}; pass [{fields!r}]"
        )
    for field in fields:
        if field not in FIELDS and field not in MEDIA_FIELDS:
            hint = nearest(field, (*FIELDS, *MEDIA_FIELDS))
            repair = f"did you mean {hint!r}?" if hint else f"choose from {', '.join(FIELDS)}"
            raise RecipeError(f"fields must be names of batch arrays, got {field!r}; {repair}")
    return tuple(dict.fromkeys(fields))


class BatchBuilder:
    """Builds the asked-for fields, and nothing else, for blocks of microbatches."""

    def __init__(
        self,
        manifest: Manifest,
        fields: tuple[str, ...],
        micro_batch_size: int,
        index_dtype: npt.DTypeLike,
        cu_seqlens_len: int | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        """Prepare for the rows of a stream; see `StreamReader` for the arguments."""
        self._segment_multiple = manifest.recipe.get("packing", {}).get("segment_multiple", 1)
        self._media_merge = check_media_fields(fields, manifest)
        self._cu_seqlens_len = cu_seqlens_len
        self._pool = ArrayPool()
        self._seq_len = manifest.seq_len
        self._pad_id = manifest.pad_id
        self._token_dtype = np.dtype(manifest.token_dtype)
        self._fields = fields
        self._micro_batch_size = micro_batch_size
        self._index_dtype = np.dtype(index_dtype)
        self._compiled: Any = _load_compiled() if compiled else None
        made = [field for field in getattr(self._compiled, "FIELDS", ()) if field in fields]
        if made == ["input_ids"]:
            # Tokens alone are only converted, which NumPy does as fast.
            made = []
        self._compiled_fields = made
        self._plain_fields = [field for field in fields if field not in made]
        self.has_media = any(field in MEDIA_FIELDS for field in fields)
        places = {field: place for place, field in enumerate((*made, *self._plain_fields))}
        order = [places[field] for field in fields]
        self._places = None if order == sorted(order) else order
        self._bounds = [field for field in fields if field in _BOUNDS]

    def build(
        self, parts: Sequence[Rows], sample_ids: Array, global_valid: Sequence[int]
    ) -> Iterator[dict[str, Any]]:
        """Build consecutive microbatches of one rank, as they are asked for.

        Args:
            parts: the rows in order; those missing to fill the microbatches become filler.
            sample_ids: global numbers of the rows, int64[rows].
            global_valid: for each microbatch to build, the labels that count in its whole step,
                over all ranks.

        Yields:
            One dict a microbatch, in order; arrays are views of arrays of a whole block.
        """
        most = min(self._most_at_once(), len(global_valid))
        rows = most * self._micro_batch_size
        pieces = cut_rows(parts, rows)
        for first in range(0, len(global_valid), most):
            place = first * self._micro_batch_size
            valid = global_valid[first : first + most]
            block = Block(
                parts=next(pieces, []),
                real_sample_ids=sample_ids[place : place + rows],
                row_count=len(valid) * self._micro_batch_size,
                seq_len=self._seq_len,
                pad_id=self._pad_id,
                token_dtype=self._token_dtype,
                index_dtype=self._index_dtype,
                segment_multiple=self._segment_multiple,
                pool=self._pool,
            )
            media = MediaBlock(block=block, merge=self._media_merge)
            columns = [iter(self._column(media, field, valid)) for field in self._plain_fields]
            made: Iterator[tuple[Any, ...]] = repeat(())
            if self._compiled_fields:
                made = self._compiled.fill(block, self._compiled_fields, self._micro_batch_size)
            for _ in valid:
                # Nothing here may refer to a batch when the next one is built into its memory.
                yield self._assemble(next(made), columns)

    def _most_at_once(self) -> int:
        """Return the microbatches that a block has at most."""
        if self.has_media:
            # Pixels are large.
            return 1
        if self._compiled_fields and not _LARGE_FIELDS.intersection(self._plain_fields):
            # Nothing large is made for a whole block.
            return sys.maxsize
        return max(1, BLOCK_TOKENS // (self._micro_batch_size * self._seq_len))

    def _assemble(self, made: tuple[Any, ...], columns: list[Iterator[Any]]) -> dict[str, Any]:
        """Put the fields of a microbatch in their order."""
        values = (*made, *map(next, columns))
        if self._places is not None:
            values = tuple([values[place] for place in self._places])
        batch = dict(zip(self._fields, values, strict=True))
        if self._cu_seqlens_len is not None:
            for field in self._bounds:
                batch[field] = _fill_up(field, batch[field], self._cu_seqlens_len)
        return batch

    def _column(self, media: MediaBlock, field: str, global_valid: Sequence[int]) -> Iterable[Any]:
        """Build one field of all microbatches of a block."""
        block, size = media.block, self._micro_batch_size
        if field in _ARRAY_FIELDS:
            whole: Array = getattr(block, field)
            return whole.reshape(len(global_valid), size, *whole.shape[1:])
        if field == "global_num_valid_tokens":
            return global_valid
        if field in MEDIA_FIELDS:
            return media.fields(field, size)
        values: list[Any] = getattr(block, field)(size)
        return values


def _load_compiled() -> Any:
    """Import what builds blocks by compiled code.

    Raises:
        RecipeError: numba is not installed.
    """
    try:
        return import_module("zephon_beam.reader.compiled")
    except ImportError as error:
        raise RecipeError(
            "compiled must be False where numba is not installed, got True; batches would be the "
            "same, and built more slowly; install it with pip install 'zephon-beam[fast]'"
        ) from error


def _fill_up(field: str, bounds: Array, length: int) -> Array:
    """Repeat the last bound, so that all arrays have one length; what is added is empty."""
    if len(bounds) > length:
        raise RecipeError(
            f"cu_seqlens_len must be at least {len(bounds)}, the entries of {field} in this "
            f"microbatch, got {length}; documents would be lost; raise it, or bound the documents "
            "of a row with packing.max_segments"
        )
    filled = np.full(length, bounds[-1], np.int32)
    filled[: len(bounds)] = bounds
    return filled
