"""Following consumers: how far a stream is wanted now, and what may be deleted."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from zephon_beam.consumers import Consumer, read_consumers
from zephon_beam.errors import CorruptObjectError
from zephon_beam.manifest import Manifest
from zephon_beam.retention import delete_garbage, find_garbage
from zephon_beam.store.base import Store

POLL_SECS = 1.0
SILENT_SECS = 120.0
"""A consumer that has not written for so long is reported, and again after twice as long."""
_LOOKAHEAD_SHARDS = 4

_LOGGER = logging.getLogger(__name__)


def default_lookahead(manifest: Manifest) -> int:
    """Return the samples to keep ahead of the slowest consumer: four shards of every lane."""
    return _LOOKAHEAD_SHARDS * manifest.lanes * manifest.samples_per_shard


@dataclass(kw_only=True, slots=True)
class Follower:
    """Watches the consumers of a stream.

    Determinism: it decides when samples are computed and when they are deleted, never what is in
    them.
    """

    store: Store
    manifest: Manifest
    lookahead: int
    """Samples to keep ahead of the slowest consumer that has not finished."""
    deletes: bool
    """Whether to delete what is behind all pins."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _beats: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Last beat of each consumer, and when it was first seen."""
    _warned: dict[str, float] = field(default_factory=dict)
    """Silence of each consumer at which it was last reported."""

    def wanted(self) -> int:
        """Return how many complete samples are wanted now.

        Without consumers, `lookahead` from the start, so that the first one finds samples.
        """
        consumers = self._consumers()
        reading = [consumer.position for consumer in consumers if not consumer.finished]
        if not reading and consumers:
            return 0
        return min(reading, default=0) + self.lookahead

    def pause(self) -> None:
        """Delete what nobody needs, then wait a moment; report consumers that are silent."""
        self.clean_up()
        self.sleep(POLL_SECS)
        self._report_silent(self._consumers())

    def clean_up(self) -> None:
        """Delete what is behind all pins, if that was asked for."""
        if not self.deletes:
            return
        try:
            consumers = read_consumers(self.store)
            garbage = find_garbage(self.store, self.manifest, consumers)
        except CorruptObjectError as error:
            _LOGGER.warning("nothing is deleted: %s", error)
            return
        delete_garbage(self.store, self.manifest, garbage)

    def _consumers(self) -> list[Consumer]:
        """Return the consumers of this stream; a damaged object is no reason to stop."""
        try:
            consumers = read_consumers(self.store)
        except CorruptObjectError as error:
            _LOGGER.warning("consumers are not looked at: %s", error)
            return []
        ours = self.manifest.fingerprint
        return [consumer for consumer in consumers if consumer.fingerprint == ours]

    def _report_silent(self, consumers: list[Consumer]) -> None:
        now = self.clock()
        for consumer in consumers:
            beat, since = self._beats.get(consumer.name, (-1, now))
            if beat != consumer.beat:
                self._beats[consumer.name] = (consumer.beat, now)
                self._warned.pop(consumer.name, None)
                continue
            limit = 2 * self._warned.get(consumer.name, SILENT_SECS / 2)
            if not consumer.finished and now - since >= limit:
                self._warned[consumer.name] = limit
                _LOGGER.warning(
                    "consumer %s has said nothing for %.0f s and stands at sample %d; others wait "
                    "for it, and what it has pinned is kept; if that run is over, delete %s/"
                    "consumers/%s.json, or run `zephon-beam gc STREAM --forget %s`",
                    consumer.name,
                    now - since,
                    consumer.position,
                    self.store.uri,
                    consumer.name,
                    consumer.name,
                )
