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
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from pipelines.advance import build_advance
from pipelines.open_stream import OpenStream, open_or_create
from pipelines.recipe_file import load_recipe
from tests.pipelines.small_streams import tree, write_recipe, write_small_corpus
from transforms.lane_items import (
    HEAD_ITEM,
    NUDGE_ITEM,
    LaneDocuments,
    LaneDocumentsCoder,
    SupplyItem,
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
from zephon_beam.lane_progress import decode_progress
from zephon_beam.layout import progress_name
from zephon_beam.plan import LanePlan, Plan, encode_plan
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
    found = open_or_create(recipe, str(folder / "stream"), PipelineOptions([]), folder=folder)
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


def test_a_nudge_is_no_head() -> None:
    """A lane that took it for one would begin from nothing."""
    for coder, nudge, head in (
        (LaneMessageCoder(), LaneMessage(), LaneMessage(head=b"")),
        (LaneDocumentsCoder(), LaneDocuments(), LaneDocuments(head=b"")),
    ):
        assert coder.decode(coder.encode(nudge)) == nudge
        assert coder.decode(coder.encode(head)) == head
        assert nudge != head


def test_a_drain_ends_the_job_without_an_element(
    opened: tuple[OpenStream, StreamJob, Plan],
) -> None:
    """Beam drains a splittable source by truncating its restriction."""
    _, job, _ = opened
    provider = _PollLane.__new__(_PollLane)
    assert provider.truncate(0, NEXT) is None
    supply = SupplyEndlessly(job, window_bytes=1000, lookahead=1000, until_samples=None)
    seen: list[Any] = []
    with beam.Pipeline(runner=FnApiRunner(is_drain=True), options=PipelineOptions([])) as pipeline:
        lanes = pipeline | beam.Create([0, 1, 2], reshuffle=False)
        _ = lanes | supply | beam.Map(seen.append)
    assert seen == []


class _Supply(beam.PTransform[Any, Any]):
    """A source that ends after one round, as that of a job that is drained does."""

    def expand(self, lanes: Any) -> Any:
        return lanes | beam.ParDo(_SupplyOnce())


class _SupplyOnce(beam.DoFn):
    def process(self, lane: int) -> Iterator[tuple[int, SupplyItem]]:
        items = [
            NUDGE_ITEM,
            *((dataset, number, 0, 1) for dataset in range(3) for number in range(6)),
        ]
        for item in [*items, HEAD_ITEM, NUDGE_ITEM]:
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
