"""Heads: the stored objects that a lane can go on from, as far as they can be trusted.

A carry or a state counts only if it is whole and says of itself that it belongs to this stream,
this lane and this place. Anything else is as good as missing, which costs time only.
"""

from collections.abc import Iterable
from functools import cached_property

from zephon_beam.carry import decode_carry_head
from zephon_beam.errors import CorruptObjectError
from zephon_beam.lane_listing import read_end
from zephon_beam.lane_state import LaneState, decode_state
from zephon_beam.layout import carry_name, lane_folder, state_name
from zephon_beam.manifest import Manifest
from zephon_beam.numbered import first_missing, numbered, shard_numbers
from zephon_beam.origin import read_origin_state
from zephon_beam.retained import read_first_shards
from zephon_beam.store.base import Store
from zephon_beam.supply import LaneHead


class Heads:
    """Reads the heads of a stream's lanes."""

    def __init__(self, store: Store, manifest: Manifest, known: Iterable[LaneHead] = ()) -> None:
        """Read from the stream that the manifest describes, but for heads that are known."""
        self._store = store
        self._manifest = manifest
        self._carries = {(head.lane, head.number): head for head in known if head.kind == "carry"}

    @cached_property
    def _first_shards(self) -> list[int]:
        """First shard that each lane keeps."""
        return read_first_shards(self._store, self._manifest.lanes)

    def first_shard(self, lane: int) -> int:
        """Return the first shard that a lane keeps; those before it were deleted on purpose."""
        return self._first_shards[lane]

    def length(self, lane: int) -> int | None:
        """Return how many samples a lane has, None if it has not ended.

        Raises:
            CorruptObjectError: the object that says so is damaged.
        """
        return read_end(self._store, lane)

    def carry(self, lane: int, number: int) -> LaneHead | None:
        """Return a carry as a head, None if it is missing or not to be trusted.

        One that was trusted is not read again: with what waits in it, it may have megabytes.
        """
        known = self._carries.get((lane, number))
        if known is not None:
            return known
        name = carry_name(lane, number)
        try:
            carry = decode_carry_head(self._store.open_mmap(name), name)
        except (FileNotFoundError, CorruptObjectError):
            return None
        if carry.advance != number or not self._is_ours(carry.state, lane):
            return None
        head = LaneHead(
            lane=lane,
            kind="carry",
            number=number,
            state=carry.state,
            waiting=tuple(carry.waiting),
        )
        self._carries[lane, number] = head
        return head

    def newest_carry(self, lane: int) -> LaneHead | None:
        """Return the carry with the highest number, None if there is none to be trusted."""
        numbers = self._carry_numbers(lane)
        return self.carry(lane, numbers[-1]) if numbers else None

    def state(self, lane: int, shard: int) -> LaneState | None:
        """Return the lane state after a shard, None if it is missing or not to be trusted."""
        name = state_name(lane, shard)
        try:
            state = decode_state(self._store.get(name), name)
        except (FileNotFoundError, CorruptObjectError):
            return None
        return state if self._is_ours(state, lane) else None

    def ended(self, lane: int) -> LaneHead | None:
        """Return the head of a lane that has ended, None if it has not."""
        length = self.length(lane)
        if length is None:
            return None
        return LaneHead(lane=lane, kind="none", number=-1, state=None, ended=True, length=length)

    def beginning(self, lane: int) -> LaneHead:
        """Return the head of a lane that begins: from nothing, or where its stream was forked.

        Raises:
            CorruptObjectError: the state that a fork begins with is missing or damaged.
        """
        if self._manifest.origin is None:
            return LaneHead(lane=lane, kind="none", number=-1, state=None)
        state = read_origin_state(self._store, lane, self._manifest.fingerprint)
        return LaneHead(lane=lane, kind="origin", number=-1, state=state)

    def start(self, lane: int) -> LaneHead:
        """Return the head of a lane that has ended or begins."""
        return self.ended(lane) or self.beginning(lane)

    def furthest(self, lane: int) -> LaneHead:
        """Return the furthest head: of the newest carry and the last state of the gapless shards.

        Ties go to the carry. Costs a listing of the lane's shards.
        """
        head = self.ended(lane)
        if head is not None:
            return head
        shards = self.gapless(lane)
        head = self.last_state(lane, shards) or self.beginning(lane)
        for number in reversed(self._carry_numbers(lane)):
            carry = self.carry(lane, number)
            if carry is not None and self.shard_count(carry.samples) <= shards:
                return carry if carry.samples >= head.samples else head
        return head

    def last_state(self, lane: int, shards: int) -> LaneHead | None:
        """Return the newest trusted state after one of the first `shards` shards.

        The state before the first shard that is kept is kept with it.
        """
        for shard in range(shards - 1, max(0, self._first_shards[lane] - 1) - 1, -1):
            state = self.state(lane, shard)
            if state is not None:
                return LaneHead(lane=lane, kind="state", number=shard, state=state)
        return None

    def shard_count(self, samples: int) -> int:
        """Return how many shards hold so many samples of a lane."""
        return -(-samples // self._manifest.samples_per_shard)

    def _is_ours(self, state: LaneState, lane: int) -> bool:
        return state.fingerprint == self._manifest.fingerprint and state.lane == lane

    def _carry_numbers(self, lane: int) -> list[int]:
        folder = lane_folder("carry", lane)
        return numbered(self._store, folder, lambda number: carry_name(lane, number))

    def gapless(self, lane: int) -> int:
        """Return the number of the first shard that a lane lacks, of those that it keeps.

        Costs a listing of the lane's shards.
        """
        return first_missing(shard_numbers(self._store, lane), self._first_shards[lane])
