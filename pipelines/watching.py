"""Progress within an advance: what the lanes say of themselves while the engine is busy."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from zephon_beam.lane_progress import LaneProgress, decode_progress
from zephon_beam.layout import progress_name
from zephon_beam.plan import Plan
from zephon_beam.position import Position
from zephon_beam.store.base import Store

_INTERVAL_SECS = 1.0


@contextmanager
def watched_lanes(
    store: Store,
    position: Position,
    plan: Plan,
    report: Callable[[Sequence[int], float], None],
) -> Iterator[None]:
    """Call `report` with each lane's samples and the fraction supplied while the block runs.

    The advice may be stale, damaged or missing; then a lane counts as it stood before.
    """
    stopped = threading.Event()
    planned = {entry.lane: sum(s.part_count for s in entry.supply) for entry in plan.lanes}

    def watch() -> None:
        while not stopped.wait(_INTERVAL_SECS):
            # A store that does not answer takes its time with every lane.
            advice = [
                {} if stopped.is_set() else _read(store, head.lane, plan.advance)
                for head in position.heads
            ]
            samples = [
                max(head.samples, known.get("samples", 0))
                for head, known in zip(position.heads, advice, strict=True)
            ]
            parts = sum(
                min(known.get("parts", 0), planned.get(head.lane, 0))
                for head, known in zip(position.heads, advice, strict=True)
            )
            report(samples, parts / max(1, sum(planned.values())))

    watcher = threading.Thread(target=watch, name="watch-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        watcher.join()


def read_reports(store: Store, lanes: Sequence[int], advance: int) -> dict[int, LaneProgress]:
    """Return what lanes of an endless job say of themselves, of those that say anything.

    Args:
        store: of the stream.
        lanes: to look at.
        advance: number of the job's plan.
    """
    reports = {}
    for lane in lanes:
        with suppress(OSError):
            said = decode_progress(store.get(progress_name(lane)))
            if said is not None and (said.job, said.lane) == (advance, lane):
                reports[lane] = said
    return reports


def standing_after(
    position: Position, reports: Mapping[int, LaneProgress], fingerprint: str
) -> Position:
    """Return where lanes say that they are, or were where they say nothing.

    Args:
        position: where they were when the job began.
        reports: what they say.
        fingerprint: of the stream.
    """
    heads = [
        reports[head.lane].head(fingerprint) if head.lane in reports else head
        for head in position.heads
    ]
    return replace(position, heads=tuple(heads))


def _read(store: Store, lane: int, advance: int) -> dict[str, int]:
    """Return a lane's advice about an advance, empty if there is none that can be used."""
    try:
        advice = json.loads(store.get(progress_name(lane)))
        if advice["advance"] != advance:
            return {}
        return {name: int(advice[name]) for name in ("samples", "parts") if name in advice}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
