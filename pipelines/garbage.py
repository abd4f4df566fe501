"""Garbage: how often Python looks for cycles while a graph runs, and what is given back at once."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.process_wide import process_wide

_OBJECTS = 100_000
"""New objects between two looks. Python itself takes 700."""

_M_MMAP_THRESHOLD = -3
"""Number of the setting in the C library of GNU."""
_LARGE_BYTES = 1 << 20


def return_large_blocks() -> None:
    """Let this process return each large block of memory to the system as soon as it is freed.

    The C library of GNU does so until the first one is freed; from then on it keeps blocks of that
    size, in an arena for each of many threads, between smaller ones that are in use. Threads of
    workers come and go with jobs: after a dozen of them a driver had 130 MB that nothing used.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)


@process_wide
@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cycles rarely while the block runs.

    Pieces are many small tuples that are in no cycle, and each full look walks through all of
    Beam's modules: together an eighth of a run's processor time for nothing that is ever found.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(max(_OBJECTS, thresholds[0]) if thresholds[0] else 0, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
