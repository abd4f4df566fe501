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
from pipelines.engine_defaults import DIRECT_RUNNERS, STATE_CACHE_MB
from pipelines.engines.flink_jobs import end_cluster_job
from pipelines.engines.flink_state import few_key_groups
from pipelines.follow import Follower
from pipelines.liveness import Restarts
from pipelines.open_stream import OpenStream
from pipelines.runners import running_pipeline
from pipelines.watch_endless import EndlessWatch
from transforms.stream_job import StreamJob
from transforms.supply_endless import SupplyEndlessly
from zephon_beam.errors import RecipeError
from zephon_beam.plan import LanePlan, Plan, encode_plan
from zephon_beam.position import Position, read_position

_LOGGER = logging.getLogger(__name__)
_LASTING: tuple[str, ...] = ("PrismRunner",)
"""Runners that are known to carry a job for long: that pass the test of flat memory
(`tests/engines/test_streaming_memory.py`)."""
_OVERSLEEPING = ("PrismRunner",)
"""Runners that may never come back from a delay. Prism 2.77 sets one alarm for it, by one clock,
and looks at another when it rings: if that was set back meanwhile, by a few ms, it rings too early,
and no other one is set."""
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
    """Run an endless job until its stream is long enough, ends, or this process is interrupted.

    SIGTERM interrupts like Ctrl-C: the job is cancelled, and the stream is intact. A job that is
    dead (`pipelines.liveness`) is cancelled, and another one goes on.

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
        ZephonBeamError: what a worker met, named as it was there; or that one job after the other
            was dead.
    """
    runner = str(options.view_as(StandardOptions).runner)
    restarts = Restarts(runner=runner, stream=opened.store.uri)
    while True:
        plan = _write_plan(opened, position)
        job = make_job(plan)
        window = max(1, window_bytes // max(1, len(plan.lanes)))
        supply = SupplyEndlessly(
            job,
            window_bytes=window,
            lookahead=follower.lookahead,
            until_samples=until_samples,
            asks_for_delay=runner not in _OVERSLEEPING,
        )
        watch = EndlessWatch(
            opened=opened,
            position=position,
            plan=plan,
            follower=follower,
            until_samples=until_samples,
            report=report,
            patience=restarts.patience,
        )
        with (
            _interrupted_by_sigterm(),
            _streaming(options),
            few_key_groups(options),
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
        if watch.death is None:
            return not watch.has_enough
        found = read_position(opened.store, opened.manifest)
        restarts.add(watch.death, made=found.samples - position.samples)
        if found.pending is not None or found.finished:
            # Another driver has gone on meanwhile.
            return False
        position = found


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
        # Raises what follows, unless Ctrl-C does something else here, or nothing.
        signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt

    usual = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)
