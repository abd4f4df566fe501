"""Following consumers: how far a stream is wanted now, and what may be deleted."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from zephon_beam.consumers import Consumer, read_consumers
from zephon_beam.demand import samples_wanted
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
    _needed: int = -1
    """First sample that all pins together keep, as it was when something was deleted last."""
    _beats: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Last beat of each consumer, and when it was first seen."""
    _warned: dict[str, float] = field(default_factory=dict)
    """Silence of each consumer at which it was last reported."""

    def wait_for_need(self, complete_samples: int, until: int | None) -> tuple[int, bool]:
        """Wait until more samples are wanted than there are, deleting what nobody needs.

        Args:
            complete_samples: that exist.
            until: samples beyond which none is wanted, None without a limit.

        Returns:
            (complete samples wanted, whether it took time, in which others may have gone on).
        """
        has_waited = False
        while True:
            consumers = self._consumers()
            self._delete_behind(consumers)
            wanted = self._wanted(consumers or [])
            wanted = wanted if until is None else min(wanted, until)
            if complete_samples < wanted:
                return wanted, has_waited
            self._report_silent(self._ours(consumers or []))
            self.sleep(POLL_SECS)
            has_waited = True

    def look(self) -> None:
        """Delete what nobody needs and report who is silent, once, beside a job that supplies."""
        consumers = self._consumers()
        self._delete_behind(consumers)
        self._report_silent(self._ours(consumers or []))

    def clean_up(self) -> None:
        """Delete what is behind all pins, if that was asked for."""
        self._needed = -1
        self._delete_behind(self._consumers())

    def _wanted(self, consumers: list[Consumer]) -> int:
        """Return how many complete samples are wanted now."""
        return samples_wanted(consumers, self.manifest.fingerprint, self.lookahead)

    def _consumers(self) -> list[Consumer] | None:
        """Read all consumers; None if one is damaged, which is no reason to stop."""
        try:
            return read_consumers(self.store)
        except CorruptObjectError as error:
            _LOGGER.warning("consumers are not looked at and nothing is deleted: %s", error)
            return None

    def _ours(self, consumers: list[Consumer]) -> list[Consumer]:
        """Return those whose positions mean samples of this stream."""
        mark = self.manifest.fingerprint
        return [consumer for consumer in consumers if consumer.fingerprint == mark]

    def _delete_behind(self, consumers: list[Consumer] | None) -> None:
        """Delete what is behind the pins of all consumers, if those have moved."""
        if not self.deletes or consumers is None:
            return
        needed = min((consumer.first_needed for consumer in consumers), default=0)
        if needed == self._needed:
            return
        try:
            garbage = find_garbage(self.store, self.manifest, consumers)
        except CorruptObjectError as error:
            _LOGGER.warning("nothing is deleted: %s", error)
            return
        delete_garbage(self.store, self.manifest, garbage)
        self._needed = needed

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
