"""The driver: brings an opened stream on, job by job, until it is as long as wanted."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.advance import run_advance
from pipelines.endless import WINDOW_BYTES, run_endless
from pipelines.follow import Follower
from pipelines.open_stream import OpenStream
from pipelines.recompute import drop_cut_off_objects, recompute_lost
from pipelines.watching import watched_lanes
from transforms.stream_job import StreamJob, make_chunk_orders
from zephon_beam.errors import ZephonBeamError
from zephon_beam.heads import Heads
from zephon_beam.health import refuse_empty_datasets, refuse_starving_lanes
from zephon_beam.lane_config import make_lane_config
from zephon_beam.layout import plan_name
from zephon_beam.lost_shards import NEWEST
from zephon_beam.plan import Plan, encode_plan
from zephon_beam.position import (
    Position,
    is_complete,
    is_superseded,
    read_plan,
    read_position,
)
from zephon_beam.sample_order import SampleOrder
from zephon_beam.supply import SupplyPlanner


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run is, told before the first and after every advance."""

    advance: int
    samples: int
    complete_samples: int
    until_samples: int | None
    seconds: float
    supplied: float | None = None
    """Fraction of the running advance's supply that has reached the lanes; None between two."""
    endless: bool = False
    """Whether an endless job takes the place of advances."""
    running: bool = False
    """Whether a job is at work, of which more will be told."""


@dataclass(kw_only=True, slots=True)
class Driver:
    """Brings one stream on.

    Determinism: it decides how much is computed in which job, never what comes out.
    """

    opened: OpenStream
    options: PipelineOptions
    backend: str
    until: int | None
    """Complete samples wanted; None: until the stream ends."""
    advance_bytes: int
    drain_bytes: int
    follower: Follower | None
    endless: bool
    """Whether one streaming job takes the place of advances; asks for a follower."""
    leaves_job: bool
    """Whether an engine gets the job of one advance to run it later."""
    progress: Callable[[Progress], None] | None
    jobs: int = 0
    """How many were run."""
    position: Position = field(init=False)
    _planner: SupplyPlanner = field(init=False)
    _started: float = field(init=False, default_factory=time.monotonic)
    _wanted: int | None = field(init=False, default=None)
    _is_whole: bool = field(init=False, default=False)
    """Whether lost objects were looked for over the whole stream."""

    def __post_init__(self) -> None:
        """Find where the stream stands."""
        opened = self.opened
        self._planner = SupplyPlanner(
            make_lane_config(opened.recipe, opened.manifest),
            opened.catalogs,
            make_chunk_orders(opened.recipe, opened.catalogs),
        )
        self._wanted = self.until
        drop_cut_off_objects(opened, NEWEST)
        self._find_position()

    def run(self) -> None:
        """Run jobs until the stream is as long as wanted, or has ended.

        Raises:
            SourceError: a data set gives nothing.
            DeterminismError: a recomputed object differs from the stored one.
            ZephonBeamError: what a worker met, named as it was there.
        """
        self._tell()
        refuse_empty_datasets(self.opened.store, self.opened.manifest, self.position)
        while True:
            has_enough = self._has_enough()
            self._make_whole(is_last=has_enough)
            if has_enough:
                break
            if self.endless and self.position.pending is None:
                if self._run_endless_job():
                    break
            elif self._is_more_wanted():
                if self.leaves_job:
                    self._leave_advance()
                    break
                self._run_advance()
        if self.follower is not None:
            self.follower.clean_up()

    def _has_enough(self) -> bool:
        position, until = self.position, self.until
        return position.finished or (until is not None and position.complete_samples >= until)

    def _make_whole(self, *, is_last: bool) -> None:
        """Make what is lost again, once.

        To look at everything takes longer the longer the stream is: not before there is anything
        new, unless somebody may wait for what is lost. And lanes only count what is lost once no
        advance has to be run again.
        """
        may_look = self.position.pending is None and (self.jobs or self.follower is not None)
        if self._is_whole or self.leaves_job or not (is_last or may_look):
            return
        drop_cut_off_objects(self.opened)
        self.jobs += recompute_lost(
            self.opened,
            self._planner,
            self.position,
            self._run_job,
            advance_bytes=self.advance_bytes,
        )
        self._is_whole = True

    def _is_more_wanted(self) -> bool:
        """Wait for consumers that have enough; then say whether the position is still as it was."""
        if self.follower is None:
            return True
        self._wanted, has_waited = self.follower.wait_for_need(
            self.position.complete_samples, self.until
        )
        if has_waited:
            # Another driver may have gone on meanwhile.
            self._find_position()
        return not has_waited

    def _run_endless_job(self) -> bool:
        """Run one; say whether it was drained before the stream's end."""
        if self.follower is None:
            raise ValueError("follower must be there for an endless job, got None")
        is_drained = run_endless(
            self._make_job,
            self.opened,
            self.position,
            self.options,
            window_bytes=min(self.advance_bytes, WINDOW_BYTES),
            drain_bytes=self.drain_bytes,
            follower=self.follower,
            until_samples=self.until,
            report=partial(self._tell, running=True),
        )
        self._find_position()
        newest = self._plan_or_none(self.position.next_advance - 1)
        heads = Heads(self.opened.store, self.opened.manifest, self.position.heads)
        if newest is not None and is_complete(self.opened.store, heads, newest):
            self._drop_heads(self._plan_or_none(newest.advance - 1))
        self.jobs += 1
        self._tell()
        return is_drained and not self.position.finished

    def _leave_advance(self) -> None:
        """Hand the job of the next advance to the engine, which runs it later."""
        plan = self._next_plan()
        self._drop_heads(self._plan_or_none(plan.advance - 2))
        self._run_job(plan)
        self.jobs += 1

    def _run_advance(self) -> None:
        """Run the pending advance, or the next one, make sure of it and drop what it replaced."""
        store, manifest = self.opened.store, self.opened.manifest
        plan = self._next_plan()
        with watched_lanes(store, self.position, plan, self._tell):
            heads = Heads(store, manifest, self.position.heads)
            complete = self._run_plan(plan, heads)
        self.position = read_position(store, manifest, complete=complete, found=heads)
        refuse_empty_datasets(store, manifest, self.position)
        refuse_starving_lanes(store, manifest, self.position)
        self.jobs += 1
        self._tell()

    def _next_plan(self) -> Plan:
        """Return the plan to run: the pending one, or a new one, written before anything runs."""
        position, opened = self.position, self.opened
        if position.pending is not None:
            return position.pending
        lanes = self._planner.plan(
            position.heads, advance_bytes=self.advance_bytes, until_samples=self._wanted
        )
        if not lanes:
            raise ZephonBeamError(
                f"plan must supply at least one lane, got none at {position.complete_samples} "
                "complete samples; the run cannot go on; check the stream with `zephon-beam "
                "verify`, and report this if it finds no fault"
            )
        plan = Plan(
            advance=position.next_advance, fingerprint=opened.manifest.fingerprint, lanes=lanes
        )
        # Of two drivers the loser runs the winner's plan.
        opened.store.put_if_absent(plan.name, encode_plan(plan), lambda _stored, _computed: True)
        return read_plan(opened.store, opened.manifest, plan.name)

    def _run_plan(self, plan: Plan, heads: Heads) -> int | None:
        """Run a plan and make sure that it did all it asks for; then drop what it replaced.

        Returns:
            The advance that was found complete; None if another driver has gone on.
        """
        store = self.opened.store
        before = self._plan_or_none(plan.advance - 1)
        try:
            self._run_job(plan)
        except Exception:
            # A twin may have gone on and deleted what this job was to start from.
            if not is_superseded(store, plan):
                raise
        if is_superseded(store, plan):
            return None
        if not is_complete(store, heads, plan):
            raise ZephonBeamError(
                f"advance {plan.advance} must leave a carry or an end for each of its lanes and "
                "every shard that they count, found some missing; the stream is intact; run it "
                "again, and report this if it repeats"
            )
        self._drop_heads(before)
        return plan.advance

    def _run_job(self, plan: Plan) -> None:
        run_advance(self._make_job(plan), plan, self.options, drain_bytes=self.drain_bytes)

    def _make_job(self, plan: Plan) -> StreamJob:
        return StreamJob(
            stream=self.opened.store.uri,
            advance=plan.advance,
            recomputes=plan.recompute,
            endless=plan.endless,
            recipe=self.opened.recipe,
            roots=self.opened.roots,
            code_folders=self.opened.code_folders,
            backend=self.backend,
        )

    def _drop_heads(self, plan: Plan | None) -> None:
        """Delete the carries that a plan starts from, once the plan after it is complete."""
        for entry in plan.lanes if plan is not None else ():
            if entry.head_kind == "carry" and entry.head_name is not None:
                self.opened.store.delete(entry.head_name)

    def _plan_or_none(self, advance: int) -> Plan | None:
        if not self.opened.store.exists(plan_name(advance)):
            return None
        return read_plan(self.opened.store, self.opened.manifest, plan_name(advance))

    def _find_position(self) -> None:
        self.position = read_position(self.opened.store, self.opened.manifest)

    def _tell(
        self,
        lane_samples: Sequence[int] | None = None,
        supplied: float | None = None,
        *,
        running: bool = False,
    ) -> None:
        if self.progress is None:
            return
        counts = lane_samples or [head.samples for head in self.position.heads]
        order = SampleOrder(len(counts), self.position.lengths)
        self.progress(
            Progress(
                advance=self.position.next_advance,
                samples=sum(counts),
                complete_samples=order.complete_prefix(counts),
                until_samples=self._wanted,
                seconds=time.monotonic() - self._started,
                supplied=supplied,
                endless=self.endless and self.position.pending is None,
                running=running or supplied is not None,
            )
        )
