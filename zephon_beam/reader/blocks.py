"""Rows of shards as the arrays that a trainer takes, all of a block of rows at once.

Arrays but the tokens are spread from runs (see `zephon_beam.reader.runs`):

    row            |   segment 1     | segment 2 | padding |  segment 1 …
    tokens         | a b c d e f g h | k l m n o | 0 0 0 0 |  p q r s …
    segment_ids    | 1 1 1 1 1 1 1 1 | 2 2 2 2 2 | 0 0 0 0 |  1 1 1 1 …
    position_ids   | 0 1 2 3 4 5 6 7 | 0 1 2 3 4 | 0 1 2 3 |  0 1 2 3 …
    labels         | b c d e f g h i | l m n o - | - - - - |  q r s …

Segment 1 is cut: `i` is its `segment_next`. Segment 2 ends a document, so its last token has no
label (shown as -, stored as -100), and neither has padding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from zephon_beam.reader.pool import ArrayPool
from zephon_beam.reader.runs import places_of
from zephon_beam.reader.shards import IGNORED_LABEL, NO_DATASET, OpenShard
from zephon_beam.samples import Array

NO_SAMPLE = -1
MASK = np.dtype(np.uint8)
DATASET = np.dtype(np.uint16)
TILE_TOKENS = 1 << 15
"""Tokens spread at a time; the allocator keeps pieces of that size, larger ones are new memory."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows [first, first + count) of one shard."""

    shard: OpenShard
    first: int
    count: int

    @property
    def runs(self) -> tuple[int, int]:
        """Half-open range of the shard's runs that these rows have."""
        firsts = self.shard.runs.row_firsts
        return int(firsts[self.first]), int(firsts[self.first + self.count])

    @property
    def segment_count(self) -> int:
        """Segments of these rows."""
        offsets = self.shard.segment_offsets
        return int(offsets[self.first + self.count] - offsets[self.first])


def cut_rows(parts: Sequence[Rows], size: int) -> Iterator[list[Rows]]:
    """Cut rows into pieces of `size` rows, the last one of what is left."""
    piece: list[Rows] = []
    room = size
    for part in parts:
        first, last = part.first, part.first + part.count
        while first < last:
            count = min(room, last - first)
            piece.append(Rows(part.shard, first, count))
            first += count
            room -= count
            if room == 0:
                yield piece
                piece, room = [], size
    if piece:
        yield piece


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
    segment_multiple: int = 1
    """Places in a row that segments begin at are multiples of it."""
    pool: ArrayPool = field(default_factory=ArrayPool)
    """Where its large arrays come from; they go back when nobody holds them any more."""

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
        labels = self._new(self.index_dtype)
        flat = labels.reshape(-1)
        for row, part in self._placed:
            place = row * self.seq_len
            # The last token of a row is the last of its segment or padding, so it is set below.
            tokens = part.shard.tokens[part.first : part.first + part.count].reshape(-1)
            flat[place : place + len(tokens) - 1] = tokens[1:]
            lasts, following = self._lasts(row, part)
            flat[lasts] = following
            flat[self._padding(row, part)] = IGNORED_LABEL
        labels[self._real_count :] = IGNORED_LABEL
        if self._has_loss_mask:
            np.copyto(labels, IGNORED_LABEL, where=self.loss_mask == 0)
        return labels

    @cached_property
    def loss_mask(self) -> Array:
        """1 where the label counts, uint8 [rows, seq_len]."""
        mask = self._new(MASK)
        flat = mask.reshape(-1)
        for row, part in self._placed:
            stored = part.shard.loss_mask
            rows = mask[row : row + part.count]
            rows[...] = 1 if stored is None else stored[part.first : part.first + part.count]
            lasts, following = self._lasts(row, part)
            flat[lasts[following == IGNORED_LABEL]] = 0
            flat[self._padding(row, part)] = 0
        mask[self._real_count :] = 0
        return mask

    @cached_property
    def position_ids(self) -> Array:
        """Places within the run, [rows, seq_len]: 0 exactly at the boundaries."""
        out = self._new(self.index_dtype)
        flat = out.reshape(-1)
        for shard, place, stop, first, last in self._tiles:
            runs = shard.runs
            # In the narrow type of the runs, which is converted once at the end.
            begins = runs.starts[first:last].repeat(runs.lengths[first:last])
            ramp = self.pool.ramp(stop - place, self.seq_len, begins.dtype)
            np.subtract(ramp, begins, out=begins)
            flat[place:stop] = begins
        out[self._real_count :] = np.arange(self.seq_len, dtype=self.index_dtype)
        return out

    @cached_property
    def segment_ids(self) -> Array:
        """Segments of a row numbered from 1, [rows, seq_len]; 0 is padding."""
        return self._spread(lambda shard: shard.runs.numbers, 0, self.index_dtype)

    @cached_property
    def dataset_ids(self) -> Array:
        """Place of the token's data set in the recipe, uint16 [rows, seq_len]; 0xFFFF: padding."""
        return self._spread(lambda shard: shard.run_datasets, NO_DATASET, DATASET)

    @cached_property
    def sample_ids(self) -> Array:
        """Global numbers of the rows, int64[rows]; -1 is filler."""
        ids = np.full(self.row_count, NO_SAMPLE, np.int64)
        ids[: self._real_count] = self.real_sample_ids
        return ids

    def cu_seqlens(self, micro_batch_size: int) -> list[Array]:
        """Boundaries of the runs of each flattened microbatch, int32, from 0 to mb·seq_len.

        Every row start is one and every padding run stands by itself, so attention never joins
        two documents, two rows, or a document and filler.
        """
        bounds = np.zeros(len(self._run_lengths) + 1, np.int32)
        np.cumsum(self._run_lengths, dtype=np.int32, out=bounds[1:])
        return [
            bounds[first : last + 1] - bounds[first]
            for first, last in pairwise(self._microbatch_runs(micro_batch_size))
        ]

    def cu_seqlens_padded(self, micro_batch_size: int) -> list[Array]:
        """Bounds of the slots of each flattened microbatch, int32, from 0 to mb·seq_len.

        A slot is a segment with the padding that aligns the next one, or the rest of a row. Where
        segments are not aligned it is `cu_seqlens`.
        """
        return self._cumulated(self._slots[1], micro_batch_size)

    def cu_seqlens_real(self, micro_batch_size: int) -> list[Array]:
        """Cumulated lengths of the slots without the padding that aligns the next one, int32."""
        return self._cumulated(self._slots[2], micro_batch_size)

    def max_seqlen(self, micro_batch_size: int) -> list[int]:
        """Length of the longest run of each microbatch, padding included."""
        firsts = self._microbatch_runs(micro_batch_size)[:-1]
        longest: list[int] = np.maximum.reduceat(self._run_lengths, firsts).tolist()
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
    def run_ends(self) -> Array:
        """Flat place behind each run, int64[runs]."""
        return np.cumsum(self._run_lengths, dtype=np.int64)

    @property
    def _real_count(self) -> int:
        return len(self.real_sample_ids)

    @cached_property
    def _has_loss_mask(self) -> bool:
        return any(part.shard.loss_mask is not None for part in self.parts)

    @property
    def segment_count(self) -> int:
        """Segments of all rows."""
        return sum(part.segment_count for part in self.parts)

    def fill_up(self, arrays: Mapping[str, Array], first: int) -> None:
        """Write filler into rows of fields in the index type, from row `first` on."""
        fillers = {
            "input_ids": self.pad_id,
            "labels": IGNORED_LABEL,
            "position_ids": np.arange(self.seq_len),
            "segment_ids": 0,
        }
        for name, array in arrays.items():
            array[first:] = fillers[name]

    # ---------------------------------------------------------------- runs and segments of the rows

    @cached_property
    def _placed(self) -> list[tuple[int, Rows]]:
        """The parts, each with its first row in the block."""
        counts = [part.count for part in self.parts]
        firsts = [0, *accumulate(counts)]
        return list(zip(firsts, self.parts, strict=False))

    def _new(self, dtype: "np.dtype[Any]") -> Array:
        return self.pool.take((self.row_count, self.seq_len), dtype)

    def _lasts(self, row: int, part: Rows) -> tuple[Array, Array]:
        """Flat places in the block of a part's last tokens of segments, and their labels."""
        shard, offsets = part.shard, part.shard.segment_offsets
        first, last = offsets[part.first], offsets[part.first + part.count]
        places = shard.runs.last_places[first:last] + (row - part.first) * self.seq_len
        return places, shard.last_labels[first:last]

    def _padding(self, row: int, part: Rows) -> Array:
        """Flat places in the block of a part's padding."""
        runs = part.shard.runs
        first, last = runs.gap_firsts[part.first], runs.gap_firsts[part.first + part.count]
        places = places_of(runs.gap_begins[first:last], runs.gap_lengths[first:last])
        places += (row - part.first) * self.seq_len
        return places

    @cached_property
    def _tiles(self) -> list[tuple[OpenShard, int, int, int, int]]:
        """Small stretches of rows: (shard, first place and the one behind, likewise of runs).

        What is spread over one is small enough to be cut from memory that the process has already,
        and to stay in a core's cache until it is converted.
        """
        rows = max(1, TILE_TOKENS // self.seq_len)
        tiles = []
        for row, part in self._placed:
            edges = [*range(part.first, part.first + part.count, rows), part.first + part.count]
            firsts = part.shard.runs.row_firsts[edges].tolist()
            shift = row - part.first
            places = [(edge + shift) * self.seq_len for edge in edges]
            tiles += [
                (part.shard, *places[k : k + 2], *firsts[k : k + 2]) for k in range(len(edges) - 1)
            ]
        return tiles

    @cached_property
    def _run_bounds(self) -> list[tuple[OpenShard, int, int]]:
        """Half-open range of runs of each part."""
        return [(part.shard, *part.runs) for part in self.parts]

    def _of_runs(self, values: Callable[[OpenShard], Array], filler: int) -> Array:
        """Take one value a run of all rows; a filler row is one run."""
        pieces = [values(shard)[first:last] for shard, first, last in self._run_bounds]
        missing = self.row_count - self._real_count
        if missing:
            dtype = pieces[0].dtype if pieces else np.dtype(np.int64)
            pieces.append(np.full(missing, filler, dtype))
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    @cached_property
    def _run_lengths(self) -> Array:
        return self._of_runs(lambda shard: shard.runs.lengths, self.seq_len)

    @cached_property
    def _run_numbers(self) -> Array:
        return self._of_runs(lambda shard: shard.runs.numbers, 0)

    def _spread(
        self, values: Callable[[OpenShard], Array], filler: int, dtype: "np.dtype[Any]"
    ) -> Array:
        """Repeat one value a run over its tokens, [rows, seq_len]."""
        out = self._new(dtype)
        flat = out.reshape(-1)
        for shard, place, stop, first, last in self._tiles:
            flat[place:stop] = values(shard)[first:last].repeat(shard.runs.lengths[first:last])
        out[self._real_count :] = filler
        return out

    def _microbatch_runs(self, micro_batch_size: int) -> list[int]:
        """First run of each microbatch, and the number of all."""
        firsts = np.arange(self.row_count + 1)
        row, base = 0, 0
        for part, (shard, first, last) in zip(self.parts, self._run_bounds, strict=True):
            stored = shard.runs.row_firsts[part.first : part.first + part.count]
            firsts[row : row + part.count] = stored + (base - first)
            row += part.count
            base += last - first
        firsts[row:] += base - row
        places: list[int] = firsts[::micro_batch_size].tolist()
        return places

    @cached_property
    def _slots(self) -> tuple[Array, Array, Array]:
        """Slots before each run and all, int64[runs + 1]; whole and real lengths, int64[slots].

        runs      | segment  ·  ·  ·  | segment  ·    ·  ·  ·  · |
        slots     | segment + padding | segment + . | rest       |
        """
        lengths, numbers = self._run_lengths, self._run_numbers
        starts = self._of_runs(lambda shard: shard.runs.starts, 0)
        # Padding at the start of a row aligns nothing, and 0 is aligned already.
        aligning = np.where(numbers == 0, np.minimum(-starts % self.segment_multiple, lengths), 0)
        real = lengths - aligning
        whole = real.copy()
        whole[:-1] += aligning[1:]
        kept = real > 0
        before = np.concatenate(([0], np.cumsum(kept)))
        return before, whole[kept], real[kept]

    def _cumulated(self, lengths: Array, micro_batch_size: int) -> list[Array]:
        """Cumulate lengths of slots within each microbatch, from 0, int32."""
        sums = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        places = self._slots[0][self._microbatch_runs(micro_batch_size)].tolist()
        return [sums[first : last + 1] - sums[first] for first, last in pairwise(places)]

    def _copy_rows(self, dtype: "np.dtype[Any]") -> Array:
        out = self._new(dtype)
        for row, part in self._placed:
            out[row : row + part.count] = part.shard.tokens[part.first : part.first + part.count]
        out[self._real_count :] = self.pad_id
        return out
