"""Polls: an endless supply whose advice may be late, lost, damaged or of an undone future."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lanes import draft_bytes
from tests.zephon_beam.test_supply import LANES, SHARD, World
from zephon_beam.carry import WaitingPart
from zephon_beam.lane import LaneProcess
from zephon_beam.lane_progress import decode_progress, encode_progress, make_progress
from zephon_beam.lane_state import LaneState, SlotState
from zephon_beam.plan import SupplyEntry
from zephon_beam.polls import Supplier
from zephon_beam.sequences import PartKey, SequencePart
from zephon_beam.slots import FREE
from zephon_beam.supplied import (
    ChannelSupply,
    Supplied,
    decode_supplied,
    encode_supplied,
    supplied_with_head,
)
from zephon_beam.supply import LaneHead

LANE, JOB = 1, 7
WINDOW = 3_000
ROW_BYTES = 100
FEW_POLLS = 64


class FilteredWorld(World):
    """Sources of which a filter leaves nothing up to some chunk number."""

    def __init__(self, *args: Any, dropped: dict[int, int], **options: Any) -> None:
        """Drop the first chunks of some data sets: {data set: chunks}."""
        super().__init__(*args, **options)
        self.dropped = dropped

    def part(self, lane: int, key: PartKey) -> SequencePart:
        """Make the content of a part, which may be nothing."""
        part = super().part(lane, key)
        if key.number >= self.dropped.get(key.dataset, 0):
            return part
        none = slice(0, 0)
        return replace(
            part,
            tokens=part.tokens[none],
            offsets=part.offsets[:1],
            files=part.files[none],
            locators=part.locators[none],
            outputs=part.outputs[none],
        )


@dataclass
class Saved:
    """What a runner's checkpoint holds of a job."""

    supplied: bytes
    state: LaneState | None
    waiting: list[PartKey]
    on_the_way: list[PartKey]


@dataclass
class Job:
    """One lane of an endless job: supplier, network, lane process, and the object between."""

    world: World
    window: int = WINDOW
    start: LaneHead = field(
        default_factory=lambda: LaneHead(lane=LANE, kind="none", number=-1, state=None)
    )
    target: int | None = None

    def __post_init__(self) -> None:
        """Send the head."""
        self.supplier = Supplier(
            planner=self.world.planner,
            start=self.start,
            job=JOB,
            fingerprint=self.world.config.fingerprint,
            dataset_count=self.world.config.dataset_count,
            window_bytes=self.window,
        )
        self.supplied = encode_supplied(self.supplier.first())
        self.state = self.start.state
        self.waiting = [part.key for part in self.start.waiting]
        self.on_the_way: list[PartKey] = []
        self.progress: bytes | None = None
        self.published: list[bytes] = []
        self.drafts: dict[int, Any] = {}
        self.nudged = self.ended = False

    def poll(self) -> Supplied:
        """Poll once, with the restriction as a runner keeps it."""
        before = decode_supplied(self.supplied)
        assert not before.stopped
        progress = None if self.progress is None else decode_progress(self.progress)
        poll = self.supplier.poll(before, progress, lambda: self.target)
        for entry in poll.entries:
            for part in range(entry.first_part, entry.first_part + entry.part_count):
                assert not before.holds(entry.dataset, entry.number, part)
                assert poll.supplied.holds(entry.dataset, entry.number, part)
                key = PartKey(dataset=entry.dataset, number=entry.number, part=part)
                self.on_the_way.append(key)
        self.nudged |= poll.nudges
        self.supplied = encode_supplied(poll.supplied)
        return poll.supplied

    def deliver(self, places: list[int]) -> None:
        """Deliver some of what is on its way, by place, some of it twice."""
        for place in places:
            if self.on_the_way:
                key = self.on_the_way.pop(place % len(self.on_the_way))
                self.waiting.append(key)
                if place % 3 == 0:
                    self.on_the_way.append(key)

    def drain(self, *, is_lost: bool = False) -> None:
        """Let the lane use what it has, and say where it stands."""
        process = LaneProcess(self.world.config, LANE, self.state)
        for key in self.waiting:
            process.offer(self.world.part(LANE, key))
        for draft in process.take_shards():
            made = draft_bytes(draft)
            assert self.drafts.setdefault(draft.shard, made) == made
        self.waiting = process.waiting()
        self.state = process.state()
        self.ended = process.ended
        said = encode_progress(make_progress(JOB, self.state, ended=process.ended))
        self.published.append(said)
        if not is_lost:
            self.progress = said
        self.nudged = False

    def save(self) -> Saved:
        """Take a checkpoint."""
        return Saved(self.supplied, self.state, list(self.waiting), list(self.on_the_way))

    def restore(self, saved: Saved) -> None:
        """Set everything back but what was published."""
        self.supplied, self.state = saved.supplied, saved.state
        self.waiting, self.on_the_way = list(saved.waiting), list(saved.on_the_way)

    def under_way_bytes(self) -> int:
        """Count the source of what was supplied and is not used up."""
        keys = {(k.dataset, k.number, k.part): k for k in [*self.waiting, *self.on_the_way]}
        process = LaneProcess(self.world.config, LANE, self.state)
        return sum(
            self.world.part(LANE, key).source_bytes for key in keys.values() if process.needs(key)
        )

    def go_on(self, is_done: Callable[[], bool]) -> None:
        """Run as a fair engine does, in which a lane speaks only when something reached it."""
        polls = 0
        while not is_done():
            has_arrived = bool(self.on_the_way)
            self.deliver([1] * len(self.on_the_way))
            if has_arrived or self.nudged:
                self.drain()
                polls = 0 if has_arrived else polls
            if decode_supplied(self.supplied).stopped:
                assert is_done()
                return
            self.poll()
            polls += 1
            assert polls < FEW_POLLS, "the lane waits for ever"


def bound(world: World, window: int) -> int:
    """Return the source bytes that may be under way while nothing is set back."""
    most_rows = max(world.catalogs[0].part_rows, 1)
    part = max(ROW_BYTES * most_rows, 6_000)
    each = (world.config.interleave + 1) * part + 2 * 1000 + part
    return window + world.config.dataset_count * each


actions = st.lists(
    st.one_of(
        st.tuples(st.just("poll"), st.integers(1, 4)),
        st.tuples(st.just("deliver"), st.lists(st.integers(0, 50), max_size=12)),
        st.tuples(st.just("drain"), st.booleans()),
        st.tuples(st.just("old"), st.integers(0, 50)),
        st.tuples(st.just("lose"), st.sampled_from([None, b"", b"{", b'{"advance": 7}', b"[]"])),
        st.tuples(st.just("save"), st.none()),
        st.tuples(st.just("restore"), st.none()),
    ),
    max_size=40,
)
row_groups = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=12), min_size=1, max_size=3)


def act(job: Job, steps: list[tuple[str, Any]]) -> None:
    """Do what a bad engine and a bad store could do."""
    saved = job.save()
    for name, value in steps:
        if decode_supplied(job.supplied).stopped and name == "poll":
            continue
        if name == "poll":
            for _ in range(value):
                if not job.poll().stopped:
                    continue
                break
        elif name == "deliver":
            job.deliver(value)
        elif name == "drain":
            job.drain(is_lost=value)
        elif name == "old" and job.published:
            job.progress = job.published[value % len(job.published)]
        elif name == "lose":
            job.progress = value
        elif name == "save":
            saved = job.save()
        elif name == "restore":
            job.restore(saved)
        # A lane set back lies up to a window behind what it said last.
        assert job.under_way_bytes() <= 2 * bound(job.world, job.window)


@settings(max_examples=60)
@given(row_groups, st.integers(1, 5), st.integers(1, 20_000), st.booleans(), actions)
def test_whatever_becomes_of_advice_the_lane_makes_its_samples(
    groups: list[list[int]],
    interleave: int,
    window: int,
    finite: bool,
    steps: list[tuple[str, Any]],
) -> None:
    """No part is left out, little is under way, and once things are fair the lane goes on."""
    options: dict[str, Any] = {
        "passes": 2 if finite else None,
        "weights": list(range(1, len(groups) + 1)),
        "interleave": interleave,
    }
    world = World(groups, **options)
    job = Job(world, window=window)
    act(job, steps)
    job.go_on(lambda: job.ended if finite else len(job.drafts) >= 12)
    reference, _, _ = world.run(None if finite else 12 * SHARD * LANES, 1 << 30)
    expected = [draft_bytes(draft) for draft in reference[LANE]]
    made = [job.drafts[shard] for shard in range(len(job.drafts))]
    common = len(made) if finite else min(len(made), len(expected))
    assert len(made) >= (len(expected) if finite else 12)
    assert made[:common] == expected[:common]


@settings(max_examples=15)
@given(st.integers(1, 3), st.integers(1, 6_000), st.integers(1, 20_000))
def test_a_job_goes_on_from_a_carry_and_does_not_supply_again_what_waits_in_it(
    interleave: int, advance_bytes: int, window: int
) -> None:
    """What an advance left over is used."""
    world = World([[7, 30, 55], [40] * 6], passes=None, weights=[2, 1], interleave=interleave)
    fresh = LaneHead(lane=LANE, kind="none", number=-1, state=None)
    heads = [replace(fresh, lane=lane) for lane in range(LANES)]
    plan = world.planner.plan(heads, advance_bytes=advance_bytes, until_samples=None)[LANE]
    process = LaneProcess(world.config, LANE)
    for entry in plan.supply:
        for key in world.read(LANE, entry):
            process.offer(world.part(LANE, key))
    drafts = {draft.shard: draft_bytes(draft) for draft in process.take_shards()}
    waiting = tuple(
        WaitingPart(key=key, last=world.part(LANE, key).last, source_bytes=1)
        for key in process.waiting()
    )
    head = replace(fresh, kind="carry", number=0, state=process.state(), waiting=waiting)
    job = Job(world, window=window, start=head)
    job.drafts = drafts
    left = {part.key for part in waiting}
    job.poll()
    assert left.isdisjoint(job.on_the_way)
    job.go_on(lambda: len(job.drafts) >= 10)
    reference, _, _ = world.run(10 * SHARD * LANES, 1 << 30)
    expected = [draft_bytes(draft) for draft in reference[LANE]][:10]
    assert [job.drafts[shard] for shard in range(10)] == expected


def test_a_data_set_of_a_thousandth_and_one_of_which_nothing_is_left_do_not_block() -> None:
    """The one is rarely used, the other gives nothing for long; windows are small."""
    world = FilteredWorld(
        [[50] * 40, [50] * 40, [60] * 40],
        dropped={1: 500},
        passes=None,
        weights=[999, 500, 1],
        interleave=3,
    )
    job = Job(world, window=1)
    job.go_on(lambda: len(job.drafts) >= 40)
    assert job.under_way_bytes() <= bound(world, 1)


def test_a_lane_that_has_what_is_wanted_is_neither_supplied_nor_nudged() -> None:
    """Consumers decide; when they go on, so does the lane."""
    job = Job(World([[40] * 9], passes=None, weights=[1], interleave=2), target=3 * SHARD)
    job.go_on(lambda: len(job.drafts) >= 3)
    job.drain()
    supplied = job.supplied
    for _ in range(100):
        job.poll()
    assert job.supplied == supplied
    assert not job.nudged
    assert not job.on_the_way
    job.target = 40 * SHARD
    job.go_on(lambda: len(job.drafts) >= 40)


def test_a_lane_that_says_nothing_is_nudged_ever_more_rarely_and_then_regularly() -> None:
    """It may just be slow, and each nudge makes it read all that waits."""
    job = Job(World([[40] * 9], passes=None, weights=[1], interleave=2))
    job.poll()
    nudges = []
    for number in range(1, 140):
        job.nudged = False
        job.poll()
        if job.nudged:
            nudges.append(number)
    assert nudges == [2, 4, 8, 16, 32, 64, 96, 128]


@pytest.mark.parametrize("kind", ["missing", "damaged", "oldest", "undone"])
def test_a_lane_whose_last_word_is_lost_is_asked_again(kind: str) -> None:
    """Nothing is on its way to it, so it would say nothing by itself."""
    job = Job(World([[40] * 9], passes=None, weights=[1], interleave=2))
    job.go_on(lambda: len(job.drafts) >= 4)
    saved = job.save()
    job.go_on(lambda: len(job.drafts) >= 12)
    undone = job.progress
    job.restore(saved)
    job.deliver([1] * len(job.on_the_way))
    job.drain(is_lost=True)
    oldest = job.published[0]
    job.progress = {"missing": None, "damaged": b"{", "oldest": oldest, "undone": undone}[kind]
    job.go_on(lambda: len(job.drafts) >= 30)


@pytest.mark.parametrize("mark", ["advance", "lane"])
def test_advice_of_another_job_or_lane_gives_no_credit(mark: str) -> None:
    """As of an earlier endless job, which was further in other supply."""
    job = Job(World([[40] * 9], passes=None, weights=[1], interleave=2))
    job.poll()
    job.deliver([1] * len(job.on_the_way))
    job.drain()
    assert job.progress is not None
    name = f'"{mark}":{JOB if mark == "advance" else LANE}'.encode()
    assert name in job.progress
    own, job.progress = job.progress, job.progress.replace(name, f'"{mark}":0'.encode())
    before = job.supplied
    job.poll()
    assert decode_supplied(job.supplied) == replace(decode_supplied(before), empty_polls=1)
    job.progress = own
    job.poll()
    assert job.on_the_way


def test_advice_of_an_undone_future_gives_no_credit_until_the_lane_speaks() -> None:
    """A job was set back: what the lane had said names parts that are not supplied any more."""
    job = Job(World([[40] * 9], passes=None, weights=[1], interleave=2))
    job.poll()
    saved = job.save()
    job.go_on(lambda: len(job.drafts) >= 20)
    job.drain()
    job.restore(saved)
    polls = [job.poll() for _ in range(2)]
    assert [supplied.empty_polls for supplied in polls] == [1, 2]
    assert job.nudged
    assert job.on_the_way == saved.on_the_way


def test_an_ended_lane_is_not_polled_again() -> None:
    """Its source ends, by what the lane says of itself and nothing else."""
    job = Job(World([[5, 6], [7]], passes=1, weights=[1, 1], interleave=2), window=1 << 20)
    job.go_on(lambda: job.ended)
    assert decode_supplied(job.supplied).stopped


@pytest.mark.parametrize(
    ("next_number", "slots", "expected"),
    [
        (3, [(0, 3), (2, 1)], False),
        (2, [(0, 0), (1, 7)], False),
        (3, [(0, 4), (2, 1)], True),
        (3, [(2, 0), (FREE, 0)], True),
        (3, [(0, 3), (FREE, 0)], True),
        (4, [(0, 3), (3, 0)], True),
    ],
)
def test_a_lane_that_has_used_what_was_not_supplied_is_of_an_undone_future(
    next_number: int, slots: list[tuple[int, int]], expected: bool
) -> None:
    """Chunks 0 and 2 were supplied up to parts 3 and 1, chunk 1 whole."""
    supplied = Supplied(channels=(ChannelSupply(3, ((0, 3), (2, 1))),), head_sent=True)
    process = LaneProcess(World([[9]], passes=None, weights=[1], interleave=2).config, LANE)
    places = [SlotState(number, part, 0, 0) for number, part in slots]
    state = replace(process.state().datasets[0], next_number=next_number, slots=places)
    assert supplied.is_behind([state]) is expected


supplies = st.builds(
    Supplied,
    channels=st.lists(
        st.builds(
            ChannelSupply,
            next_number=st.integers(0, 1 << 62),
            begun=st.lists(
                st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 62)), max_size=4
            ).map(tuple),
        ),
        max_size=4,
    ).map(tuple),
    head_sent=st.booleans(),
    empty_polls=st.integers(0, 1 << 40),
    stopped=st.booleans(),
)


@given(supplies)
def test_what_a_runner_keeps_is_what_was_supplied(supplied: Supplied) -> None:
    """Through its bytes and back."""
    assert decode_supplied(encode_supplied(supplied)) == supplied


def test_supply_has_no_holes() -> None:
    """A part that was left out would block its lane for ever."""
    supplied = Supplied(channels=(ChannelSupply(2, ((1, 3),)),), head_sent=True)
    counts = {1: 5, 2: 1}

    def add(number: int, first: int, count: int = 1) -> Supplied:
        entry = SupplyEntry(dataset=0, number=number, first_part=first, part_count=count)
        return supplied.add([entry], lambda _dataset, chunk: counts[chunk])

    assert add(1, 3).channels == (ChannelSupply(2, ((1, 4),)),)
    assert add(1, 3, 2).channels == (ChannelSupply(2, ()),)
    assert add(2, 0).channels == (ChannelSupply(3, ((1, 3),)),)
    for number, first in ((1, 4), (1, 2), (3, 0), (0, 0)):
        with pytest.raises(ValueError, match="no hole"):
            add(number, first)


def test_what_waits_behind_a_missing_part_is_supplied_again() -> None:
    """Chunk 4 waits with parts 0 and 2 of 3, chunk 6 without chunk 5."""
    process = LaneProcess(World([[9]], passes=None, weights=[1], interleave=1).config, LANE)
    state = process.state()
    dataset = replace(state.datasets[0], next_number=4)
    assert dataset.slots[0].number == FREE
    waiting = tuple(
        WaitingPart(key=PartKey(dataset=0, number=number, part=part), last=False, source_bytes=1)
        for number, part in ((4, 0), (4, 2), (6, 0))
    )
    head = LaneHead(
        lane=LANE,
        kind="carry",
        number=0,
        state=replace(state, datasets=[dataset]),
        waiting=waiting,
    )
    found = supplied_with_head(head, 1, lambda _dataset, _number: 3)
    assert found.channels == (ChannelSupply(5, ((4, 1),)),)
    assert np.array_equal([found.holds(0, 4, part) for part in range(3)], [True, False, False])
