"""Progress within an advance: what the lanes say of themselves while the engine is busy."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from zephon_beam.layout import progress_name
from zephon_beam.position import Position
from zephon_beam.store.base import Store

_INTERVAL_SECS = 1.0


@contextmanager
def watched_lanes(
    store: Store, position: Position, report: Callable[[Sequence[int]], None]
) -> Iterator[None]:
    """Call `report` with the samples of each lane, now and then, while the block runs.

    The advice may be stale, damaged or missing; then a lane counts as it stood before.
    """
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(_INTERVAL_SECS):
            report([_samples(store, head.lane, head.samples) for head in position.heads])

    watcher = threading.Thread(target=watch, name="watch-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        watcher.join()


def _samples(store: Store, lane: int, known: int) -> int:
    try:
        advice = json.loads(store.get(progress_name(lane)))
        return max(known, int(advice["samples"]))
    except (OSError, ValueError, KeyError, TypeError):
        return known
