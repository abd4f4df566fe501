"""Whom a pipeline waits for that keeps ahead of the slowest reader, while another one waits."""

from collections.abc import Callable

from zephon_beam.consumers import read_consumers
from zephon_beam.errors import CorruptObjectError
from zephon_beam.store.base import Store

LOOK_SECS = 5.0
"""Time between two looks at the consumers of a stream."""


class Holding:
    """Looks for the named reader that holds a following pipeline back."""

    def __init__(
        self, store: Store, fingerprint: str, own: str | None, clock: Callable[[], float]
    ) -> None:
        """Prepare; nothing is read.

        Args:
            store: of the stream.
            fingerprint: of the stream.
            own: name of the run that waits, if it has one.
            clock: seconds that never run backwards.
        """
        self._store = store
        self._fingerprint = fingerprint
        self._own = own
        self._clock = clock
        self._looked = float("-inf")
        self._found = ""

    def reason(self, first: int) -> str:
        """Say which reader is behind the one that waits for sample `first`; "" if none is.

        Whether the pipeline follows its readers at all, only its operator knows.
        """
        now = self._clock()
        if now - self._looked >= LOOK_SECS:
            self._looked = now
            self._found = self._look(first)
        return self._found

    def _look(self, first: int) -> str:
        try:
            consumers = read_consumers(self._store)
        except CorruptObjectError as error:
            # A pipeline that follows does not look at consumers either while one is damaged.
            return f"a pipeline that follows its readers goes no further: {error}"
        behind = [
            consumer
            for consumer in consumers
            if consumer.fingerprint == self._fingerprint
            and not consumer.finished
            and consumer.name != self._own
            and consumer.position < first
        ]
        if not behind:
            return ""
        slowest = min(behind, key=lambda consumer: (consumer.position, consumer.name))
        return (
            f"a pipeline that follows its readers waits for the slowest, consumer "
            f"{slowest.name!r}, which is {first - slowest.position} samples behind this one"
        )
