"""What a stream's folders say: which shards each lane has, and where it ended.

Made for looking at a stream that is being written: ends are read before shards, so a lane that is
seen to have ended is seen with the shards that it had then.
"""

import json
from dataclasses import dataclass

from zephon_beam.errors import CorruptObjectError, CorruptShardError
from zephon_beam.layout import end_name, lane_folder, number_of, shard_name
from zephon_beam.manifest import Manifest
from zephon_beam.sample_order import SampleOrder
from zephon_beam.shard import decode_header
from zephon_beam.store.base import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneListing:
    """The shards of one lane."""

    lane: int
    shards: tuple[int, ...]
    """Numbers of the shards that exist, in increasing order."""
    length: int | None
    """Samples of the whole lane, None if it has not ended."""
    committed: int
    """Samples in the shards that exist without a hole from the lane's start."""

    @property
    def gapless(self) -> int:
        """Number of shards that exist without a hole from the lane's start."""
        return next((i for i, n in enumerate(self.shards) if i != n), len(self.shards))


def read_end(store: Store, lane: int) -> int | None:
    """Return how many samples a lane has, None if it has not ended.

    Raises:
        CorruptObjectError: the object does not say so.
    """
    name = end_name(lane)
    try:
        length = json.loads(store.get(name))["samples"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObjectError(_bad_end(name, str(error))) from error
    if not isinstance(length, int) or isinstance(length, bool) or length < 0:
        raise CorruptObjectError(_bad_end(name, f"samples must be a count, got {length!r}"))
    return length


def list_lane(store: Store, manifest: Manifest, lane: int, length: int | None) -> LaneListing:
    """List one lane; objects whose names are not numbers are left out.

    Args:
        store: of the stream.
        manifest: of the stream.
        lane: which lane.
        length: its samples if it has ended.
    """
    numbers = []
    for name in store.list(lane_folder("shards", lane)):
        try:
            number = number_of(name)
        except ValueError:
            continue
        if name == shard_name(lane, number):
            numbers.append(number)
    listing = LaneListing(lane=lane, shards=tuple(sorted(numbers)), length=length, committed=0)
    committed = _committed(store, manifest, listing)
    return LaneListing(lane=lane, shards=listing.shards, length=length, committed=committed)


def global_order(listings: list[LaneListing]) -> SampleOrder:
    """Return the order of the samples of these lanes."""
    return SampleOrder(len(listings), [listing.length for listing in listings])


def _committed(store: Store, manifest: Manifest, listing: LaneListing) -> int:
    """Count samples; only the last shard of a lane may hold fewer than the others."""
    gapless = listing.gapless
    whole = gapless * manifest.samples_per_shard
    if listing.length is not None:
        return min(whole, listing.length)
    if gapless == 0 or gapless < len(listing.shards):
        return whole
    name = shard_name(listing.lane, gapless - 1)
    try:
        last = decode_header(store.open_mmap(name), name).count
    except CorruptShardError:
        return whole
    return whole - manifest.samples_per_shard + min(last, manifest.samples_per_shard)


def _bad_end(name: str, reason: str) -> str:
    return (
        f"{name} is corrupt: {reason}; the lane's length is unknown; delete it and run the recipe "
        "again, which writes it anew"
    )
