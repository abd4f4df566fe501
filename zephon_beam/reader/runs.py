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
    rows = np.arange(len(offsets), dtype=np.int64) * seq_len
    counts = np.diff(offsets)
    begins = np.repeat(rows[:-1], counts) + starts
    # Sorted as 2·place, plus 1 unless a segment begins there: of the entries of one place the
    # first says whether the run that begins there is a segment.
    keys = np.concatenate((begins * 2, (begins + lengths) * 2 + 1, rows * 2 + 1))
    keys.sort()
    places = keys >> 1
    is_first = np.concatenate(([True], places[1:] != places[:-1]))
    bounds = places[is_first]
    is_segment = (keys[is_first] & 1 == 0)[:-1]
    narrow = np.int16 if seq_len < 1 << 15 else np.int32
    numbers = np.zeros(len(bounds) - 1, narrow)
    firsts = np.asarray(offsets[:-1], dtype=np.int64)
    numbers[is_segment] = np.arange(1, len(starts) + 1) - np.repeat(firsts, counts)
    lengths_of_runs = np.diff(bounds)
    gaps = np.flatnonzero(~is_segment)
    padding = _places(bounds[gaps], lengths_of_runs[gaps])
    return RowRuns(
        row_firsts=np.searchsorted(bounds, rows),
        starts=(bounds[:-1] % seq_len).astype(narrow),
        lengths=lengths_of_runs,
        numbers=numbers,
        padding_places=padding,
        padding_offsets=np.searchsorted(padding, rows),
    )


def _places(begins: Array, counts: Array) -> Array:
    """Return begins[0], begins[0] + 1, …, for `counts[0]` places, and so on; int64."""
    before = np.cumsum(counts) - counts
    return np.repeat(begins - before, counts) + np.arange(int(counts.sum()))
