"""The token-wise arrays of a block in one pass, by code that numba compiles.

What `zephon_beam.reader.blocks` does with a dozen NumPy calls for each stretch of rows is here one
call: each row is read once and all its arrays are written while it lies in the nearest cache. The
bytes are the same. Imported where numba is installed only; compiled once and kept on disk.

Arrays are made for a few microbatches at a time, when the first of them is asked for, so that they
are in the core's cache still when they are read, and their memory when it is written again.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar, cast

import numba
import numpy as np

from zephon_beam.reader.blocks import Block, cut_rows
from zephon_beam.reader.shards import IGNORED_LABEL
from zephon_beam.samples import Array

FIELDS = (
    "input_ids",
    "labels",
    "position_ids",
    "segment_ids",
    "loss_mask",
    "cu_seqlens",
    "max_seqlen",
)
"""Fields that `fill` makes."""

CACHED_BYTES = 1 << 19
"""Bytes of arrays made at a time; twice that, and the rows they are made of, fit in a cache."""

_INDEXED = FIELDS[:4]
_MASK = np.dtype(np.uint8)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def fill(block: Block, fields: Sequence[str], micro_batch_size: int) -> Iterator[tuple[Any, ...]]:
    """Compute fields of a block.

    Args:
        block: of rows, and filler behind them.
        fields: some of `FIELDS`.
        micro_batch_size: rows of each batch.

    Yields:
        The values of the fields of each microbatch, in the order of `FIELDS`.

    Determinism: the same values as those of the block's own methods.
    """
    size, seq_len = micro_batch_size, block.seq_len
    indexed = [field for field in _INDEXED if field in fields]
    has_mask = "loss_mask" in fields
    bounds = iter(_bounds(block, size, fields))
    tokens = size * seq_len * (len(indexed) * block.index_dtype.itemsize + has_mask)
    most = max(1, CACHED_BYTES // max(1, tokens))
    has_ids, has_labels, has_positions, has_numbers = (field in fields for field in _INDEXED)
    no_mask = _none()
    pieces = cut_rows(block.parts, most * size)
    for first in range(0, block.row_count, most * size):
        rows = min(most * size, block.row_count - first)
        whole = block.pool.take((len(indexed), rows, seq_len), block.index_dtype)
        mask = block.pool.take((rows, seq_len), _MASK) if has_mask else no_mask
        row = 0
        for part in next(pieces, ()):
            shard = part.shard
            stored = shard.loss_mask
            is_sound = _fill_rows(
                shard.tokens,
                no_mask if stored is None else stored,
                shard.segment_table,
                shard.segment_offsets,
                part.first,
                part.count,
                row,
                has_ids,
                has_labels,
                has_positions,
                has_numbers,
                whole,
                mask,
            )
            if not is_sound:
                raise shard.misplaced()
            row += part.count
        if row < rows:
            block.fill_up(dict(zip(indexed, whole, strict=True)), row)
            mask[row:] = 0
        batches = whole.reshape(len(indexed), rows // size, size, seq_len)
        masks = mask.reshape(rows // size, size, seq_len) if has_mask else ()
        # What is still referred to when it is asked for again is not free to be written.
        del whole, mask
        for place in range(rows // size):
            yield (*batches[:, place], *masks[place : place + has_mask], *next(bounds))
        del batches, masks


@cache
def _none() -> Array:
    """Return the mask of no rows that stands for one that is left out."""
    return np.empty((0, 0), _MASK)


def _bounds(block: Block, micro_batch_size: int, fields: Sequence[str]) -> list[tuple[Any, ...]]:
    """Compute `cu_seqlens` and `max_seqlen` of each microbatch, those that are asked for."""
    count = block.row_count // micro_batch_size
    if not set(fields) & set(FIELDS[5:]):
        return [()] * count
    seq_len = block.seq_len
    places = np.empty(2 * (block.row_count + block.segment_count) + 1, np.int32)
    firsts = np.empty(count + 1, np.int64)
    longest = np.zeros(count, np.int64)
    row = at = 0
    for part in block.parts:
        shard = part.shard
        at = _bound_rows(
            shard.segment_table,
            shard.segment_offsets,
            part.first,
            part.count,
            row,
            micro_batch_size,
            seq_len,
            places,
            firsts,
            longest,
            at,
        )
        if at < 0:
            raise shard.misplaced()
        row += part.count
    for filler in range(row, block.row_count):
        batch, place = divmod(filler, micro_batch_size)
        if place == 0:
            firsts[batch], places[at] = at, 0
            at += 1
        places[at] = (place + 1) * seq_len
        longest[batch] = seq_len
        at += 1
    firsts[-1] = at
    columns: list[list[Any]] = []
    if "cu_seqlens" in fields:
        columns.append([places[first:last] for first, last in pairwise(firsts.tolist())])
    if "max_seqlen" in fields:
        columns.append(longest.tolist())
    return list(zip(*columns, strict=True))


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
    table: Array,
    offsets: Array,
    first: int,
    count: int,
    row: int,
    has_ids: bool,
    has_labels: bool,
    has_positions: bool,
    has_numbers: bool,
    whole: Array,
    masks: Array,
) -> bool:
    """Write rows [row, row + count) of the arrays that there are, which lie in their order.

    False where segments are not behind each other in their row: nothing is written outside of it.
    """
    seq_len = np.int64(tokens.shape[1])
    has_stored = len(stored_mask) > 0
    has_mask = len(masks) > 0
    labels_at = np.int64(has_ids)
    positions_at = labels_at + has_labels
    numbers_at = positions_at + has_positions
    for k in range(count):
        source, out = first + k, row + k
        ids = whole[0, out]
        labels = whole[labels_at if has_labels else 0, out]
        positions = whole[positions_at if has_positions else 0, out]
        numbers = whole[numbers_at if has_numbers else 0, out]
        if has_ids:
            _copy(ids, tokens[source])
        if has_labels:
            _copy(labels[: seq_len - 1], tokens[source, 1:])
        done = np.int64(0)
        first_segment = offsets[source]
        stop_segment = offsets[source + 1]
        # One turn more than segments: the rest of the row is a gap before nothing.
        for segment in range(first_segment, stop_segment + 1):
            is_rest = segment == stop_segment
            begin = seq_len if is_rest else np.int64(table[0, segment])
            if begin > done:
                if has_labels:
                    _fill(labels[done:begin], IGNORED_LABEL)
                if has_positions:
                    _count(positions[done:begin])
                if has_numbers:
                    _fill(numbers[done:begin], 0)
                if has_mask:
                    _fill(masks[out, done:begin], 0)
            if is_rest:
                break
            end = begin + np.int64(table[1, segment])
            if begin < done or end <= begin or end > seq_len:
                return False
            label = table[2, segment]
            if has_positions:
                _count(positions[begin:end])
            if has_numbers:
                _fill(numbers[begin:end], segment - first_segment + 1)
            if has_mask:
                if has_stored:
                    _copy(masks[out, begin:end], stored_mask[source, begin:end])
                else:
                    _fill(masks[out, begin:end], 1)
                if label < 0:
                    masks[out, end - 1] = 0
            if has_labels:
                labels[end - 1] = label if label >= 0 else IGNORED_LABEL
                if has_stored:
                    for j in range(begin, end):
                        if stored_mask[source, j] == 0:
                            labels[j] = IGNORED_LABEL
            done = end
    return True


@_compile
def _bound_rows(
    table: Array,
    offsets: Array,
    first: int,
    count: int,
    row: int,
    micro_batch_size: int,
    seq_len: int,
    places: Array,
    firsts: Array,
    longest: Array,
    at: int,
) -> int:
    """Write the bounds of the runs of rows [row, row + count), from index `at` on.

    Returns the index behind them; -1 where segments are not behind each other in their row.
    """
    for k in range(count):
        source = first + k
        batch, place = (row + k) // micro_batch_size, (row + k) % micro_batch_size
        base = place * seq_len
        if place == 0:
            firsts[batch] = at
            places[at] = 0
            at += 1
        done = np.int64(0)
        stop_segment = offsets[source + 1]
        for segment in range(offsets[source], stop_segment + 1):
            is_rest = segment == stop_segment
            begin = np.int64(seq_len) if is_rest else np.int64(table[0, segment])
            if begin > done:
                places[at] = base + begin
                longest[batch] = max(longest[batch], begin - done)
                at += 1
            if is_rest:
                break
            end = begin + np.int64(table[1, segment])
            if begin < done or end <= begin or end > seq_len:
                return -1
            places[at] = base + end
            longest[batch] = max(longest[batch], end - begin)
            at += 1
            done = end
    return at
