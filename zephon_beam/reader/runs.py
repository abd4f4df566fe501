"""The runs of a shard's rows: what every batch array but the tokens is spread from.

A run is a stretch between neighbouring boundaries of a row. A segment is one, and so is each gap
between segments and the rest of a row:

    row        |   segment 1     | segment 2 | padding |
    starts     | 0               | 8         | 13      |
    lengths    | 8               | 5         | 4       |
    numbers    | 1               | 2         | 0       |

Found once for all rows of a shard; a batch takes a stretch of them.
"""

from dataclasses import dataclass

import numpy as np

from zephon_beam.shard import Array


@dataclass(frozen=True, slots=True)
class RowRuns:
    """Runs in the order of rows and places."""

    row_firsts: Array
    """First run of each row and the number of all, int64[rows + 1]."""
    starts: Array
    """Place in the row, of the narrowest type that holds every place; int[runs]."""
    lengths: Array
    """int64[runs], of at least 1."""
    numbers: Array
    """Segment of the row from 1, or 0 for padding; of the same type as `starts`."""
    padding_places: Array
    """Place of each token of padding among all tokens, int64[places], rising."""
    padding_offsets: Array
    """Bounds of each row's `padding_places`, int64[rows + 1]."""


def find_runs(offsets: Array, starts: Array, lengths: Array, seq_len: int) -> RowRuns:
    """Find the runs of rows.

    Args:
        offsets: bounds of each row's segments, int[rows + 1].
        starts: place of each segment in its row, int32[segments], rising within a row.
        lengths: tokens of each segment, int32[segments], of at least 1.
        seq_len: tokens of a row.
    """
    offsets = np.asarray(offsets, dtype=np.int64)
    rows = np.arange(len(offsets), dtype=np.int64)
    row_of = np.repeat(rows[:-1], np.diff(offsets))
    begins = row_of * seq_len + starts
    ends = begins + lengths
    # Each segment, the gap before it and the gap at the end of each row, in order; a gap that is
    # not there is one of no length. Segments before a place and rows before it make its number.
    segments = 2 * np.arange(len(begins)) + row_of + 1
    rests = 2 * offsets[1:] + rows[:-1]
    bounds = np.empty(2 * len(begins) + len(rows), np.int64)
    bounds[segments] = begins
    bounds[segments + 1] = ends
    # What begins a row has overwritten nothing yet: it follows the rest of the row before.
    bounds[np.concatenate(([0], rests + 1))] = rows * seq_len
    sizes = np.diff(bounds)
    narrow = np.int16 if seq_len < 1 << 15 else np.int32
    numbers = np.zeros(len(sizes), narrow)
    numbers[segments] = np.arange(1, len(begins) + 1) - offsets[row_of]
    kept = np.flatnonzero(sizes)
    sizes, numbers, bounds = sizes[kept], numbers[kept], bounds[kept]
    gaps = np.flatnonzero(numbers == 0)
    padding = _places(bounds[gaps], sizes[gaps])
    return RowRuns(
        row_firsts=np.searchsorted(kept, np.concatenate(([0], rests + 1))),
        starts=(bounds % seq_len).astype(narrow),
        lengths=sizes,
        numbers=numbers,
        padding_places=padding,
        padding_offsets=np.searchsorted(padding, rows * seq_len),
    )


def _places(begins: Array, counts: Array) -> Array:
    """Return begins[0], begins[0] + 1, …, for `counts[0]` places, and so on; int64."""
    before = np.cumsum(counts) - counts
    return np.repeat(begins - before, counts) + np.arange(int(counts.sum()))
