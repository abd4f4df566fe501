"""Demand: how many samples the consumers of a stream want to be there."""

from collections.abc import Sequence

from zephon_beam.consumers import Consumer, read_consumers
from zephon_beam.errors import CorruptObjectError
from zephon_beam.lane_listing import read_lengths
from zephon_beam.manifest import Manifest
from zephon_beam.sample_order import SampleOrder
from zephon_beam.store.base import Store


def samples_wanted(consumers: Sequence[Consumer], fingerprint: str, lookahead: int) -> int:
    """Return how many complete samples are wanted, 0 if no consumer reads any more.

    Without consumers, `lookahead` from the start, so that the first one finds samples.

    Args:
        consumers: all; the positions of those of other streams mean other samples.
        fingerprint: of the stream.
        lookahead: samples to keep ahead of the slowest consumer that has not finished.
    """
    ours = [consumer for consumer in consumers if consumer.fingerprint == fingerprint]
    reading = [consumer.position for consumer in ours if not consumer.finished]
    if not reading and ours:
        return 0
    return min(reading, default=0) + lookahead


def read_demand(store: Store, manifest: Manifest, lookahead: int, until: int | None) -> int:
    """Read how many complete samples are wanted now.

    A damaged consumer counts as none: to guess wrong costs time only.

    Args:
        store: of the stream.
        manifest: of the stream.
        lookahead: samples to keep ahead of the slowest consumer.
        until: samples beyond which none is wanted, None without a limit.
    """
    try:
        consumers = read_consumers(store)
    except CorruptObjectError:
        consumers = []
    wanted = samples_wanted(consumers, manifest.fingerprint, lookahead)
    return wanted if until is None else min(wanted, until)


def lane_targets(
    until_samples: int | None, lengths: Sequence[int | None], samples_per_shard: int
) -> list[int | None]:
    """Return how many samples each lane must commit for a prefix of `until_samples`.

    Args:
        until_samples: length of the prefix, None without a limit.
        lengths: samples of the lanes that have ended; the others must make up for them.
        samples_per_shard: of which targets are multiples.
    """
    if until_samples is None:
        return [None] * len(lengths)
    order = SampleOrder(len(lengths), lengths)
    if order.total is not None:
        until_samples = min(until_samples, order.total)
    if not until_samples:
        return [0] * len(lengths)
    lanes, indices = order.locate(until_samples - 1, until_samples)
    last_lane, index = int(lanes[0]), int(indices[0])
    needed = [index + 1 if lane <= last_lane else index for lane in range(len(lengths))]
    return [-(-count // samples_per_shard) * samples_per_shard for count in needed]


def read_lane_targets(
    store: Store, manifest: Manifest, *, lanes_end: bool, lookahead: int, until: int | None
) -> list[int | None]:
    """Read how many samples are wanted of each lane now.

    Args:
        store: of the stream.
        manifest: of the stream.
        lanes_end: whether a lane may ever end, so that the others make up for it.
        lookahead: samples to keep ahead of the slowest consumer.
        until: samples beyond which none is wanted, None without a limit.

    Raises:
        CorruptObjectError: the end of a lane is damaged.
    """
    wanted = read_demand(store, manifest, lookahead, until)
    lengths: list[int | None] = [None] * manifest.lanes
    if lanes_end:
        lengths = read_lengths(store, manifest)
    return lane_targets(wanted, lengths, manifest.samples_per_shard)
