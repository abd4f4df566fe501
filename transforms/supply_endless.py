"""SupplyEndlessly: from lanes to the parts that an endless job supplies to each of them.

A splittable DoFn without end, one element a lane. Each call of `process` is one poll: it reads how
far the lane and its consumers are, claims what it supplies, emits it, and lets the runner call it
again a little later. What is supplied is decided in `zephon_beam.polls`; here is only how it gets
into a graph:

- The *restriction* is what the lane was supplied with, so that a checkpoint holds it. It is never
  shared between two holders: a split leaves nothing to the one and all that comes to the other.
- The *round* is the event time: 0.1 s of the wall clock, and at least one more than the round
  before. With every poll the watermark goes on by one, also if nothing was supplied: else lanes
  that wait would hold back the timers of lanes that lag.
- A *drain* that was asked for in the stream (`zephon_beam.draining`) is the lane's last poll: it
  says how many parts were supplied, so that the lane commits all of them, and leaves no rest.
- Every 10 s a poll leaves a *trace* in the stream, for whoever watches the job to see that the
  engine still calls it.
- A drain of the engine takes away the restriction, if the engine does so, and so ends the job
  without another element.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.coders import Coder, VarIntCoder
from apache_beam.io.iobase import RestrictionProgress, RestrictionTracker, WatermarkEstimator
from apache_beam.pvalue import PCollection
from apache_beam.transforms.core import RestrictionProvider, WatermarkEstimatorProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from transforms.lane_items import HEAD_ITEM, NUDGE_ITEM, SupplyItem, drain_item
from transforms.stream_job import StreamJob
from zephon_beam.demand import read_lane_targets
from zephon_beam.draining import is_drain_asked
from zephon_beam.errors import ResumeError
from zephon_beam.heads import Heads
from zephon_beam.lane_progress import LaneProgress, decode_progress
from zephon_beam.layout import POLLED, progress_name
from zephon_beam.plan import LanePlan
from zephon_beam.poll_trace import encode_trace
from zephon_beam.polls import Supplier
from zephon_beam.supplied import Supplied, decode_supplied, encode_supplied
from zephon_beam.supply import LaneHead, SupplyPlanner

POLL_SECS = 0.5
_LEAST_POLL_SECS = 0.4
"""Engines that come back at once, whether a delay was asked for or not, are held up: some keep
something of every poll. Of many lanes only the first one in turn has to wait."""
POLL_LABEL = "PollLanes"
_MICROS_PER_ROUND = 100_000
TRACE_SECS = 10.0
"""Between two traces of a worker's polls."""
_DEMAND_SECS = 1.0
"""Between two looks at the consumers, and at whether to drain; all lanes of a worker share them."""


class SupplyEndlessly(beam.PTransform[Any, Any]):
    """Emit each lane's head and then, for ever, what it lacks, as pointers.

    Element types: in int (lane), out tuple[int, SupplyItem]; unbounded. The event time of an
    element is its round.

    Determinism: none of its own; it decides when a part comes, never which part comes next.
    """

    def __init__(
        self,
        job: StreamJob,
        *,
        window_bytes: int,
        lookahead: int,
        until_samples: int | None,
        asks_for_delay: bool = True,
    ) -> None:
        """Supply the lanes of `job`.

        Args:
            job: the endless job.
            window_bytes: source bytes under way to one lane, roughly.
            lookahead: samples to keep ahead of the slowest consumer.
            until_samples: complete samples beyond which none is wanted, None without a limit.
            asks_for_delay: whether the engine is to wait between two polls, or the worker waits:
                not every engine comes back surely from a wait.
        """
        super().__init__()
        delay = Duration(POLL_SECS) if asks_for_delay else None
        self._poll = _PollLane(job, window_bytes, lookahead, until_samples, delay)

    def expand(self, lanes: PCollection[Any]) -> PCollection[Any]:
        """Poll for each lane."""
        return lanes | POLL_LABEL >> beam.ParDo(self._poll)


class SuppliedCoder(Coder):
    """Encodes `Supplied` as integers."""

    def encode(self, value: Supplied) -> bytes:
        """Encode a restriction."""
        return encode_supplied(value)

    def decode(self, encoded: bytes) -> Supplied:
        """Decode what `encode` made."""
        return decode_supplied(encoded)

    def is_deterministic(self) -> bool:
        """Equal values have equal encodings."""
        return True


class SupplyTracker(RestrictionTracker):
    """Tracks what a lane was supplied with; a split leaves all that comes to the other holder."""

    def __init__(self, supplied: Supplied) -> None:
        """Go on from what was supplied."""
        self._supplied = supplied

    def current_restriction(self) -> Supplied:
        """Return what was claimed up to now."""
        return self._supplied

    def current_progress(self) -> RestrictionProgress:
        """Say nothing: what is left has no size."""
        return RestrictionProgress(fraction=0.0)

    def try_claim(self, position: Supplied) -> bool:
        """Claim to supply up to a position, which may be the last one."""
        if self._supplied.stopped:
            return False
        self._supplied = position
        return True

    def try_split(self, fraction_of_remainder: float) -> tuple[Supplied, Supplied] | None:
        """Give all that comes after the last claim away, if a checkpoint is asked for."""
        if self._supplied.stopped or fraction_of_remainder != 0:
            return None
        rest = self._supplied
        self._supplied = replace(rest, stopped=True)
        return self._supplied, rest

    def check_done(self) -> bool:
        """Make sure that the rest was given away, or that there is none.

        Raises:
            ValueError: it was not.
        """
        if not self._supplied.stopped:
            raise ValueError("a poll must end its lane or defer it; this is a bug")
        return True

    def is_bounded(self) -> bool:
        """Say that there is no end to be waited for, so that Beam truncates it to nothing."""
        return False


class RoundEstimator(WatermarkEstimator):
    """Counts rounds; the watermark is the next one's number."""

    def __init__(self, following: int) -> None:
        """Go on with the round that comes."""
        self._following = following

    def current_watermark(self) -> Timestamp:
        """Return the time below which nothing is emitted any more."""
        return Timestamp(self._following)

    def get_estimator_state(self) -> int:
        """Return the number of the next round."""
        return self._following

    def observe_timestamp(self, timestamp: Timestamp) -> None:
        """Leave it: rounds count whether something was emitted or not."""

    def begin(self, clock: int) -> int:
        """Return the number of this round.

        Args:
            clock: wall clock in rounds.
        """
        self._following = max(self._following, clock)
        return self._following

    def end(self) -> None:
        """Say that nothing more is emitted in this round."""
        self._following += 1


class _RoundEstimators(WatermarkEstimatorProvider):
    def initial_estimator_state(self, _element: Any, _restriction: Any) -> int:
        return 0

    def create_watermark_estimator(self, estimator_state: int) -> RoundEstimator:
        return RoundEstimator(estimator_state)

    def estimator_state_coder(self) -> Coder:
        return VarIntCoder()


_SUPPLIED = beam.DoFn.RestrictionParam()
_ROUNDS = beam.DoFn.WatermarkEstimatorParam(_RoundEstimators())


class _PollLane(beam.DoFn, RestrictionProvider):
    def __init__(
        self,
        job: StreamJob,
        window_bytes: int,
        lookahead: int,
        until_samples: int | None,
        delay: Duration | None,
    ) -> None:
        self._job = job
        self._delay = delay
        self._window_bytes = window_bytes
        self._lookahead = lookahead
        self._until_samples = until_samples

    def initial_restriction(self, _element: int) -> Supplied:
        return Supplied()

    def restriction_coder(self) -> Coder:
        return SuppliedCoder()

    def restriction_size(self, _element: int, _restriction: Supplied) -> float:
        return 1.0

    def create_tracker(self, restriction: Supplied) -> SupplyTracker:
        return SupplyTracker(restriction)

    def setup(self) -> None:
        self._store = self._job.store()
        self._manifest = self._job.manifest()
        self._plan = self._job.plan()
        config = self._job.lane_config()
        self._planner = SupplyPlanner(config, self._job.catalogs(), self._job.chunk_orders())
        self._suppliers: dict[int, Supplier] = {}
        self._targets: list[int | None] = []
        self._looked = self._asked = -_DEMAND_SECS
        self._is_draining = False
        self._polled: dict[int, float] = {}
        self._traced = -TRACE_SECS

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]
    def process(
        self, element: int, tracker: Any = _SUPPLIED, rounds: Any = _ROUNDS
    ) -> Iterator[tuple[int, SupplyItem]]:
        lane = element
        self._hold_up(lane)
        self._leave_trace()
        supplied = tracker.current_restriction()
        supplier = self._supplier(lane)
        number = rounds.begin(Timestamp.now().micros // _MICROS_PER_ROUND)
        # Beam unwraps timestamps; its type hints name what is inside.
        if not supplied.head_sent:
            self._refuse_lost_head(supplier.start)
            supplied = supplier.first()
            if not tracker.try_claim(supplied):
                return
            yield TimestampedValue((lane, HEAD_ITEM), number)  # type: ignore[misc]
        if self._is_drained():
            if tracker.try_claim(replace(supplied, stopped=True)):
                yield TimestampedValue((lane, drain_item(supplied.parts)), number)  # type: ignore[misc]
            return
        poll = supplier.poll(supplied, self._read_progress(lane), lambda: self._target(lane))
        if not tracker.try_claim(poll.supplied):
            return
        if poll.nudges:
            yield TimestampedValue((lane, NUDGE_ITEM), number)  # type: ignore[misc]
        for entry in poll.entries:
            item = (entry.dataset, entry.number, entry.first_part, entry.part_count)
            yield TimestampedValue((lane, item), number)  # type: ignore[misc]
        rounds.end()
        if not poll.supplied.stopped:
            tracker.defer_remainder(self._delay)

    def _hold_up(self, lane: int) -> None:
        since = time.monotonic() - self._polled.get(lane, -_LEAST_POLL_SECS)
        if since < _LEAST_POLL_SECS:
            time.sleep(_LEAST_POLL_SECS - since)
        self._polled[lane] = time.monotonic()

    def _leave_trace(self) -> None:
        now = time.monotonic()
        if now - self._traced >= TRACE_SECS:
            self._traced = now
            trace = encode_trace(self._plan.advance, time.monotonic_ns())
            self._store.replace(POLLED, trace, durable=False)

    def _supplier(self, lane: int) -> Supplier:
        if lane not in self._suppliers:
            self._suppliers[lane] = Supplier(
                planner=self._planner,
                start=self._start(self._plan.lane(lane)),
                job=self._plan.advance,
                fingerprint=self._manifest.fingerprint,
                dataset_count=len(self._job.recipe.datasets),
                window_bytes=self._window_bytes,
            )
        return self._suppliers[lane]

    def _start(self, plan: LanePlan) -> LaneHead:
        """Read what the lane starts from; a job that runs may outlive it."""
        heads, number = Heads(self._store, self._manifest), plan.head_number
        found = None
        if plan.head_kind == "carry":
            found = heads.carry(plan.lane, number)
        elif plan.head_kind == "state":
            state = heads.state(plan.lane, number)
            if state is not None:
                found = LaneHead(lane=plan.lane, kind="state", number=number, state=state)
        elif plan.head_kind == "origin":
            found = heads.beginning(plan.lane)
        return found or LaneHead(lane=plan.lane, kind="none", number=-1, state=None)

    def _refuse_lost_head(self, start: LaneHead) -> None:
        plan = self._plan.lane(start.lane)
        if start.kind != plan.head_kind:
            raise ResumeError(
                f"{plan.head_name} must be there for a job that starts from it, found it missing "
                "or damaged; the job cannot begin again; the stream is intact: run the recipe again"
            )

    def _read_progress(self, lane: int) -> LaneProgress | None:
        try:
            return decode_progress(self._store.get(progress_name(lane)))
        except FileNotFoundError:
            return None

    def _is_drained(self) -> bool:
        """Say whether the job was asked to end, as seen not long ago."""
        now = time.monotonic()
        if now - self._asked >= _DEMAND_SECS:
            self._asked = now
            self._is_draining = is_drain_asked(self._store, self._plan.advance)
        return self._is_draining

    def _target(self, lane: int) -> int | None:
        """Return how many samples the consumers want of a lane now, as seen not long ago."""
        now = time.monotonic()
        if now - self._looked >= _DEMAND_SECS:
            self._looked = now
            self._targets = read_lane_targets(
                self._store,
                self._manifest,
                lanes_end=not self._job.recipe.endless,
                lookahead=self._lookahead,
                until=self._until_samples,
            )
        return self._targets[lane]
