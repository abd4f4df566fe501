"""The endless job: one streaming job that keeps a stream ahead of its consumers.

It makes the same samples as advances, from the same lane processes; only when they are made is
decided in the job itself (see `transforms.supply_endless`). What it leaves are shards and lane
states, so that advances, or another endless job, go on from there.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from pipelines.advance import build_advance
from pipelines.follow import POLL_SECS, Follower
from pipelines.open_stream import OpenStream
from pipelines.runners import running_pipeline
from pipelines.watching import read_lane_samples
from transforms.stream_job import StreamJob
from transforms.supply_endless import SupplyEndlessly
from zephon_beam.demand import read_lengths
from zephon_beam.plan import LanePlan, Plan, encode_plan
from zephon_beam.position import Position
from zephon_beam.sample_order import SampleOrder

WINDOW_BYTES = 32 * 1024 * 1024
"""Source bytes under way to all lanes together, if `--advance-bytes` is not less."""
_LEAST_DRAIN_BYTES = 64 * 1024


def run_endless(
    job: StreamJob,
    opened: OpenStream,
    position: Position,
    options: PipelineOptions,
    *,
    window_bytes: int = WINDOW_BYTES,
    drain_bytes: int,
    follower: Follower,
    until_samples: int | None = None,
    report: Callable[[Sequence[int]], None] | None = None,
) -> int:
    """Run one endless job until its stream is long enough, ends, or this process is interrupted.

    SIGTERM interrupts like Ctrl-C: the job is cancelled, and the stream is intact.

    Args:
        job: what workers open; its number is replaced by that of a new plan.
        opened: the stream.
        position: where it stands; no advance may be pending.
        options: of Beam, for the engine.
        window_bytes: source bytes under way to all lanes together, roughly.
        drain_bytes: bytes that gather for a lane before it packs, at most.
        follower: knows the consumers and deletes what is behind them.
        until_samples: complete samples with which the job ends, None without a limit.
        report: called now and then with the samples of each lane.

    Returns:
        The number of the plan.

    Raises:
        ZephonBeamError: what a worker met, named as it was there.
    """
    plan = _write_plan(opened, position)
    job = replace(job, advance=plan.advance, recomputes=False, endless=True)
    window = max(1, window_bytes // max(1, len(plan.lanes)))
    supply = SupplyEndlessly(
        job, window_bytes=window, lookahead=follower.lookahead, until_samples=until_samples
    )
    watch = _Watch(opened, position, plan, follower, until_samples, report)
    with (
        _interrupted_by_sigterm(),
        _streaming(options),
        watch.ended_on_purpose(),
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
        watch.start(pipeline)
    return plan.advance


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
        self._left = threading.Event()
        self._has_enough = False
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
            if not self._has_enough and self._error is None:
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
                self._has_enough = self._look()
            except Exception as error:  # noqa: BLE001 - raised again where the job was started
                self._error = error
            if self._has_enough or self._error is not None:
                result.cancel()
                return

    def _look(self) -> bool:
        """Report and clean up once; say whether the stream is long enough."""
        samples = read_lane_samples(self._opened.store, self._position, self._plan.advance)
        if self._report is not None:
            self._report(samples)
        self._follower.look()
        if self._until_samples is None:
            return False
        lengths = read_lengths(self._opened.store, self._opened.manifest)
        order = SampleOrder(len(samples), lengths)
        return order.complete_prefix(samples) >= self._until_samples


@contextmanager
def _streaming(options: PipelineOptions) -> Iterator[None]:
    """Ask for a streaming job; the options are the caller's, who may run advances with them."""
    standard = options.view_as(StandardOptions)
    standard.streaming = True
    try:
        yield
    finally:
        standard.streaming = False


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
