"""The token-wise arrays of a block in one pass, by code that numba compiles.

What `zephon_beam.reader.blocks` does with a dozen NumPy calls for each stretch of rows is here one
call: each row is read once and all its arrays are written while it lies in the nearest cache. The
bytes are the same. Imported where numba is installed only; compiled once and kept on disk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar, cast

import numba
import numpy as np

from zephon_beam.reader.blocks import Block
from zephon_beam.reader.shards import IGNORED_LABEL
from zephon_beam.samples import Array

ARRAYS = ("input_ids", "labels", "position_ids", "segment_ids", "loss_mask")
"""Fields of a block that `fill` writes."""

MASK = np.dtype(np.uint8)

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Bounds:
    """The boundaries of the runs of each flattened microbatch."""

    cu_seqlens: list[Array]
    """As `Block.cu_seqlens`."""
    max_seqlen: list[int]
    """As `Block.max_seqlen`."""


def fill(block: Block, fields: Sequence[str], micro_batch_size: int) -> Bounds:
    """Compute fields of a block as if they had been asked for, and the bounds of its runs.

    Args:
        block: of which none of them has been computed.
        fields: some of `ARRAYS`.
        micro_batch_size: rows of each batch.

    Determinism: the same values as those of the block's own methods.
    """
    rows, seq_len = block.row_count, block.seq_len
    made = {field: block.new(field) for field in fields}
    ids, labels, positions, numbers, mask = (
        made.get(field, _none(block.dtype_of(field))) for field in ARRAYS
    )
    bounds = np.empty(2 * (rows + sum(part.segment_count for part in block.parts)), np.int32)
    firsts = np.empty(rows // micro_batch_size + 1, np.int64)
    longest = np.zeros(rows // micro_batch_size, np.int64)
    row = at = 0
    for part in block.parts:
        shard = part.shard
        stored = shard.loss_mask
        at = _fill_rows(
            shard.tokens,
            _none(MASK) if stored is None else stored,
            shard.segment_offsets,
            shard.segments("segment_starts"),
            shard.segments("segment_lengths"),
            shard.segments("segment_next"),
            part.first,
            part.count,
            row,
            micro_batch_size,
            ids,
            labels,
            positions,
            numbers,
            mask,
            bounds,
            firsts,
            longest,
            at,
        )
        row += part.count
    for filler in range(row, rows):
        batch, place = divmod(filler, micro_batch_size)
        if place == 0:
            firsts[batch], bounds[at] = at, 0
            at += 1
        bounds[at] = (place + 1) * seq_len
        longest[batch] = seq_len
        at += 1
    firsts[-1] = at
    block.take_over(made)
    return Bounds([bounds[i:j] for i, j in pairwise(firsts.tolist())], longest.tolist())


@cache
def _none(dtype: "np.dtype[Any]") -> Array:
    """Return the array of no rows that stands for one that is left out."""
    return np.empty((0, 0), dtype)


def _compile(function: _Function) -> _Function:
    # mypy has to agree where numba, which has types of its own, is installed and where it is not.
    compile_: Any = numba.njit(cache=True, nogil=True, error_model="numpy")
    return cast(_Function, compile_(function))


@_compile
def _fill(out: Array, value: int) -> None:
    for j in range(len(out)):
        out[j] = value


@_compile
def _count(out: Array) -> None:
    for j in range(len(out)):
        out[j] = j


@_compile
def _copy(out: Array, values: Array) -> None:
    for j in range(len(out)):
        out[j] = values[j]


@_compile
def _fill_rows(
    tokens: Array,
    stored_mask: Array,
    offsets: Array,
    starts: Array,
    lengths: Array,
    following: Array,
    first: int,
    count: int,
    row: int,
    micro_batch_size: int,
    ids: Array,
    labels: Array,
    positions: Array,
    numbers: Array,
    mask: Array,
    bounds: Array,
    firsts: Array,
    longest: Array,
    at: int,
) -> int:
    """Write rows [row, row + count) of a block; an array without rows is left out."""
    seq_len = np.int64(tokens.shape[1])
    has_stored = len(stored_mask) > 0
    for k in range(count):
        source, out = first + k, row + k
        batch, place = out // micro_batch_size, out % micro_batch_size
        base = place * seq_len
        if place == 0:
            firsts[batch] = at
            bounds[at] = 0
            at += 1
        if len(ids):
            _copy(ids[out], tokens[source])
        if len(labels):
            _copy(labels[out, : seq_len - 1], tokens[source, 1:])
        done = np.int64(0)
        first_segment = offsets[source]
        stop_segment = offsets[source + 1]
        # One turn more than segments: the rest of the row is a gap before nothing.
        for segment in range(first_segment, stop_segment + 1):
            is_rest = segment == stop_segment
            begin = seq_len if is_rest else np.int64(starts[segment])
            if begin > done:
                if len(labels):
                    _fill(labels[out, done:begin], IGNORED_LABEL)
                if len(positions):
                    _count(positions[out, done:begin])
                if len(numbers):
                    _fill(numbers[out, done:begin], 0)
                if len(mask):
                    _fill(mask[out, done:begin], 0)
                bounds[at] = base + begin
                longest[batch] = max(longest[batch], begin - done)
                at += 1
            if is_rest:
                break
            end = begin + np.int64(lengths[segment])
            label = following[segment]
            if len(positions):
                _count(positions[out, begin:end])
            if len(numbers):
                _fill(numbers[out, begin:end], segment - first_segment + 1)
            if len(mask):
                if has_stored:
                    _copy(mask[out, begin:end], stored_mask[source, begin:end])
                else:
                    _fill(mask[out, begin:end], 1)
                if label < 0:
                    mask[out, end - 1] = 0
            if len(labels):
                labels[out, end - 1] = label if label >= 0 else IGNORED_LABEL
                if has_stored:
                    for j in range(begin, end):
                        if stored_mask[source, j] == 0:
                            labels[out, j] = IGNORED_LABEL
            bounds[at] = base + end
            longest[batch] = max(longest[batch], end - begin)
            at += 1
            done = end
    return at
