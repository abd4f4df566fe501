"""The endless job: one streaming job that keeps a stream ahead of its consumers.

It makes the same samples as advances, from the same lane processes; only when they are made is
decided in the job itself (see `transforms.supply_endless`). What it leaves are shards and lane
states, so that advances, or another endless job, go on from there.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    PipelineOptions,
    StandardOptions,
    WorkerOptions,
)

from pipelines.advance import build_advance
from pipelines.draining import Leftover
from pipelines.engine_defaults import DIRECT_RUNNERS, STATE_CACHE_MB
from pipelines.engines.flink_jobs import end_cluster_job
from pipelines.follow import POLL_SECS, Follower
from pipelines.open_stream import OpenStream
from pipelines.runners import running_pipeline
from pipelines.watching import read_standings
from transforms.stream_job import StreamJob
from transforms.supply_endless import SupplyEndlessly
from zephon_beam.errors import RecipeError
from zephon_beam.health import refuse_empty_datasets, refuse_starving_lanes
from zephon_beam.lane_listing import read_lengths
from zephon_beam.plan import LanePlan, Plan, encode_plan
from zephon_beam.position import Position
from zephon_beam.sample_order import SampleOrder

_LOGGER = logging.getLogger(__name__)
_LASTING: tuple[str, ...] = ()
"""Runners that are known to carry a job for long: that pass the test of flat memory
(`tests/engines/test_streaming_memory.py`) and were never seen to stop scheduling. Prism 2.77
passes, and once gave a job no bundle any more (docs/engines.md)."""
WINDOW_BYTES = 32 * 1024 * 1024
"""Source bytes under way to all lanes together, if `--advance-bytes` is not less."""
_LEAST_DRAIN_BYTES = 64 * 1024


def refuse_endless_in_process(options: PipelineOptions) -> None:
    """Refuse the engine that runs nothing behind a shuffle before its source has ended.

    Raises:
        RecipeError: it is chosen.
    """
    runner = options.view_as(StandardOptions).runner
    if runner in DIRECT_RUNNERS:
        raise RecipeError(
            "--endless must be given with an engine that runs jobs without end, got the one in "
            "process; nothing would come out of it; leave --endless out: --follow then runs one "
            "advance after the other"
        )


def can_be_endless(opened: OpenStream, options: PipelineOptions) -> bool:
    """Say whether an endless job is known to last with this engine and these sources.

    If not, a warning says why.
    """
    runner = options.view_as(StandardOptions).runner
    reason = None
    if runner not in _LASTING:
        reason = f"{runner} is not known to carry such a job for long"
    names = zip(opened.recipe.dataset_names, opened.catalogs, strict=True)
    uncounted = [name for name, catalog in names if not catalog.counts_parts]
    if uncounted:
        reason = f"datasets.{uncounted[0]} has files that are read from their start"
    if reason is not None:
        _LOGGER.warning("--endless: %s, so --follow runs one advance after the other", reason)
    return reason is None


def run_endless(
    make_job: Callable[[Plan], StreamJob],
    opened: OpenStream,
    position: Position,
    options: PipelineOptions,
    *,
    window_bytes: int = WINDOW_BYTES,
    drain_bytes: int,
    follower: Follower,
    until_samples: int | None = None,
    report: Callable[[Sequence[int]], None] | None = None,
) -> bool:
    """Run one endless job until its stream is long enough, ends, or this process is interrupted.

    SIGTERM interrupts like Ctrl-C: the job is cancelled, and the stream is intact.

    Args:
        make_job: makes what workers open of the job's plan.
        opened: the stream.
        position: where it stands; no advance may be pending.
        options: of Beam, for the engine.
        window_bytes: source bytes under way to all lanes together, roughly.
        drain_bytes: bytes that gather for a lane before it packs, at most.
        follower: knows the consumers and deletes what is behind them.
        until_samples: complete samples with which the job ends, None without a limit.
        report: called now and then with the samples of each lane.

    Returns:
        Whether the job ended by itself: its lanes did, or it was drained.

    Raises:
        ZephonBeamError: what a worker met, named as it was there.
    """
    plan = _write_plan(opened, position)
    job = make_job(plan)
    window = max(1, window_bytes // max(1, len(plan.lanes)))
    supply = SupplyEndlessly(
        job, window_bytes=window, lookahead=follower.lookahead, until_samples=until_samples
    )
    watch = _Watch(opened, position, plan, follower, until_samples, report)
    with (
        _interrupted_by_sigterm(),
        _streaming(options),
        watch.ended_on_purpose(),
        _ended_in_cluster(options) as started,
        running_pipeline(options) as pipeline,
    ):
        build_advance(
            pipeline,
            job,
            plan,
            parallel=True,
            drain_bytes=min(drain_bytes, max(window // 2, _LEAST_DRAIN_BYTES)),
            supply=supply,
        )
        started.append(pipeline)
        watch.start(pipeline)
    return not watch.has_enough


def _write_plan(opened: OpenStream, position: Position) -> Plan:
    """Write the plan of a job under a number that no other job has."""
    lanes = tuple(
        LanePlan(lane=head.lane, head_kind=head.kind, head_number=head.number, supply=())
        for head in position.heads
        if not head.ended
    )
    number = position.next_advance
    while True:
        plan = Plan(
            advance=number, fingerprint=opened.manifest.fingerprint, lanes=lanes, endless=True
        )
        if opened.store.put_if_absent(plan.name, encode_plan(plan), lambda _stored, _ours: True):
            return plan
        number += 1


class _Watch:
    """Looks after a job in a thread of its own, while the main thread waits for it."""

    def __init__(
        self,
        opened: OpenStream,
        position: Position,
        plan: Plan,
        follower: Follower,
        until_samples: int | None,
        report: Callable[[Sequence[int]], None] | None,
    ) -> None:
        self._opened = opened
        self._position = position
        self._plan = plan
        self._follower = follower
        self._until_samples = until_samples
        self._report = report
        self._leftover = Leftover(store=opened.store, manifest=opened.manifest, plan=plan)
        self._is_left_over = False
        self._left = threading.Event()
        self.has_enough = False
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self, pipeline: beam.Pipeline) -> None:
        """Watch the job of a pipeline as soon as it has one."""
        self._thread = threading.Thread(
            target=self._look_after, args=(pipeline,), name="watch-endless", daemon=True
        )
        self._thread.start()

    @contextmanager
    def ended_on_purpose(self) -> Iterator[None]:
        """Take the failure of a job that was cancelled because of us for its end.

        Raises:
            Exception: what this thread met.
        """
        try:
            yield
        except RuntimeError:
            if not (self.has_enough or self._is_left_over) and self._error is None:
                raise
        finally:
            self._left.set()
            if self._thread is not None:
                self._thread.join()
        if self._error is not None:
            raise self._error

    def _look_after(self, pipeline: beam.Pipeline) -> None:
        while not self._left.wait(POLL_SECS):
            result = getattr(pipeline, "result", None)
            if result is None:
                continue
            try:
                self.has_enough = self._look()
                self._is_left_over = self._leftover.look()
            except Exception as error:  # noqa: BLE001 - raised again where the job was started
                self._error = error
            if self.has_enough or self._is_left_over or self._error is not None:
                result.cancel()
                return

    def _look(self) -> bool:
        """Report and clean up once; say whether the stream is long enough."""
        store, manifest = self._opened.store, self._opened.manifest
        standing = read_standings(store, self._position, self._plan.advance, manifest.fingerprint)
        samples = [head.samples for head in standing.heads]
        if self._report is not None:
            self._report(samples)
        self._follower.look()
        refuse_empty_datasets(store, manifest, standing)
        refuse_starving_lanes(store, manifest, standing)
        if self._until_samples is None:
            return False
        lengths = read_lengths(store, manifest)
        order = SampleOrder(len(samples), lengths)
        return order.complete_prefix(samples) >= self._until_samples


@contextmanager
def _streaming(options: PipelineOptions) -> Iterator[None]:
    """Ask for a streaming job; the options are the caller's, who may run advances with them.

    Nothing is left of the default cache before the states: it keeps the parts of bundles that are
    long over, up to its size, and a lane reads its state once in a drain.
    """
    standard, worker = options.view_as(StandardOptions), options.view_as(WorkerOptions)
    cache_mb = worker.max_cache_memory_usage_mb
    standard.streaming = True
    if cache_mb == STATE_CACHE_MB:
        worker.max_cache_memory_usage_mb = 0
    try:
        yield
    finally:
        standard.streaming = False
        worker.max_cache_memory_usage_mb = cache_mb


@contextmanager
def _ended_in_cluster(options: PipelineOptions) -> Iterator[list[beam.Pipeline]]:
    """End the job of a pipeline where Beam only forgets it."""
    pipelines: list[beam.Pipeline] = []
    try:
        yield pipelines
    finally:
        result = getattr(pipelines[0], "result", None) if pipelines else None
        name = getattr(result, "_job_id", None)
        if name is not None and options.view_as(StandardOptions).runner == "FlinkRunner":
            end_cluster_job(options.view_as(FlinkRunnerOptions).flink_master, name)


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that a job without end does not outlive its command."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    usual = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)
