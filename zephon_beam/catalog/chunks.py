"""How files are cut into chunks, without reading their data.

    ranges       a file of 10 bytes, chunk_bytes 4:   [0, 4) [4, 8) [8, 10)
    row groups   one chunk a row group, in parts of `part_rows` rows
    runs         files of 3, 2, 9 and 1 bytes, chunk_bytes 4:   files 0-1, file 2, file 3
    sequential   one chunk a file, in parts of `chunk_bytes` expanded bytes; how many, reading tells

A document belongs to the chunk that holds its first byte, so every document is in exactly one.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


class Cut(Enum):
    """How the files of a format are cut into chunks."""

    RANGES = "ranges"
    ROW_GROUPS = "row groups"
    RUNS = "runs"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A stretch of a data set: the unit of order.

    Ranges: bytes [start, stop) of one file. Row groups: rows [start, stop) of one file, which are
    its row group `row_group`. Runs, sequential: whole files; start and stop are 0.
    """

    chunk: int
    first_file: int
    file_count: int
    start: int
    stop: int
    row_group: int
    """Place of the row group in its file; -1 for other cuts."""


def count_ranges(sizes: IntArray, chunk_bytes: int) -> IntArray:
    """Return the number of byte ranges of each file, int64[files]; an empty file has none."""
    return -(-sizes // chunk_bytes)


def count_runs(sizes: IntArray, chunk_bytes: int) -> IntArray:
    """Return 1 for each file that starts a run and 0 for those that continue one, int64[files].

    A run is closed by the file with which it holds at least `chunk_bytes`.
    """
    counts = np.zeros(len(sizes), dtype=np.int64)
    held = chunk_bytes
    for file, size in enumerate(sizes.tolist()):
        if held >= chunk_bytes:
            counts[file] = 1
            held = 0
        held += size
    return counts


def derive_part_rows(rows: int, row_bytes: int, chunk_bytes: int) -> int:
    """Return the rows of a part: about `chunk_bytes` of expanded data, and at least one row.

    A part is what a lane keeps open of a row group, so it has the size that the memory limit of
    `derive_chunk_bytes` assumes. One number for the whole data set, from its footers alone.
    """
    return max(1, rows * chunk_bytes // max(1, row_bytes))


def count_parts(rows: int, part_rows: int) -> int:
    """Return the number of parts of a row group; an empty one still has one, which says so."""
    return max(1, -(-rows // part_rows))
