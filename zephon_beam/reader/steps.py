"""One rank's share of a step: waited for, located, dealt out, and opened row by row.

A step is read only when all of it exists, also the other ranks' part: until then a lane could
still turn out to have ended, which would move the samples after it to other places.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from zephon_beam.errors import CorruptObjectError, CorruptShardError, ResumeError
from zephon_beam.manifest import Manifest
from zephon_beam.reader.availability import Availability, Missing
from zephon_beam.reader.blocks import Rows
from zephon_beam.reader.cursor import Topology
from zephon_beam.reader.holding import Holding
from zephon_beam.reader.ranks import IntArray, balance_samples, place_samples, rank_share
from zephon_beam.reader.shards import Shards, broken_stream
from zephon_beam.reader.waiting import Waiting
from zephon_beam.retained import first_retained_sample, read_first_shards
from zephon_beam.store.base import Store

HOLE_GRACE_SECS = 10.0
"""Parallel writers may finish out of order; a hole is reported when it has lasted this long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One rank's samples of one step, in the order in which it gets them."""

    first_sample: int
    """Global number of the step's first sample."""
    stretches: list[tuple[int, int, int]]
    """(lane, first index, count) of consecutive samples in one shard."""
    sample_ids: IntArray
    global_valid: int
    """Labels that count in the step over all ranks; 0 when nobody asked."""


class Steps:
    """Finds steps in a stream that may still be written."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        shards: Shards,
        *,
        dp_rank: int,
        counts_globally: bool,
        new_waiting: Callable[[], Waiting],
        holding: Holding,
    ) -> None:
        self._store = store
        self._samples_per_shard = manifest.samples_per_shard
        self._lanes = manifest.lanes
        self._availability = Availability(store, manifest.lanes, manifest.samples_per_shard)
        self._shards = shards
        self._dp_rank = dp_rank
        self._counts_globally = counts_globally
        self._new_waiting = new_waiting
        self._holding = holding
        self._share: tuple[tuple[Any, ...], IntArray, list[tuple[int, int, int]]] | None = None
        """What a regular step's share is made from: (key, places in the step, stretches)."""

    def find(self, first: int, topology: Topology, *, wait: bool) -> Step | None:
        """Take this rank's share of a step once all of the step's samples exist.

        Returns:
            None at the end of a finite stream, and without `wait` for a step that is incomplete.
        """
        last = first + topology.global_batch_size
        if wait:
            self._wait_for(first, last)
        elif self._availability.look(first, last) is not None:
            return None
        order = self._availability.order
        last = last if order.total is None else min(last, order.total)
        if last <= first:
            return None
        low, high = rank_share(last - first, self._dp_rank, topology.dp_world_size)
        is_plain = topology.placement != "balanced" and not self._counts_globally
        if is_plain and last <= self._availability.regular_before:
            return self._find_regular(first, last - first, low, high, topology.placement)
        lanes, indices = order.locate(first, last)
        global_valid = 0
        if self._counts_globally:
            for stretch in self._stretches(*_sorted_by_lane(lanes, indices)):
                part = self._open(*stretch)
                counts = part.shard.valid_tokens[part.first : part.first + part.count]
                global_valid += int(counts.sum())
        placed = place_samples(lanes, topology.placement)
        if topology.placement == "balanced":
            costs = self._costs(lanes, indices, placed)
            placed = balance_samples(placed, costs, topology.dp_world_size)
        mine = placed[low:high]
        return Step(
            first_sample=first,
            stretches=self._stretches(lanes[mine], indices[mine]),
            sample_ids=mine + first,
            global_valid=global_valid,
        )

    def _find_regular(self, first: int, count: int, low: int, high: int, placement: str) -> Step:
        """Take a share where no lane has ended: such steps differ by a shift of the indices."""
        turn, phase = divmod(first, self._lanes)
        key = (phase, count, low, high, placement)
        if self._share is None or self._share[0] != key:
            turns, lanes = np.divmod(np.arange(phase, phase + count), self._lanes)
            mine = place_samples(lanes, placement)[low:high]
            self._share = (key, mine, _stretches(lanes[mine], turns[mine]))
        _, mine, stretches = self._share
        return Step(
            first_sample=first,
            stretches=self._cut([(lane, index + turn, n) for lane, index, n in stretches]),
            sample_ids=mine + first,
            global_valid=0,
        )

    def open_rows(self, step: Step, begin: int, end: int) -> list[Rows]:
        """Open the shards of rows [begin, end) of a rank's share."""
        parts = []
        place = 0
        for lane, index, count in step.stretches:
            first, last = max(begin - place, 0), min(end - place, count)
            if first < last:
                parts.append(self._open(lane, index + first, last - first))
            place += count
            if place >= end:
                break
        return parts

    def _costs(self, lanes: IntArray, indices: IntArray, by_lane: IntArray) -> IntArray:
        """Cost of each sample in attention: the sum of the squared lengths of its segments."""
        costs = np.empty(len(lanes), np.int64)
        done = 0
        for stretch in self._stretches(lanes[by_lane], indices[by_lane]):
            part = self._open(*stretch)
            squares = part.shard.segments("segment_lengths").astype(np.int64) ** 2
            sums = np.concatenate(([0], np.cumsum(squares)))[part.shard.segment_offsets]
            found = np.diff(sums)[part.first : part.first + part.count]
            costs[by_lane[done : done + part.count]] = found
            done += part.count
        return costs

    def _wait_for(self, first: int, last: int) -> None:
        missing = self._availability.look(first, last)
        if missing is None:
            return
        self._refuse_deleted(first, missing)
        waiting = self._new_waiting()
        look_for_hole_at = HOLE_GRACE_SECS
        try:
            while missing is not None:
                what = f"{missing.name} of samples {first} to {last - 1}"
                if waiting.expired or waiting.waited >= look_for_hole_at:
                    self._refuse_hole(missing)
                    look_for_hole_at *= 2
                reason = self._holding.reason(first)
                if waiting.expired:
                    waiting.give_up(what, reason)
                waiting.pause(what, self._availability.lag(last), reason)
                missing = self._availability.look(first, last)
        finally:
            waiting.close()

    def _refuse_deleted(self, first: int, missing: Missing) -> None:
        """Say at once that a shard will not come, because it was deleted on purpose."""
        kept = read_first_shards(self._store, self._lanes)
        if missing.shard < kept[missing.lane]:
            order = self._availability.order
            sample = first_retained_sample(order, kept, self._samples_per_shard)
            raise ResumeError(
                f"sample must be at least {sample}, got {first}; the stream {self._store.uri!r} "
                "was told that nobody needs earlier ones, and they were deleted; resume from a "
                "later checkpoint, or run the recipe into a new place, which makes the same "
                "samples again"
            )

    def _refuse_hole(self, missing: Missing) -> None:
        evidence = self._availability.evidence_of_hole(missing)
        # Looked for last, so that a writer in between is never taken for a hole.
        if evidence is not None and not self._store.exists(missing.name):
            raise CorruptObjectError(broken_stream(f"{self._store.uri}/{missing.name}", evidence))

    def _open(self, lane: int, index: int, count: int) -> Rows:
        shard, row = divmod(index, self._samples_per_shard)
        found = self._shards.open(lane, shard)
        if row + count > len(found):
            raise CorruptShardError(
                f"shard {shard} of lane {lane} must have {row + count} samples, found "
                f"{len(found)}; later samples of the lane exist, so it was altered; "
                "delete it and run the recipe again, which recomputes it"
            )
        return Rows(found, row, count)

    def _stretches(self, lanes: IntArray, indices: IntArray) -> list[tuple[int, int, int]]:
        """Join samples that follow each other in one shard: (lane, first index, count)."""
        return self._cut(_stretches(lanes, indices))

    def _cut(self, stretches: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Cut stretches of lanes where shards begin."""
        size = self._samples_per_shard
        cut = []
        for lane, index, count in stretches:
            last = index + count
            while index < last:
                end = min(last, index - index % size + size)
                cut.append((lane, index, end - index))
                index = end
        return cut


def _stretches(lanes: IntArray, indices: IntArray) -> list[tuple[int, int, int]]:
    """Join samples that follow each other in one lane: (lane, first index, count)."""
    if not len(lanes):
        return []
    goes_on = (lanes[1:] == lanes[:-1]) & (indices[1:] == indices[:-1] + 1)
    starts = np.concatenate(([0], np.flatnonzero(~goes_on) + 1))
    counts = np.diff(np.concatenate((starts, [len(lanes)])))
    columns = (lanes[starts].tolist(), indices[starts].tolist(), counts.tolist())
    return list(zip(*columns, strict=True))


def _sorted_by_lane(lanes: IntArray, indices: IntArray) -> tuple[IntArray, IntArray]:
    order = np.argsort(lanes, kind="stable")
    return lanes[order], indices[order]
