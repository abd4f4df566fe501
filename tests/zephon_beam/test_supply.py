"""Supply: guesses that always make progress, end, and never change what a lane makes."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lanes import draft_bytes
from zephon_beam.carry import WaitingPart
from zephon_beam.catalog.scan import FileScan
from zephon_beam.catalog.table import Catalog, build_catalog
from zephon_beam.chunk_order import ChunkOrder
from zephon_beam.demand import lane_targets
from zephon_beam.lane import LaneProcess
from zephon_beam.lane_config import LaneConfig
from zephon_beam.mixing import MixingPhase, integer_weights
from zephon_beam.plan import SupplyEntry
from zephon_beam.sequences import PartKey, SequencePart
from zephon_beam.supply import LaneHead, SupplyPlanner

LANES, SEQ_LEN, SHARD = 2, 32, 4


class World:
    """Sources that exist only as catalogs, and lanes that are supplied by plans."""

    def __init__(
        self,
        row_groups: list[list[int]],
        *,
        passes: int | None,
        weights: list[int],
        interleave: int,
        stored_bytes: list[int] | None = None,
    ) -> None:
        """Make a data set for each list: of row groups, by rows.

        With `stored_bytes`, of compressed files of that size instead; a list says how many parts
        they really have.
        """
        self.catalogs = [_catalog(place, rows) for place, rows in enumerate(row_groups)]
        self.real_parts = row_groups if stored_bytes is not None else None
        if stored_bytes is not None:
            self.catalogs = [
                _compressed_catalog(place, [stored_bytes[i % len(stored_bytes)] for i in parts])
                for place, parts in enumerate(row_groups)
            ]
        self.orders = [
            ChunkOrder(
                seed=1,
                dataset=f"d{place}",
                chunk_count=catalog.chunk_count,
                lanes=LANES,
                shuffle=True,
                passes=passes,
            )
            for place, catalog in enumerate(self.catalogs)
        ]
        self.config = _config(self.catalogs, passes=passes, weights=weights, interleave=interleave)
        self.planner = SupplyPlanner(self.config, self.catalogs, self.orders)

    def part(self, lane: int, key: PartKey) -> SequencePart:
        """Make the content of a part from its place in the source."""
        position = self.orders[key.dataset].position(lane, key.number)
        assert position is not None
        pass_number, chunk = position
        catalog = self.catalogs[key.dataset]
        parts = catalog.part_count(chunk)
        row = catalog.chunk(chunk)
        rows = min(catalog.part_rows, row.stop - row.start - key.part * catalog.part_rows)
        if self.real_parts is not None:
            parts, rows = self.real_parts[key.dataset][chunk], 3
        assert parts is not None
        assert key.part < parts
        lengths = [5 + (chunk * 7 + key.part * 5 + r * 3) % 50 for r in range(rows)]
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        return SequencePart(
            key=key,
            last=key.part == parts - 1,
            pass_number=pass_number,
            source_bytes=catalog.part_source_bytes(chunk, key.part),
            tokens=np.full(offsets[-1], chunk % 60_000, np.uint16),
            offsets=offsets,
            files=np.zeros(rows, np.uint32),
            locators=np.arange(rows, dtype=np.int64),
            outputs=np.zeros(rows, np.uint32),
        )

    def run(self, until: int | None, advance_bytes: int) -> tuple[list[list[Any]], int, int]:
        """Advance until every lane is there; return the drafts, the advances and the supply."""
        drafts: list[list[Any]] = [[] for _ in range(LANES)]
        heads = [LaneHead(lane=lane, kind="none", number=-1, state=None) for lane in range(LANES)]
        advances = supplied = 0
        while plans := self.planner.plan(heads, advance_bytes=advance_bytes, until_samples=until):
            advances += 1
            assert advances < 500
            for plan in plans:
                head = heads[plan.lane]
                process = LaneProcess(self.config, plan.lane, head.state)
                keys = [part.key for part in head.waiting]
                new = [key for entry in plan.supply for key in self.read(plan.lane, entry)]
                assert len(set(keys + new)) == len(keys) + len(new)
                supplied += len(new)
                for key in keys + new:
                    assert process.offer(self.part(plan.lane, key))
                drafts[plan.lane].extend(process.take_shards())
                assert new or process.ended
                heads[plan.lane] = _head(self, plan.lane, process, advances)
        return drafts, advances, supplied

    def read(self, lane: int, entry: SupplyEntry) -> Iterator[PartKey]:
        """Yield the parts of an entry that there are; it may end early, but never give none."""
        for part in range(entry.first_part, entry.first_part + entry.part_count):
            key = PartKey(dataset=entry.dataset, number=entry.number, part=part)
            yield key
            if self.part(lane, key).last:
                return


def _head(world: World, lane: int, process: LaneProcess, number: int) -> LaneHead:
    waiting = tuple(
        WaitingPart(
            key=key,
            last=world.part(lane, key).last,
            source_bytes=world.part(lane, key).source_bytes,
        )
        for key in process.waiting()
    )
    return LaneHead(
        lane=lane,
        kind="carry",
        number=number,
        state=process.state(),
        waiting=waiting,
        ended=process.ended,
        length=process.samples if process.ended else 0,
    )


def _catalog(place: int, rows: list[int]) -> Catalog:
    groups = tuple((count, count * 100) for count in rows)
    scan = FileScan(
        path=f"/d/{place}.parquet", size=sum(rows) * 90, identity="x", row_groups=groups
    )
    data = build_catalog(f"d{place}", "parquet", "/d", [scan], chunk_bytes=1000)
    return Catalog.from_buffer(data, "catalog")


def _compressed_catalog(place: int, sizes: list[int]) -> Catalog:
    scans = [
        FileScan(path=f"/d/{place}-{number:03d}.jsonl.gz", size=size, identity="x")
        for number, size in enumerate(sizes)
    ]
    data = build_catalog(f"d{place}", "jsonl", "/d", scans, chunk_bytes=1000)
    return Catalog.from_buffer(data, "catalog")


def _config(
    catalogs: list[Catalog], *, passes: int | None, weights: list[int], interleave: int
) -> LaneConfig:
    totals = tuple(None if passes is None else passes * c.chunk_count for c in catalogs)
    return LaneConfig(
        fingerprint="f" * 32,
        lanes=LANES,
        seq_len=SEQ_LEN,
        samples_per_shard=SHARD,
        token_dtype="uint16",
        pad_id=0,
        has_loss_mask=False,
        interleave=interleave,
        chunk_totals=totals,
        phases=(MixingPhase(start=0, weights=integer_weights([Decimal(w) for w in weights])),),
        unit="tokens",
        stop_when_exhausted=False,
        overlong=("split",) * len(catalogs),
        packing="best_fit",
        open_bins=4,
        max_segments=None,
        group_of_dataset=(0,) * len(catalogs),
    )


def flat(drafts: list[list[Any]], lengths: list[int]) -> list[list[Any]]:
    """Return what is stored of each lane, up to a number of shards."""
    return [
        [draft_bytes(draft) for draft in lane[:count]]
        for lane, count in zip(drafts, lengths, strict=True)
    ]


row_groups = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=12), min_size=1, max_size=3)


@settings(max_examples=25)
@given(row_groups, st.integers(1, 5), st.integers(1, 30_000), st.booleans())
def test_any_advance_size_ends_with_the_same_stream(
    groups: list[list[int]], interleave: int, advance_bytes: int, finite: bool
) -> None:
    """From 1 byte to everything at once: the target is reached, and shards and states agree."""
    options: dict[str, Any] = {
        "passes": 2 if finite else None,
        "weights": list(range(1, len(groups) + 1)),
        "interleave": interleave,
    }
    until = None if finite else 40
    world = World(groups, **options)
    reference, _, _ = world.run(until, 1 << 30)
    drafts, _, _ = world.run(until, advance_bytes)
    common = [min(len(a), len(b)) for a, b in zip(reference, drafts, strict=True)]
    assert flat(drafts, common) == flat(reference, common)
    if finite:
        assert [len(lane) for lane in drafts] == [len(lane) for lane in reference]
    else:
        assert all(count * SHARD >= 40 // LANES for count in common)


part_counts = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=2)


@settings(max_examples=20)
@given(
    part_counts,
    st.lists(st.integers(1, 9_000), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 30_000),
    st.booleans(),
)
def test_files_that_are_read_from_their_start_end_where_they_end(
    real_parts: list[list[int]],
    stored_bytes: list[int],
    interleave: int,
    advance_bytes: int,
    finite: bool,
) -> None:
    """Whatever their sizes make the planner guess, too few parts or too many."""
    options: dict[str, Any] = {
        "passes": 2 if finite else None,
        "weights": list(range(1, len(real_parts) + 1)),
        "interleave": interleave,
        "stored_bytes": stored_bytes,
    }
    until = None if finite else 40
    world = World(real_parts, **options)
    reference, _, _ = world.run(until, 1 << 30)
    drafts, _, _ = world.run(until, advance_bytes)
    common = [min(len(a), len(b)) for a, b in zip(reference, drafts, strict=True)]
    assert flat(drafts, common) == flat(reference, common)
    if finite:
        assert [len(lane) for lane in drafts] == [len(lane) for lane in reference]


@pytest.mark.parametrize("stored_bytes", [1, 1_000_000])
def test_a_wrong_guess_of_a_files_length_costs_few_advances(stored_bytes: int) -> None:
    """One file of 300 parts: too small a guess doubles, too large a one supplies nothing more."""
    world = World([[300]], passes=2, weights=[1], interleave=1, stored_bytes=[stored_bytes])
    _, advances, supplied = world.run(None, 1 << 30)
    assert supplied == 600
    assert advances <= 16


def test_a_limited_run_takes_few_advances_and_supplies_little_too_much() -> None:
    """With room enough a target takes one or two advances, and a small one little supply."""
    world = World([[40] * 200, [60] * 100], passes=None, weights=[7, 3], interleave=4)
    _, advances, much = world.run(4000, 1 << 30)
    assert advances <= 3
    _, advances, little = world.run(40, 1 << 30)
    assert advances <= 3
    assert little < much / 5


def test_targets_are_whole_shards_of_every_lane() -> None:
    """A prefix of N samples needs the first N // lanes of each lane, rounded up to shards."""
    assert lane_targets(9, [None, None], SHARD) == [8, 4]
    assert lane_targets(None, [None, None], SHARD) == [None, None]


def test_lanes_that_go_on_make_up_for_those_that_ended() -> None:
    """Of 20 samples 3 are in the lane that ended with 3; the other one needs the other 17."""
    assert lane_targets(20, [None, 3], SHARD)[0] == 20
    assert lane_targets(20, [None, 3], SHARD)[0] == -(-17 // SHARD) * SHARD
    assert lane_targets(50, [5, 3], SHARD) == [8, 4]


@pytest.mark.parametrize("weights", [[1, 0], [0, 1]])
def test_data_sets_of_weight_0_are_not_supplied(weights: list[int]) -> None:
    """What is never taken is never read."""
    world = World([[5, 5], [5, 5]], passes=None, weights=weights, interleave=1)
    fresh = [LaneHead(lane=lane, kind="none", number=-1, state=None) for lane in range(LANES)]
    for plan in world.planner.plan(fresh, advance_bytes=1 << 20, until_samples=8):
        assert {entry.dataset for entry in plan.supply} == {weights.index(1)}
