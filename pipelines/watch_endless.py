"""Looking after an endless job from beside it: ends it when it has enough, or counts as dead."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import apache_beam as beam
from apache_beam.runners.runner import PipelineResult

from pipelines.cancelling import CANCEL_SECS, cancel
from pipelines.draining import Leftover
from pipelines.follow import POLL_SECS, Follower
from pipelines.liveness import Death, Liveness
from pipelines.open_stream import OpenStream
from pipelines.prism_servers import PrismRunnerWithOwnServer
from pipelines.watching import read_reports, standing_after
from zephon_beam.draining import is_drain_asked
from zephon_beam.health import refuse_empty_datasets, refuse_starving_lanes
from zephon_beam.lane_listing import read_lengths
from zephon_beam.plan import Plan
from zephon_beam.position import Position
from zephon_beam.sample_order import SampleOrder

_LOGGER = logging.getLogger(__name__)
_CANCEL_SECS = 10.0
"""In which an engine takes the wish to cancel a job, unless it is dead itself."""


@dataclass(kw_only=True, slots=True)
class EndlessWatch:
    """Looks after one job in a thread of its own, while the main thread waits for it."""

    opened: OpenStream
    position: Position
    """Where the stream stood when the job began."""
    plan: Plan
    follower: Follower
    until_samples: int | None
    report: Callable[[Sequence[int]], None] | None
    patience: int
    """See `pipelines.liveness.Liveness`."""
    has_enough: bool = field(init=False, default=False)
    """Whether the job was ended because the stream is long enough."""
    death: Death | None = field(init=False, default=None)
    """Why it was ended because it counts as dead."""
    _is_left_over: bool = field(init=False, default=False)
    _took_engine: bool = field(init=False, default=False)
    _left: threading.Event = field(init=False, default_factory=threading.Event)
    _error: Exception | None = field(init=False, default=None)
    _thread: threading.Thread | None = field(init=False, default=None)

    def start(self, pipeline: beam.Pipeline) -> None:
        """Watch the job of a pipeline, which is about to start."""
        self._thread = threading.Thread(
            target=self._look_after, args=(pipeline,), name="watch-endless", daemon=True
        )
        self._thread.start()

    @contextmanager
    def ended_on_purpose(self) -> Iterator[None]:
        """Take the failure of a job that was ended because of us for its end.

        Raises:
            Exception: what this thread met.
        """
        try:
            yield
        except RuntimeError:
            if not (self.has_enough or self._is_left_over or self.death or self._error):
                raise
        except Exception:
            # Whatever a job meets whose engine is taken away.
            if not self._took_engine:
                raise
        finally:
            self._left.set()
            if self._thread is not None:
                self._thread.join()
        if self._error is not None:
            raise self._error

    def _look_after(self, pipeline: beam.Pipeline) -> None:
        opened = self.opened
        leftover = Leftover(store=opened.store, manifest=opened.manifest, plan=self.plan)
        liveness = Liveness(
            store=opened.store,
            manifest=opened.manifest,
            recipe=opened.recipe,
            job=self.plan.advance,
            lookahead=self.follower.lookahead,
            until_samples=self.until_samples,
            patience=self.patience,
        )
        while not self._left.wait(POLL_SECS):
            # None until the engine has taken the job, for which it may be dead, too.
            result = getattr(pipeline, "result", None)
            try:
                self._look(liveness, leftover if result is not None else None)
            except Exception as error:  # noqa: BLE001 - raised again where the job was started
                self._error = error
            if self.has_enough or self._is_left_over or self.death or self._error:
                self._end(pipeline, result)
                return

    def _look(self, liveness: Liveness, leftover: Leftover | None) -> None:
        """Look once at everything; without `leftover` the job has not begun."""
        store, manifest = self.opened.store, self.opened.manifest
        lanes = [entry.lane for entry in self.plan.lanes]
        reports = read_reports(store, lanes, self.plan.advance)
        standing = standing_after(self.position, reports, manifest.fingerprint)
        if leftover is not None:
            self._look_at_samples(standing)
            self._is_left_over = leftover.look()
        if not (self.has_enough or self._is_left_over):
            death = liveness.look(standing, reports)
            if death is not None and is_drain_asked(store, self.plan.advance):
                _LOGGER.warning(
                    "endless job was asked to end, and counts as dead: %s, and %s; it is "
                    "cancelled; the stream is intact, run it again to go on",
                    death.reason,
                    death.lanes,
                )
                self._is_left_over = True
            else:
                self.death = death

    def _look_at_samples(self, standing: Position) -> None:
        """Report and clean up once; find out whether the stream is long enough."""
        store, manifest = self.opened.store, self.opened.manifest
        samples = [head.samples for head in standing.heads]
        if self.report is not None:
            self.report(samples)
        self.follower.look()
        refuse_empty_datasets(store, manifest, standing)
        refuse_starving_lanes(store, manifest, standing)
        if self.until_samples is not None:
            order = SampleOrder(len(samples), read_lengths(store, manifest))
            self.has_enough = order.complete_prefix(samples) >= self.until_samples

    def _end(self, pipeline: beam.Pipeline, result: PipelineResult | None) -> None:
        """Cancel the job; where its engine does not obey, or is dead, end that, if it is ours."""
        was_taken = result is not None and cancel(result)
        runner = pipeline.runner
        if not isinstance(runner, PrismRunnerWithOwnServer):
            if not was_taken:
                _LOGGER.warning(
                    "engine has not taken the wish to cancel a job for %.0f s; it is waited for; "
                    "the stream is intact: to go on sooner, interrupt this, end the job in the "
                    "engine, and run it again",
                    CANCEL_SECS,
                )
        elif self.death is not None or not was_taken:
            self._took_engine = True
            runner.end_process()
            # Beam starts one that fails before it has answered twice more.
            while not self._left.wait(POLL_SECS):
                runner.end_process()
