"""Where a stream stands: which advance is complete and from what each lane goes on.

The commit protocol. Advance k is complete when every lane in its plan has carry k or has ended,
and every shard that a carry counts exists; otherwise plan k is run again. If an object that a plan
starts from is gone or damaged, lanes go on from whichever is further of their newest carry and the
last lane state of their gapless run of shards; ties go to the carry.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from zephon_beam.carry import decode_carry_head
from zephon_beam.errors import CorruptObjectError
from zephon_beam.lane_state import LaneState, decode_state
from zephon_beam.layout import (
    carry_name,
    end_name,
    lane_folder,
    number_of,
    plan_name,
    shard_name,
    state_name,
)
from zephon_beam.manifest import Manifest
from zephon_beam.plan import LanePlan, Plan, decode_plan
from zephon_beam.sample_order import SampleOrder
from zephon_beam.store.base import Store
from zephon_beam.supply import LaneHead


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """A stream between two advances."""

    heads: tuple[LaneHead, ...]
    """One a lane, in order."""
    lengths: tuple[int | None, ...]
    """Samples of the lanes that have ended."""
    next_advance: int
    pending: Plan | None
    """The plan that was begun and is not complete."""
    previous: Plan | None
    """The newest complete plan."""

    @property
    def complete_samples(self) -> int:
        """Length of the gapless global prefix."""
        order = SampleOrder(len(self.heads), self.lengths)
        return order.complete_prefix([head.samples for head in self.heads])

    @property
    def samples(self) -> int:
        """Samples in all committed shards that heads count."""
        return sum(head.samples for head in self.heads)

    @property
    def finished(self) -> bool:
        """Whether every lane has ended."""
        return all(length is not None for length in self.lengths)


def read_position(store: Store, manifest: Manifest) -> Position:
    """Read where a stream stands.

    Raises:
        CorruptObjectError: the newest plan is damaged.
    """
    lanes = range(manifest.lanes)
    lengths = tuple(read_length(store, lane) for lane in lanes)
    numbers = sorted(number_of(name) for name in store.list("advances/"))
    if not numbers:
        heads = tuple(_fresh_or_ended(lane, lengths[lane]) for lane in lanes)
        return Position(heads=heads, lengths=lengths, next_advance=0, pending=None, previous=None)
    newest = numbers[-1]
    name = plan_name(newest)
    plan = decode_plan(store.get(name), name)
    listed = {entry.lane: entry for entry in plan.lanes}
    if is_complete(store, manifest, plan):
        heads = tuple(_after(store, manifest, lane, lengths[lane], listed) for lane in lanes)
        return Position(
            heads=heads, lengths=lengths, next_advance=newest + 1, pending=None, previous=plan
        )
    can_run = all(_can_run(store, newest, entry) for entry in plan.lanes)
    heads = tuple(furthest_head(store, manifest, lane, lengths[lane]) for lane in lanes)
    return Position(
        heads=heads,
        lengths=lengths,
        next_advance=newest + 1,
        pending=plan if can_run else None,
        previous=None,
    )


def is_complete(store: Store, manifest: Manifest, plan: Plan) -> bool:
    """Say whether an advance has done all that its plan asks for."""
    return all(_lane_is_complete(store, manifest, plan.advance, entry) for entry in plan.lanes)


def read_length(store: Store, lane: int) -> int | None:
    """Return how many samples a lane has, None if it has not ended."""
    try:
        return int(json.loads(store.get(end_name(lane)))["samples"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObjectError(
            f"{end_name(lane)} is corrupt: {error}; the lane's length is unknown; delete it and "
            "run the recipe again"
        ) from error


def furthest_head(store: Store, manifest: Manifest, lane: int, length: int | None) -> LaneHead:
    """Return the furthest place that a lane can go on from; costs a listing of its shards."""
    if length is not None:
        return _fresh_or_ended(lane, length)
    shards = _gapless(store, lane)
    head = _state_head(store, lane, shards) if shards else _fresh_or_ended(lane, None)
    for number in sorted(_carry_numbers(store, lane), reverse=True):
        carry = _carry_head(store, lane, number)
        if carry is None or _shard_count(manifest, carry.samples) > shards:
            continue
        return carry if carry.samples >= head.samples else head
    return head


def _after(
    store: Store, manifest: Manifest, lane: int, length: int | None, listed: dict[int, LanePlan]
) -> LaneHead:
    """Return a lane's head when the newest plan is complete."""
    if length is not None:
        return _fresh_or_ended(lane, length)
    numbers = _carry_numbers(store, lane)
    if not numbers and lane not in listed:
        return furthest_head(store, manifest, lane, length)
    carry = _carry_head(store, lane, max(numbers))
    return carry if carry is not None else furthest_head(store, manifest, lane, length)


def _lane_is_complete(store: Store, manifest: Manifest, advance: int, entry: LanePlan) -> bool:
    if read_length(store, entry.lane) is not None:
        return True
    carry = _carry_head(store, entry.lane, advance)
    if carry is None:
        return False
    first = _head_samples(store, entry) // manifest.samples_per_shard
    last = _shard_count(manifest, carry.samples)
    return all(store.exists(shard_name(entry.lane, shard)) for shard in range(first, last))


def _can_run(store: Store, advance: int, entry: LanePlan) -> bool:
    """Say whether a lane's share of a plan can be run again and lead to a carry of its number."""
    if store.exists(carry_name(entry.lane, advance)):
        # A carry is created once; a damaged one would stay in the place of the one made now.
        return _carry_head(store, entry.lane, advance) is not None
    if entry.head_kind == "carry":
        return _carry_head(store, entry.lane, entry.head_number) is not None
    if entry.head_kind == "state":
        return read_state(store, entry.lane, entry.head_number) is not None
    return True


def _head_samples(store: Store, entry: LanePlan) -> int:
    """Samples in shards where a lane's share of a plan starts; 0 if that object is gone."""
    if entry.head_kind == "carry":
        head = _carry_head(store, entry.lane, entry.head_number)
    elif entry.head_kind == "state":
        head = _state_head(store, entry.lane, entry.head_number + 1)
    else:
        head = None
    return head.samples if head is not None else 0


def _carry_head(store: Store, lane: int, number: int) -> LaneHead | None:
    """Return a carry as a head; None if it is missing or damaged, which costs only time."""
    name = carry_name(lane, number)
    try:
        carry = decode_carry_head(store.open_mmap(name), name)
    except (FileNotFoundError, CorruptObjectError):
        return None
    return LaneHead(
        lane=lane,
        kind="carry",
        number=number,
        state=carry.state,
        waiting=tuple(carry.waiting),
    )


def _state_head(store: Store, lane: int, shards: int) -> LaneHead:
    """Return the newest readable state within a gapless run of shards."""
    for shard in range(shards - 1, -1, -1):
        state = read_state(store, lane, shard)
        if state is not None:
            return LaneHead(lane=lane, kind="state", number=shard, state=state)
    return _fresh_or_ended(lane, None)


def read_state(store: Store, lane: int, shard: int) -> LaneState | None:
    """Return the lane state after a shard; None if it is missing or damaged."""
    name = state_name(lane, shard)
    try:
        return decode_state(store.get(name), name)
    except (FileNotFoundError, CorruptObjectError):
        return None


def _fresh_or_ended(lane: int, length: int | None) -> LaneHead:
    return LaneHead(
        lane=lane, kind="none", number=-1, state=None, ended=length is not None, length=length or 0
    )


def _carry_numbers(store: Store, lane: int) -> list[int]:
    return [number_of(name) for name in store.list(lane_folder("carry", lane))]


def _gapless(store: Store, lane: int) -> int:
    """Return how many shards of a lane exist without a hole from its start."""
    numbers: Sequence[int] = sorted(
        number_of(name) for name in store.list(lane_folder("shards", lane))
    )
    count = 0
    for number in numbers:
        if number != count:
            break
        count += 1
    return count


def _shard_count(manifest: Manifest, samples: int) -> int:
    return -(-samples // manifest.samples_per_shard)
