"""WriteShards: commits what the lanes made, each object exactly once.

A bundle may be retried, or run twice at once on two workers: every object is created only if it
is absent, and an object that exists must hold what was computed again.
"""

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.pvalue import PCollection

from transforms.stream_job import StreamJob
from zephon_beam.carry import same_carry
from zephon_beam.lane_state import same_state
from zephon_beam.layout import carry_name, end_name, progress_name, shard_name, state_name
from zephon_beam.shard import same_shard
from zephon_beam.store.behind import NewObject, WriteBehind

_REPORT_SECS = 1.0
"""Between two reports of a lane; nobody looks at them more often."""

LaneCommit = tuple[str, int, int, int, bytes, bytes]
"""(kind, lane, number, samples of the lane, first payload, second payload)."""


def shard_commit(lane: int, shard: int, samples: int, state: bytes, data: bytes) -> LaneCommit:
    """Commit a shard and the lane state right after it."""
    return "shard", lane, shard, samples, state, data


def is_shard(commit: LaneCommit) -> bool:
    """Say whether a commit is that of a shard."""
    return commit[0] == "shard"


def carry_commit(lane: int, advance: int, data: bytes) -> LaneCommit:
    """Commit a lane's carry of an advance."""
    return "carry", lane, advance, -1, data, b""


def end_commit(lane: int, samples: int) -> LaneCommit:
    """Commit that a lane has ended with so many samples."""
    return "end", lane, -1, samples, b"", b""


def progress_report(lane: int, parts: int) -> LaneCommit:
    """Tell that so many parts of this advance have reached a lane; commits nothing."""
    return "progress", lane, parts, -1, b"", b""


def position_report(lane: int, samples: int, data: bytes) -> LaneCommit:
    """Tell where a lane of an endless job stands after a drain; commits nothing."""
    return "position", lane, -1, samples, data, b""


class WriteShards(beam.PTransform[Any, Any]):
    """Create the objects of each commit; a shard's state comes before the shard.

    Objects are written behind the bundle, those of a lane in their order, and the bundle ends when
    all are durable; so disks and services are not waited for while there is work to do.

    Element types: in LaneCommit, out str (name of the object that completed the commit).

    Raises:
        DeterminismError: an object exists with other content.

    Determinism: depends on the commits alone; repetition changes nothing.
    """

    def __init__(self, job: StreamJob) -> None:
        """Write into the stream of `job`."""
        super().__init__()
        self._job = job

    def expand(self, commits: PCollection[Any]) -> PCollection[Any]:
        """Commit one element at a time."""
        return commits | "Commit" >> beam.ParDo(_Commit(self._job))


class _Commit(beam.DoFn):
    def __init__(self, job: StreamJob) -> None:
        self._job = job
        self._shards = Metrics.counter("zephon_beam", "shards")

    def setup(self) -> None:
        self._store = self._job.store()
        self._behind = WriteBehind(self._store)
        self._known: dict[int, dict[str, int]] = {}
        self._reported: dict[int, float] = {}

    def start_bundle(self) -> None:
        self._behind.forget()

    def finish_bundle(self) -> None:
        self._behind.wait()

    def teardown(self) -> None:
        self._behind.close()

    def process(self, element: LaneCommit) -> Iterator[str]:
        kind, lane, number, samples, first, second = element
        if kind == "progress":
            self._report(lane, parts=number)
            return
        if kind == "position":
            self._behind.wait()
            self._write_report(lane, first)
            return
        objects: list[NewObject]
        if kind == "shard":
            state = (state_name(lane, number), first, same_state)
            objects = [state, (shard_name(lane, number), second, same_shard)]
        elif kind == "carry":
            objects = [(carry_name(lane, number), first, same_carry)]
        else:
            objects = [(end_name(lane), (json.dumps({"samples": samples}) + "\n").encode(), None)]
        # One queue a lane: a carry and an end come after the shards that they count.
        self._behind.put(lane, objects, partial(self._written, kind, lane, samples))
        yield objects[-1][0]

    def _written(self, kind: str, lane: int, samples: int, is_new: bool) -> None:
        self._shards.inc(int(kind == "shard" and is_new))
        if kind != "carry" and not self._job.endless:
            self._report(lane, samples=samples)

    def _report(self, lane: int, **known: int) -> None:
        """Say now and then how far the lane is; advice only, so it may be lost or stale."""
        known = {"advance": self._job.advance, **self._known.get(lane, {}), **known}
        self._known[lane] = known
        self._write_report(lane, (json.dumps(known) + "\n").encode())

    def _write_report(self, lane: int, content: bytes) -> None:
        now = time.monotonic()
        if now - self._reported.get(lane, -_REPORT_SECS) < _REPORT_SECS:
            return
        self._reported[lane] = now
        self._store.replace(progress_name(lane), content, durable=False)
