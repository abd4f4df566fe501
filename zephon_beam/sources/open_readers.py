"""A few readers that stay open at the place they have reached, for parts read one after another."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, Protocol, TypeVar


class ForwardReader(Protocol):
    """A reader that only moves forward."""

    reached: int
    """Documents that begin before this place can no longer be read."""


R = TypeVar("R", bound=ForwardReader)


class OpenReaders(Generic[R]):
    """At most `limit` readers, each for one thread at a time; the longest unused one is dropped."""

    def __init__(self, limit: int = 16) -> None:
        """Keep none yet."""
        self._limit = limit
        self._readers: OrderedDict[Hashable, R] = OrderedDict()
        self._lock = Lock()

    def take(self, place: Hashable, first: int) -> R | None:
        """Take the reader of a place out, unless it has passed what is to be read first."""
        with self._lock:
            reader = self._readers.pop(place, None)
        return reader if reader is not None and reader.reached <= first else None

    def keep(self, place: Hashable, reader: R) -> None:
        """Keep a reader for whoever asks next."""
        with self._lock:
            self._readers[place] = reader
            if len(self._readers) > self._limit:
                self._readers.popitem(last=False)
