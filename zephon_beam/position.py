"""Where a stream stands: which advance is complete and from what each lane goes on.

The commit protocol. Advance k is complete when every lane in its plan has carry k or has ended,
and every shard that the carry or the end counts exists or was deleted on purpose; otherwise plan k
is run again. If an object that a plan starts from is gone or damaged, lanes go on from whichever
is further of their newest carry and the last lane state of their gapless run of shards; ties go to
the carry. So they do after an endless job, whose plan is complete only if it was drained.
"""

from dataclasses import dataclass

from zephon_beam.errors import DriftError
from zephon_beam.heads import Heads
from zephon_beam.layout import carry_name, plan_name, shard_name
from zephon_beam.manifest import Manifest
from zephon_beam.numbered import numbered
from zephon_beam.plan import LanePlan, Plan, decode_plan
from zephon_beam.sample_order import SampleOrder
from zephon_beam.store.base import Store
from zephon_beam.supply import LaneHead


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """A stream between two advances."""

    heads: tuple[LaneHead, ...]
    """One a lane, in order."""
    next_advance: int
    pending: Plan | None
    """The plan that was begun and is not complete."""

    @property
    def lengths(self) -> tuple[int | None, ...]:
        """Samples of the lanes that have ended."""
        return tuple(head.length if head.ended else None for head in self.heads)

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
        return all(head.ended for head in self.heads)


def read_position(
    store: Store, manifest: Manifest, *, complete: int | None = None, found: Heads | None = None
) -> Position:
    """Read where a stream stands.

    Args:
        store: of the stream.
        manifest: of the stream.
        complete: an advance that was just found complete, which is not looked at once more.
        found: what that was found by.

    Raises:
        CorruptObjectError: the newest plan or a lane's end is damaged.
        DriftError: the newest plan belongs to another stream.
    """
    found = found or Heads(store, manifest)
    lanes = range(manifest.lanes)
    numbers = numbered(store, "advances/", plan_name)
    if not numbers:
        heads = tuple(found.start(lane) for lane in lanes)
        return Position(heads=heads, next_advance=0, pending=None)
    newest = numbers[-1]
    plan = read_plan(store, manifest, plan_name(newest))
    if plan.endless:
        heads = tuple(found.furthest(lane) for lane in lanes)
        return Position(heads=heads, next_advance=newest + 1, pending=None)
    if newest == complete or is_complete(store, found, plan):
        # Ends are read after the plan was found complete: a twin may have written them meanwhile.
        heads = tuple(_after_complete(found, lane) for lane in lanes)
        return Position(heads=heads, next_advance=newest + 1, pending=None)
    can_run = all(_can_run(store, found, newest, entry) for entry in plan.lanes)
    heads = tuple(found.furthest(lane) for lane in lanes)
    return Position(heads=heads, next_advance=newest + 1, pending=plan if can_run else None)


def read_plan(store: Store, manifest: Manifest, name: str) -> Plan:
    """Read a plan.

    Raises:
        CorruptObjectError: it is damaged.
        DriftError: it belongs to another stream.
    """
    plan = decode_plan(store.get(name), name)
    if plan.fingerprint != manifest.fingerprint:
        raise DriftError(
            f"{name}: fingerprint: expected {manifest.fingerprint}, found {plan.fingerprint}; the "
            f"objects in {store.uri!r} belong to another recipe than its stream.json; run the "
            "recipe into a new place"
        )
    return plan


def is_complete(store: Store, found: Heads, plan: Plan) -> bool:
    """Say whether an advance has done all that its plan asks for."""
    return all(_lane_is_complete(store, found, plan.advance, entry) for entry in plan.lanes)


def is_superseded(store: Store, plan: Plan) -> bool:
    """Say whether another driver has gone on to a later advance."""
    return store.exists(plan_name(plan.advance + 1))


def _after_complete(found: Heads, lane: int) -> LaneHead:
    """Return a lane's head when the newest plan is complete."""
    return found.ended(lane) or found.newest_carry(lane) or found.furthest(lane)


def _lane_is_complete(store: Store, found: Heads, advance: int, entry: LanePlan) -> bool:
    length = found.length(entry.lane)
    if length is None:
        carry = found.carry(entry.lane, advance)
        if carry is None:
            return False
        length = carry.samples
    stop = found.shard_count(length)
    start = _start_samples(found, entry)
    if start is None:
        # It is deleted once the advance is complete; a look at every shard would take ever longer.
        return found.gapless(entry.lane) >= stop
    first = max(found.shard_count(start), found.first_shard(entry.lane))
    return all(store.exists(shard_name(entry.lane, shard)) for shard in range(first, stop))


def _can_run(store: Store, found: Heads, advance: int, entry: LanePlan) -> bool:
    """Say whether a lane's share of a plan can be run again and lead to a carry of its number."""
    exists = store.exists(carry_name(entry.lane, advance))
    if exists and found.carry(entry.lane, advance) is None:
        # A carry is created once; a damaged one would stay in the place of the one made now.
        return False
    if entry.head_kind == "carry":
        return found.carry(entry.lane, entry.head_number) is not None
    if entry.head_kind == "state":
        return found.state(entry.lane, entry.head_number) is not None
    return True


def _start_samples(found: Heads, entry: LanePlan) -> int | None:
    """Samples in shards where a lane's share of a plan starts; None if that object is gone."""
    if entry.head_kind in ("none", "origin"):
        return 0
    if entry.head_kind == "carry":
        head = found.carry(entry.lane, entry.head_number)
    else:
        head = found.last_state(entry.lane, entry.head_number + 1)
    return head.samples if head is not None else None
