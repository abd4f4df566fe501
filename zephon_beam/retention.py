"""Retention: which shards and lane states nobody needs any more, and deleting them.

    pins of all consumers      … 4096, 6144 …        the smallest one, 4096, decides
    lane 0, 512 samples a shard      0 1 2 3 4 5 6 7 8 …
    kept                                             8 …   and the lane state after shard 7

Kept besides: every lane's newest shard and state, from which the pipeline goes on, the objects of
the newest two advances, and everything while a consumer has not pinned anything yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zephon_beam.consumers import Consumer
from zephon_beam.lane_listing import LaneListing, global_order, list_lanes, read_lengths
from zephon_beam.layout import plan_name, shard_name, state_name
from zephon_beam.manifest import Manifest
from zephon_beam.numbered import numbered, shard_numbers, state_numbers
from zephon_beam.position import read_plan
from zephon_beam.retained import read_first_shards, write_first_shards
from zephon_beam.sample_order import SampleOrder
from zephon_beam.store.base import Store

_KEPT_PLANS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Garbage:
    """What may be deleted, and where the lanes begin afterwards."""

    first_shards: tuple[int, ...]
    names: tuple[str, ...]
    """In an order that may be broken off anywhere."""


def find_garbage(store: Store, manifest: Manifest, consumers: Sequence[Consumer]) -> Garbage:
    """Find what no consumer and no later advance needs.

    Without consumers nothing is garbage but old plans: nobody has said what it needs.

    Args:
        store: of the stream.
        manifest: of the stream.
        consumers: all of them; those of other streams count like ours, so that a mistake keeps
            too much.

    Raises:
        CorruptObjectError: what is stored does not say what exists.

    Determinism: depends on what is stored alone.
    """
    kept = read_first_shards(store, manifest.lanes)
    first = list(kept)
    needed = min((consumer.first_needed for consumer in consumers), default=0)
    lengths = read_lengths(store, manifest)
    listings = list_lanes(store, manifest, lengths)
    order = global_order(listings)
    for listing in listings:
        before = _samples_before(order, needed, listing)
        newest = max(listing.first, listing.gapless - 1)
        shard = min(before // manifest.samples_per_shard, newest)
        first[listing.lane] = max(kept[listing.lane], shard)
    plans = numbered(store, "advances/", plan_name)
    for number in plans[-_KEPT_PLANS:]:
        plan = read_plan(store, manifest, plan_name(number))
        for entry in plan.lanes:
            # An endless job that runs has no more need of what it started from.
            if entry.head_kind == "state" and not plan.endless:
                # Its advance may have to be run again, from this state.
                limit = max(kept[entry.lane], entry.head_number + 1)
                first[entry.lane] = min(first[entry.lane], limit)
    names = [name for lane in range(manifest.lanes) for name in _behind(store, lane, first[lane])]
    names += [plan_name(number) for number in plans[:-_KEPT_PLANS]]
    return Garbage(first_shards=tuple(first), names=tuple(names))


def delete_garbage(store: Store, manifest: Manifest, garbage: Garbage) -> int:
    """Delete what was found; may be broken off anywhere and repeated.

    Returns:
        Number of objects deleted.
    """
    if any(garbage.first_shards) and list(garbage.first_shards) != read_first_shards(
        store, manifest.lanes
    ):
        write_first_shards(store, garbage.first_shards)
    for name in garbage.names:
        store.delete(name)
    return len(garbage.names)


def _samples_before(order: SampleOrder, sample: int, listing: LaneListing) -> int:
    """Return how many samples of a lane lie before a global one."""
    if order.total is not None and sample >= order.total:
        return listing.committed
    lanes, indices = order.locate(sample, sample + 1)
    return int(indices[0]) + (1 if listing.lane < int(lanes[0]) else 0)


def _behind(store: Store, lane: int, first: int) -> list[str]:
    """Name the shards before `first`, and the states before the one that `first` starts from."""
    shards = [number for number in shard_numbers(store, lane) if number < first]
    states = [number for number in state_numbers(store, lane) if number < first - 1]
    return [shard_name(lane, n) for n in shards] + [state_name(lane, n) for n in states]
