"""The source of endless jobs: what a runner may do with it, and what a drain leaves."""

import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.sdf_utils import ThreadsafeRestrictionTracker
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from pipelines.advance import build_advance
from pipelines.open_stream import OpenStream, open_or_create
from pipelines.recipe_file import load_recipe
from tests.pipelines.small_streams import tree, write_recipe, write_small_corpus
from transforms import supply_endless
from transforms.lane_items import (
    HEAD_ITEM,
    NUDGE_ITEM,
    LaneDocuments,
    LaneDocumentsCoder,
    SupplyItem,
    drain_item,
)
from transforms.lane_messages import LaneMessage, LaneMessageCoder
from transforms.stream_job import StreamJob
from transforms.supply_endless import (
    RoundEstimator,
    SuppliedCoder,
    SupplyEndlessly,
    SupplyTracker,
    _PollLane,
    _RoundEstimators,
)
from zephon_beam.carry import decode_carry
from zephon_beam.draining import ask_to_drain, is_drained
from zephon_beam.lane_progress import decode_progress
from zephon_beam.layout import DRAIN, POLLED, carry_name, progress_name
from zephon_beam.plan import LanePlan, Plan, encode_plan
from zephon_beam.poll_trace import read_trace
from zephon_beam.supplied import ChannelSupply, Supplied

BEGIN = Supplied(channels=(ChannelSupply(1, ()),), head_sent=True)
NEXT = Supplied(channels=(ChannelSupply(4, ((2, 1),)),), head_sent=True)
LANE_COUNT = 3


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[OpenStream, StreamJob, Plan]:
    """Return a stream with the plan of an endless job, which has not run."""
    folder = tmp_path_factory.mktemp("endless")
    write_small_corpus(folder)
    recipe = load_recipe(str(write_recipe(folder / "recipe.yaml")))
    found = open_or_create(recipe, str(folder / "stream"), PipelineOptions([]), folder=str(folder))
    lanes = tuple(
        LanePlan(lane=lane, head_kind="none", head_number=-1, supply=())
        for lane in range(LANE_COUNT)
    )
    plan = Plan(advance=0, fingerprint=found.manifest.fingerprint, lanes=lanes, endless=True)
    found.store.put_if_absent(plan.name, encode_plan(plan))
    job = StreamJob(
        stream=found.store.uri, advance=0, endless=True, recipe=recipe, roots=found.roots
    )
    return found, job, plan


def test_a_split_leaves_all_that_comes_to_the_other_holder() -> None:
    """What was claimed stays done; nothing can be claimed twice."""
    tracker = SupplyTracker(BEGIN)
    assert not tracker.is_bounded()
    assert tracker.try_claim(NEXT)
    with pytest.raises(ValueError, match="must end its lane or defer"):
        tracker.check_done()
    split = tracker.try_split(0)
    assert split is not None
    primary, residual = split
    assert residual == NEXT
    assert primary == tracker.current_restriction()
    assert not tracker.try_claim(NEXT)
    assert tracker.check_done()
    assert tracker.try_split(0) is None
    assert not SupplyTracker(primary).try_claim(NEXT)
    assert SupplyTracker(residual).try_claim(NEXT)


def test_nothing_is_split_for_parallelism() -> None:
    """A lane has one supplier."""
    tracker = SupplyTracker(BEGIN)
    assert tracker.try_split(0.5) is None
    assert tracker.try_claim(NEXT)


def test_a_poll_that_defers_gives_the_runner_what_is_left_and_when() -> None:
    """As Beam's worker sees it."""
    guarded = ThreadsafeRestrictionTracker(SupplyTracker(BEGIN))
    assert guarded.try_claim(NEXT)
    guarded.defer_remainder(Duration(5))
    left = guarded.deferred_status()
    assert left is not None
    assert left[0] == NEXT
    assert Duration(4) < left[1] <= Duration(5)
    assert guarded.check_done()


def test_rounds_grow_with_the_clock_and_without() -> None:
    """Also when the clock was set back, and over what a runner keeps of them."""
    rounds = RoundEstimator(0)
    assert rounds.begin(100) == 100
    rounds.end()
    assert rounds.current_watermark() == Timestamp(101)
    assert rounds.begin(100) == 101
    rounds.end()
    kept = rounds.get_estimator_state()
    coder = _RoundEstimators().estimator_state_coder()
    later = _RoundEstimators().create_watermark_estimator(coder.decode(coder.encode(kept)))
    assert later.begin(7) == 102
    assert later.begin(500) == 500


def test_what_a_runner_stores_of_a_lane_is_no_pickle() -> None:
    """It may be read again by another version, and must not run code."""
    coder = SuppliedCoder()
    encoded = coder.encode(NEXT)
    assert coder.decode(encoded) == NEXT
    with pytest.raises((ValueError, IndexError)):
        list(pickletools.genops(encoded))
    provider = _PollLane.__new__(_PollLane)
    assert isinstance(provider.restriction_coder(), SuppliedCoder)


def test_polls_leave_traces_that_differ_and_are_few(
    opened: tuple[OpenStream, StreamJob, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever watches the job sees by them that it is polled; stores take money for each."""
    found, job, _ = opened
    polls = _PollLane(job, 1 << 20, 1 << 20, None, None)
    polls.setup()

    def poll(lane: int) -> None:
        tracker = ThreadsafeRestrictionTracker(SupplyTracker(Supplied()))
        list(polls.process(lane, tracker, RoundEstimator(0)))

    found.store.delete(POLLED)
    poll(0)
    first = read_trace(found.store, job.advance)
    assert first is not None
    poll(1)
    assert read_trace(found.store, job.advance) == first
    monkeypatch.setattr(supply_endless, "TRACE_SECS", 0.0)
    poll(2)
    assert read_trace(found.store, job.advance) not in (None, first)


def test_a_nudge_is_no_head_and_no_drain() -> None:
    """A lane that took it for one would begin from nothing, or end its job."""
    for coder, kind in ((LaneMessageCoder(), LaneMessage), (LaneDocumentsCoder(), LaneDocuments)):
        kinds = [kind(), kind(head=b""), kind(all_parts=0), kind(all_parts=70_000)]
        assert [coder.decode(coder.encode(each)) for each in kinds] == kinds


def test_a_drain_ends_the_job_without_an_element(
    opened: tuple[OpenStream, StreamJob, Plan],
) -> None:
    """Beam drains a splittable source by truncating its restriction."""
    _, job, _ = opened
    provider = _PollLane.__new__(_PollLane)
    assert provider.truncate(0, NEXT) is None
    supply = SupplyEndlessly(job, window_bytes=1000, lookahead=1000, until_samples=None)
    with beam.Pipeline(runner=FnApiRunner(is_drain=True), options=PipelineOptions([])) as pipeline:
        lanes = pipeline | beam.Create([0, 1, 2], reshuffle=False)
        assert_that(lanes | supply, equal_to([]))


def test_a_wish_to_drain_is_a_lanes_last_poll(
    opened: tuple[OpenStream, StreamJob, Plan],
) -> None:
    """It needs nothing of the engine; a job that was just begun gives its heads back."""
    found, job, plan = opened
    ask_to_drain(found.store, plan.advance)
    supply = SupplyEndlessly(job, window_bytes=1000, lookahead=1000, until_samples=None)
    both = [HEAD_ITEM, drain_item(0)]
    try:
        with beam.Pipeline(runner="FnApiRunner", options=PipelineOptions([])) as pipeline:
            items = pipeline | beam.Create([0, 1, 2], reshuffle=False) | supply
            assert_that(items, equal_to([(lane, item) for lane in range(3) for item in both]))
    finally:
        found.store.delete(DRAIN)


PARTS = [(dataset, number, 0, 1) for dataset in range(3) for number in range(6)]


class _Supply(beam.PTransform[Any, Any]):
    """A source that ends after one round, and has said or not how many parts it supplied."""

    def __init__(self, all_parts: int | None = None) -> None:
        super().__init__()
        items = [NUDGE_ITEM, *PARTS, HEAD_ITEM, NUDGE_ITEM]
        middle = len(items) // 2
        drains = [] if all_parts is None else [drain_item(all_parts)]
        self._items = [*items[:middle], *drains, *items[middle:]]

    def expand(self, lanes: Any) -> Any:
        return lanes | beam.ParDo(_SupplyOnce(self._items))


class _SupplyOnce(beam.DoFn):
    def __init__(self, items: list[SupplyItem]) -> None:
        self._items = items

    def process(self, lane: int) -> Iterator[tuple[int, SupplyItem]]:
        for item in self._items:
            yield TimestampedValue((lane, item), 7)  # type: ignore[misc]


@pytest.mark.parametrize("parallel", [False, True])
def test_at_the_end_of_time_a_lane_keeps_its_open_bins(
    opened: tuple[OpenStream, StreamJob, Plan], parallel: bool
) -> None:
    """No carry, no end, no flush: whole shards, and word of where each lane stands."""
    found, job, plan = opened
    with beam.Pipeline(runner="FnApiRunner", options=PipelineOptions([])) as pipeline:
        build_advance(pipeline, job, plan, parallel=parallel, drain_bytes=1 << 20, supply=_Supply())
    stream = Path(job.stream.removeprefix("file://"))
    written = tree(stream)
    assert written
    assert not any(name.startswith("end/") for name in written)
    assert not (stream / "carry").exists()
    for lane in range(LANE_COUNT):
        progress = decode_progress(found.store.get(progress_name(lane)))
        assert progress is not None
        assert (progress.job, progress.lane, progress.ended) == (0, lane, False)
        shards = sum(name.startswith(f"shards/lane-{lane:05d}") for name in written)
        assert progress.samples == shards * found.manifest.samples_per_shard > 0


@pytest.mark.parametrize("parallel", [False, True])
def test_a_lane_that_is_drained_leaves_all_that_it_was_supplied_with(
    opened: tuple[OpenStream, StreamJob, Plan], parallel: bool
) -> None:
    """Used up or waiting in its carry, whenever the word of the drain comes; no lane ends."""
    found, job, plan = opened
    ask_to_drain(found.store, plan.advance)
    supply = _Supply(len(PARTS))
    with beam.Pipeline(runner="FnApiRunner", options=PipelineOptions([])) as pipeline:
        build_advance(pipeline, job, plan, parallel=parallel, drain_bytes=1 << 20, supply=supply)
    assert is_drained(found.store, found.manifest, plan)
    names = [carry_name(lane, plan.advance) for lane in range(LANE_COUNT)]
    heads = [decode_carry(found.store.get(name), name)[0] for name in names]
    for name in [*names, DRAIN]:
        found.store.delete(name)
    for head in heads:
        waits = {(part.key.dataset, part.key.number) for part in head.waiting}
        for dataset, state in enumerate(head.state.datasets):
            begun = range(state.next_number)
            assert {*begun, *(number for of, number in waits if of == dataset)} == set(range(6))
    assert not list(found.store.list("end/"))


def test_a_lane_that_lacks_a_part_leaves_no_carry(
    opened: tuple[OpenStream, StreamJob, Plan],
) -> None:
    """That part would have to be read again, and nobody would know."""
    found, job, plan = opened
    supply = _Supply(len(PARTS) + 1)
    with beam.Pipeline(runner="FnApiRunner", options=PipelineOptions([])) as pipeline:
        build_advance(pipeline, job, plan, parallel=True, drain_bytes=1 << 20, supply=supply)
    assert not list(found.store.list("carry/"))
    assert not is_drained(found.store, found.manifest, plan)
