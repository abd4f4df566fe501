"""Garbage: how often Python looks for cycles while a graph runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.process_wide import process_wide

_OBJECTS = 100_000
"""New objects between two looks. Python itself takes 700."""


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
