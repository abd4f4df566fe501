"""What of a stream exists, and whether a step's places in it are final.

Global order is by (index, lane), skipping lanes that have ended, so the place of a sample depends
on which lanes are still going at its index. A lane may end at any index until it is seen beyond
it. Hence the rule: the samples before `last` have final places once every lane

    has a known end, or has as many samples as lie before `last` in it.

With lanes 0…3 and `last` just after sample (index 7, lane 1), lanes 0 and 1 must have 8 samples
and lanes 2 and 3 must have 7. What is known is cached per lane, so a step inside shards that have
been seen costs one comparison; `end/` is read only when a next shard is missing.
"""

import json
from dataclasses import dataclass

import numpy as np

from zephon_beam.errors import CorruptObjectError
from zephon_beam.layout import end_name, lane_folder, number_of, shard_name
from zephon_beam.sample_order import IntArray, SampleOrder
from zephon_beam.shard import decode_header, expand_shard
from zephon_beam.store.base import Store

_FAR_AHEAD = 2
"""So many shards seen one after the other tell that more of the lane are there."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A shard that a step needs and that is not there yet."""

    lane: int
    shard: int

    @property
    def name(self) -> str:
        """Its name in the store."""
        return shard_name(self.lane, self.shard)


@dataclass(slots=True)
class _Seen:
    """Shards [first, end) of a lane were seen."""

    first: int = 0
    end: int = 0


class Availability:
    """Looks at a stream that may still be written; `order` holds the ends known so far."""

    def __init__(self, store: Store, lane_count: int, samples_per_shard: int) -> None:
        self._store = store
        self._lane_count = lane_count
        self._samples_per_shard = samples_per_shard
        self._lengths: list[int | None] = [None] * lane_count
        self._present = np.zeros(lane_count, dtype=np.int64)
        self._seen = [_Seen() for _ in range(lane_count)]
        self._lane_numbers = np.arange(lane_count)
        self._complete = 0
        self._order = SampleOrder(lane_count)
        self._order_is_stale = False
        self._regular_before: int | None = None

    @property
    def order(self) -> SampleOrder:
        """The order under all ends known now."""
        if self._order_is_stale:
            self._order = SampleOrder(self._lane_count, self._lengths)
            self._order_is_stale = False
        return self._order

    @property
    def regular_before(self) -> int:
        """Samples before which no lane has ended, so that sample g is g // lanes of its lane."""
        if self._regular_before is None:
            self._regular_before = int(self.order.lengths.min()) * self._lane_count
        return self._regular_before

    def look(self, first: int, last: int) -> Missing | None:
        """Look for samples [first, last), or those of them that a finite stream has.

        Returns:
            None when they exist and `order` locates them for good, else one that is missing.

        Raises:
            CorruptObjectError: an `end/` object is damaged or contradicts the shards.
        """
        # Most steps lie inside what an earlier look has seen.
        if last <= self._complete:
            return None
        while True:
            order = self.order
            stop = last if order.total is None else min(last, order.total)
            if stop <= first:
                return None
            needed = self._samples_before(stop)
            lacking = np.flatnonzero(needed > self._present)
            if not len(lacking):
                self._complete = order.complete_prefix(self._present.tolist())
                return None
            from_index = int(order.locate(first, first + 1)[1][0])
            missing = None
            for lane in lacking.tolist():
                if order.lengths[lane] <= from_index:
                    # It ended before the step; its shards may even have been deleted.
                    self._present[lane] = order.lengths[lane]
                else:
                    missing = self._look_at_lane(lane, from_index, int(needed[lane])) or missing
            if missing is not None and not self._order_is_stale:
                return missing

    def lag(self, last: int) -> int:
        """Count the samples before `last` that were missing when they were last looked for."""
        total = self.order.total
        stop = last if total is None else min(last, total)
        needed = self._samples_before(stop) if stop > 0 else np.zeros_like(self._present)
        return int(np.maximum(needed - self._present, 0).sum())

    def evidence_of_hole(self, missing: Missing) -> str | None:
        """Say what shows that a missing shard ought to exist, or None if it may still come."""
        later = [number_of(name) for name in self._store.list(lane_folder("shards", missing.lane))]
        if any(number > missing.shard for number in later):
            return f"shard {max(later)} of its lane exists"
        length = self._lengths[missing.lane]
        if length is not None:
            return f"its lane has ended with {length} samples"
        return None

    def _samples_before(self, stop: int) -> IntArray:
        """Samples of each lane before global sample `stop`, int64[lanes]."""
        lanes, indices = self.order.locate(stop - 1, stop)
        lane, index = int(lanes[0]), int(indices[0])
        caps = np.where(self._lane_numbers <= lane, index + 1, index)
        return np.minimum(caps, self.order.lengths)

    def _look_at_lane(self, lane: int, from_index: int, needed: int) -> Missing | None:
        """Extend what is known of a lane to `needed` samples; return a shard that is missing."""
        size = self._samples_per_shard
        start = max(int(self._present[lane]), min(from_index, needed - 1)) // size
        for shard in range(start, (needed - 1) // size + 1):
            if not self._exists(lane, shard):
                self._learn_end(lane)
                return Missing(lane, shard)
            self._present[lane] = shard * size + self._count(lane, shard)
        if int(self._present[lane]) < needed:
            # A shorter last shard: the end is written after it.
            return Missing(lane, int(self._present[lane]) // size + 1)
        return None

    def _count(self, lane: int, shard: int) -> int:
        """Count a shard's samples, with a look inside only if it may be the lane's last one."""
        size = self._samples_per_shard
        if self._exists(lane, shard + 1):
            return size
        self._learn_end(lane)
        length = self._lengths[lane]
        if length is not None:
            return min(size, length - shard * size)
        name = shard_name(lane, shard)
        return decode_header(self._store.open_mmap(name, expand_shard), name).count

    def _exists(self, lane: int, shard: int) -> bool:
        """Ask for a shard, and for many at once where the lane is far ahead of this reader."""
        seen = self._seen[lane]
        if seen.first <= shard < seen.end:
            return True
        if shard != seen.end:
            seen.first = seen.end = shard
        if seen.end - seen.first >= _FAR_AHEAD:
            for name in self._store.list_after(shard_name(lane, shard - 1)):
                if name != shard_name(lane, seen.end):
                    break
                seen.end += 1
            if shard < seen.end:
                return True
        if not self._store.exists(shard_name(lane, shard)):
            # Whoever is at the end of a lane asks for one shard, which is cheaper than a listing.
            seen.first = seen.end
            return False
        seen.end = shard + 1
        return True

    def _learn_end(self, lane: int) -> None:
        """Read the end of a lane if it is not known yet and has been written."""
        if self._lengths[lane] is not None:
            return
        name = end_name(lane)
        try:
            data = self._store.get(name)
        except FileNotFoundError:
            return
        try:
            length = json.loads(data)["samples"]
            if not isinstance(length, int) or length < 0:
                raise ValueError(f"samples must be a count, got {length!r}")
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptObjectError(
                f"{name} is corrupt: {error}; the order after the lane's end is unknown; delete "
                "it and run the recipe again, which writes it anew"
            ) from error
        self._lengths[lane] = length
        self._order_is_stale = True
        self._regular_before = None
