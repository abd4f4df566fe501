"""Cutting files into chunks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.catalog.chunks import count_parts, count_ranges, count_runs, derive_part_rows

SIZES = st.lists(st.integers(0, 50), max_size=30)


@given(SIZES, st.integers(1, 60))
def test_ranges_cover_each_file(sizes: list[int], chunk_bytes: int) -> None:
    """An empty file has none."""
    counts = count_ranges(np.array(sizes, dtype=np.int64), chunk_bytes)
    assert counts.tolist() == [len(range(0, size, chunk_bytes)) for size in sizes]


@given(SIZES, st.integers(1, 60))
def test_runs_close_once_they_hold_enough(sizes: list[int], chunk_bytes: int) -> None:
    """Every file is in one; only the last may hold less."""
    starts = count_runs(np.array(sizes, dtype=np.int64), chunk_bytes)
    runs: list[list[int]] = []
    for size, starts_run in zip(sizes, starts.tolist(), strict=True):
        if starts_run:
            runs.append([])
        runs[-1].append(size)
    assert all(sum(run) >= chunk_bytes > sum(run[:-1]) for run in runs[:-1])
    assert sum(map(len, runs)) == len(sizes)


@given(st.integers(0, 10**12), st.integers(0, 10**15), st.integers(1, 2**40))
def test_parts_hold_about_chunk_bytes_and_at_least_a_row(
    rows: int, row_bytes: int, chunk_bytes: int
) -> None:
    """On average over the data set."""
    part_rows = derive_part_rows(rows, row_bytes, chunk_bytes)
    assert part_rows >= 1
    assert part_rows == 1 or part_rows * row_bytes <= rows * chunk_bytes
    assert (count_parts(rows, part_rows) - 1) * part_rows < max(1, rows)
    assert count_parts(rows, part_rows) * part_rows >= rows
