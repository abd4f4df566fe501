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

from zephon_beam.samples import Array

MISPLACED = "segments overlap, lie outside their row, or are empty"
"""What is wrong with segments that are not behind each other in their row."""


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
    gap_begins: Array
    """Place among all tokens of each run of padding, int64[gaps], rising."""
    gap_lengths: Array
    """int64[gaps]."""
    gap_firsts: Array
    """First gap of each row and the number of all, int64[rows + 1]."""
    last_places: Array
    """Place among all tokens of each segment's last token, int64[segments]."""


def find_runs(offsets: Array, starts: Array, lengths: Array, seq_len: int) -> RowRuns:
    """Find the runs of rows.

    Args:
        offsets: bounds of each row's segments, int[rows + 1].
        starts: place of each segment in its row, int32[segments], rising within a row.
        lengths: tokens of each segment, int32[segments], of at least 1.
        seq_len: tokens of a row.

    Raises:
        ValueError: segments overlap, lie outside their row, or are empty.
    """
    offsets = offsets.astype(np.int64)
    rows = np.arange(len(offsets), dtype=np.int64)
    row_of = rows[:-1].repeat(offsets[1:] - offsets[:-1])
    begins = row_of * seq_len
    begins += starts
    ends = begins + lengths
    # Each segment, the gap before it and the gap at the end of each row, in order; a gap that is
    # not there is one of no length. Segments before a place and rows before it make its number.
    count = len(begins)
    order = np.arange(count)
    segments = row_of + 1
    segments += order
    segments += order
    row_bounds = np.zeros(len(rows), np.int64)
    np.add(2 * offsets[1:], rows[1:], out=row_bounds[1:])
    bounds = np.empty(2 * count + len(rows), np.int64)
    bounds[segments] = begins
    # What begins a row has overwritten nothing yet: it follows the rest of the row before.
    bounds[segments + 1] = ends
    bounds[row_bounds] = rows * seq_len
    sizes = bounds[1:] - bounds[:-1]
    if sizes.min(initial=0) < 0 or lengths.min(initial=1) < 1:
        raise ValueError(MISPLACED)
    narrow = np.int16 if seq_len < 1 << 15 else np.int32
    numbers = np.zeros(len(sizes), narrow)
    numbers[segments] = order + 1 - offsets[row_of]
    kept = sizes.nonzero()[0]
    sizes, numbers, bounds = sizes[kept], numbers[kept], bounds[kept]
    gaps = (numbers == 0).nonzero()[0]
    row_firsts = kept.searchsorted(row_bounds)
    return RowRuns(
        row_firsts=row_firsts,
        starts=(bounds % seq_len).astype(narrow),
        lengths=sizes,
        numbers=numbers,
        gap_begins=bounds[gaps],
        gap_lengths=sizes[gaps],
        gap_firsts=gaps.searchsorted(row_firsts),
        last_places=ends - 1,
    )


def places_of(begins: Array, counts: Array) -> Array:
    """Return begins[0], begins[0] + 1, …, for `counts[0]` places, and so on; int64."""
    before = counts.cumsum() - counts
    found: Array = (begins - before).repeat(counts)
    found += np.arange(len(found))
    return found
