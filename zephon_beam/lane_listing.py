"""What a stream's folders say: which shards each lane has, and where it ended.

Made for looking at a stream that is being written: ends are read before shards, so a lane that is
seen to have ended is seen with the shards that it had then.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zephon_beam.errors import CorruptObjectError, CorruptShardError
from zephon_beam.layout import end_name, shard_name
from zephon_beam.manifest import Manifest
from zephon_beam.numbered import first_missing, shard_numbers
from zephon_beam.retained import read_first_shards
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
    first: int
    """The first shard that the lane keeps; those before it were deleted on purpose."""
    gapless: int
    """The first shard that the lane lacks, from `first` on."""
    committed: int
    """Samples of the lane before that shard; those of deleted shards count."""


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


def read_lengths(store: Store, manifest: Manifest) -> list[int | None]:
    """Return how many samples each lane has, None for those that have not ended.

    Raises:
        CorruptObjectError: the end of a lane is damaged.
    """
    return [read_end(store, lane) for lane in range(manifest.lanes)]


def list_lanes(
    store: Store, manifest: Manifest, lengths: Sequence[int | None]
) -> list[LaneListing]:
    """List the lanes, given the samples of those that have ended.

    Objects whose names are not numbers are left out. What was deleted on purpose is read last,
    because whoever deletes says so before.
    """
    numbers = [shard_numbers(store, lane) for lane in range(manifest.lanes)]
    first = read_first_shards(store, manifest.lanes)
    listings = []
    for lane, length in enumerate(lengths):
        kept = tuple(number for number in numbers[lane] if number >= first[lane])
        listing = LaneListing(
            lane=lane,
            shards=kept,
            length=length,
            first=first[lane],
            gapless=first_missing(kept, first[lane]),
            committed=0,
        )
        listings.append(replace(listing, committed=_committed(store, manifest, listing)))
    return listings


def global_order(listings: list[LaneListing]) -> SampleOrder:
    """Return the order of the samples of these lanes."""
    return SampleOrder(len(listings), [listing.length for listing in listings])


def _committed(store: Store, manifest: Manifest, listing: LaneListing) -> int:
    """Count samples; only the last shard of a lane may hold fewer than the others."""
    gapless = listing.gapless
    whole = gapless * manifest.samples_per_shard
    if listing.length is not None:
        return min(whole, listing.length)
    if gapless == listing.first or gapless <= listing.shards[-1]:
        # Nothing is kept, or later shards exist: the last one before the hole is full.
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
