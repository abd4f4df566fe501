"""Demand: how many samples the consumers of a stream want to be there."""

from collections.abc import Sequence

from zephon_beam.consumers import Consumer, read_consumers
from zephon_beam.errors import CorruptObjectError
from zephon_beam.manifest import Manifest
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
