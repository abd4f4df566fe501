"""Rows of shards as the arrays that a trainer takes, all of a block of rows at once.

Every array but the tokens follows from the *runs* of a block, the stretches between neighbouring
boundaries: a segment is one run, and so is each gap between segments and the rest of a row.

    row            |   segment 1     | segment 2 | padding |  segment 1 …
    tokens         | a b c d e f g h | k l m n o | 0 0 0 0 |  p q r s …
    boundaries     | ^               | ^         | ^       |  ^
    segment_ids    | 1 1 1 1 1 1 1 1 | 2 2 2 2 2 | 0 0 0 0 |  1 1 1 1 …
    position_ids   | 0 1 2 3 4 5 6 7 | 0 1 2 3 4 | 0 1 2 3 |  0 1 2 3 …
    labels         | b c d e f g h i | l m n o - | - - - - |  q r s …

Segment 1 is cut: `i` is its `segment_next`. Segment 2 ends a document, so its last token has no
label (shown as -, stored as -100), and neither has padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from zephon_beam.reader.shards import OpenShard
from zephon_beam.shard import Array

IGNORED_LABEL = -100
NO_DATASET = 0xFFFF
NO_SAMPLE = -1


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows [first, first + count) of one shard."""

    shard: OpenShard
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class _Runs:
    """The stretches between neighbouring boundaries of a flattened block."""

    bounds: Array
    """int64[runs + 1], rising from 0 to rows·seq_len."""
    lengths: Array
    """int64[runs]."""
    is_segment: Array
    """bool[runs]; the others are padding."""
    segment_ends: Array
    """Place after each segment's last token, int64[segments]."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Rows, then filler rows up to `row_count`; each array is computed when first asked for.

    Determinism: depends on the rows and the sizes alone.
    """

    parts: Sequence[Rows]
    real_sample_ids: Array
    """Global numbers of the rows, int64[rows]."""
    row_count: int
    seq_len: int
    pad_id: int
    token_dtype: "np.dtype[Any]"
    index_dtype: "np.dtype[Any]"

    @cached_property
    def tokens(self) -> Array:
        """Stored tokens, uint16 or uint32 [rows, seq_len]; filler is `pad_id`."""
        return self._copy_rows(self.token_dtype)

    @cached_property
    def input_ids(self) -> Array:
        """Tokens in the index type [rows, seq_len]; filler is `pad_id`."""
        return self._copy_rows(self.index_dtype)

    @cached_property
    def labels(self) -> Array:
        """The next token of the same document, [rows, seq_len]; -100 where none counts."""
        labels = np.empty((self.row_count, self.seq_len), self.index_dtype)
        flat = labels.reshape(-1)
        place = 0
        for part in self.parts:
            # The last token of a row is the last of its segment or padding, so it is set below.
            tokens = part.shard.tokens[part.first : part.first + part.count].reshape(-1)
            flat[place : place + len(tokens) - 1] = tokens[1:]
            place += len(tokens)
        following = self._segments["segment_next"]
        flat[self._runs.segment_ends - 1] = np.where(following < 0, IGNORED_LABEL, following)
        flat[self._padding] = IGNORED_LABEL
        labels[len(self.real_sample_ids) :] = IGNORED_LABEL
        if self._has_loss_mask:
            np.copyto(labels, IGNORED_LABEL, where=self.loss_mask == 0)
        return labels

    @cached_property
    def loss_mask(self) -> Array:
        """1 where the label counts, uint8 [rows, seq_len]."""
        mask = np.ones((self.row_count, self.seq_len), np.uint8)
        row = 0
        for part in self.parts if self._has_loss_mask else ():
            stored = part.shard.loss_mask
            if stored is not None:
                mask[row : row + part.count] = stored[part.first : part.first + part.count]
            row += part.count
        flat = mask.reshape(-1)
        document_ends = self._segments["segment_next"] < 0
        flat[self._runs.segment_ends[document_ends] - 1] = 0
        flat[self._padding] = 0
        mask[len(self.real_sample_ids) :] = 0
        return mask

    @cached_property
    def position_ids(self) -> Array:
        """Places within the run, [rows, seq_len]: 0 exactly at the boundaries."""
        runs = self._runs
        in_row = (runs.bounds[:-1] % self.seq_len).astype(self.index_dtype)
        places = np.repeat(in_row, runs.lengths).reshape(self.row_count, self.seq_len)
        # One row of numbers for all rows: it stays in the nearest cache.
        np.subtract(np.arange(self.seq_len, dtype=self.index_dtype), places, out=places)
        return places

    @cached_property
    def segment_ids(self) -> Array:
        """Segments of a row numbered from 1, [rows, seq_len]; 0 is padding."""
        firsts = np.cumsum(self._segment_counts) - self._segment_counts
        total = int(self._segment_counts.sum())
        numbers = np.arange(1, total + 1) - np.repeat(firsts, self._segment_counts)
        return self._per_segment(numbers.astype(self.index_dtype), 0)

    @cached_property
    def dataset_ids(self) -> Array:
        """Place of the token's data set in the recipe, uint16 [rows, seq_len]; 0xFFFF: padding."""
        return self._per_segment(self._segments["source_dataset"], NO_DATASET)

    @cached_property
    def sample_ids(self) -> Array:
        """Global numbers of the rows, int64[rows]; -1 is filler."""
        ids = np.full(self.row_count, NO_SAMPLE, np.int64)
        ids[: len(self.real_sample_ids)] = self.real_sample_ids
        return ids

    def cu_seqlens(self, micro_batch_size: int) -> list[Array]:
        """Boundaries of the runs of each flattened microbatch, int32, from 0 to mb·seq_len.

        Every row start is one and every padding run stands by itself, so attention never joins
        two documents, two rows, or a document and filler.
        """
        bounds = self._runs.bounds.astype(np.int32)
        return [
            bounds[first : last + 1] - bounds[first]
            for first, last in self._microbatch_runs(micro_batch_size)
        ]

    def max_seqlen(self, micro_batch_size: int) -> list[int]:
        """Length of the longest run of each microbatch, padding included."""
        firsts = [first for first, _ in self._microbatch_runs(micro_batch_size)]
        longest: list[int] = np.maximum.reduceat(self._runs.lengths, firsts).tolist()
        return longest

    def num_valid_tokens(self, micro_batch_size: int) -> list[int]:
        """Labels that count in each microbatch."""
        counts = np.zeros(self.row_count, np.int64)
        row = 0
        for part in self.parts:
            stored = part.shard.valid_tokens
            counts[row : row + part.count] = stored[part.first : part.first + part.count]
            row += part.count
        sums: list[int] = counts.reshape(-1, micro_batch_size).sum(axis=1).tolist()
        return sums

    @cached_property
    def _has_loss_mask(self) -> bool:
        return any(part.shard.loss_mask is not None for part in self.parts)

    @cached_property
    def _segment_counts(self) -> Array:
        """Segments of each real row, int64[real rows]."""
        counts = []
        for part in self.parts:
            offsets = part.shard.segment_offsets
            counts.append(np.diff(offsets[part.first : part.first + part.count + 1]))
        return _joined(counts, np.int64)

    @cached_property
    def _segments(self) -> dict[str, Array]:
        """The segment columns that batches are made of, over all real rows."""
        names = ("segment_starts", "segment_lengths", "segment_next", "source_dataset")
        pieces: dict[str, list[Array]] = {name: [] for name in names}
        for part in self.parts:
            offsets = part.shard.segment_offsets
            first, last = int(offsets[part.first]), int(offsets[part.first + part.count])
            for name in names:
                pieces[name].append(part.shard.segments(name)[first:last])
        return {
            name: _joined(columns, np.uint16 if name == "source_dataset" else np.int32)
            for name, columns in pieces.items()
        }

    @cached_property
    def _runs(self) -> "_Runs":
        rows = np.arange(self.row_count + 1, dtype=np.int64) * self.seq_len
        counts = self._segment_counts
        starts = np.repeat(rows[: len(counts)], counts) + self._segments["segment_starts"]
        ends = starts + self._segments["segment_lengths"]
        # Sorted as 2·place, plus 1 unless a segment starts there: of the entries of one place the
        # first says whether the run that begins there is a segment.
        keys = np.concatenate((starts * 2, ends * 2 + 1, rows * 2 + 1))
        keys.sort()
        places = keys >> 1
        firsts = np.flatnonzero(places[1:] != places[:-1]) + 1
        bounds = np.concatenate((places[:1], places[firsts]))
        is_segment = np.concatenate((keys[:1], keys[firsts[:-1]])) & 1 == 0
        return _Runs(bounds, bounds[1:] - bounds[:-1], is_segment, ends)

    @cached_property
    def _padding(self) -> Array:
        """Flat places of padding inside real rows, int64[places]."""
        runs = self._runs
        end = len(self.real_sample_ids) * self.seq_len
        chosen = np.flatnonzero(~runs.is_segment)
        chosen = chosen[runs.bounds[chosen] < end]
        firsts, counts = runs.bounds[chosen], runs.lengths[chosen]
        before = np.cumsum(counts) - counts
        return np.repeat(firsts - before, counts) + np.arange(int(counts.sum()))

    def _per_segment(self, values: Array, padding: int) -> Array:
        """Spread one value a segment over its tokens, [rows, seq_len]."""
        runs = self._runs
        by_run = np.full(len(runs.lengths), padding, values.dtype)
        by_run[runs.is_segment] = values
        return np.repeat(by_run, runs.lengths).reshape(self.row_count, self.seq_len)

    def _microbatch_runs(self, micro_batch_size: int) -> list[tuple[int, int]]:
        """Half-open range of runs of each microbatch."""
        rows = np.arange(0, self.row_count + 1, micro_batch_size, dtype=np.int64)
        places: list[int] = np.searchsorted(self._runs.bounds, rows * self.seq_len).tolist()
        return list(pairwise(places))

    def _copy_rows(self, dtype: "np.dtype[Any]") -> Array:
        out = np.empty((self.row_count, self.seq_len), dtype)
        row = 0
        for part in self.parts:
            out[row : row + part.count] = part.shard.tokens[part.first : part.first + part.count]
            row += part.count
        out[row:] = self.pad_id
        return out


def _joined(columns: list[Array], dtype: Any) -> Array:
    if len(columns) == 1:
        return columns[0]
    return np.concatenate(columns) if columns else np.zeros(0, dtype)
