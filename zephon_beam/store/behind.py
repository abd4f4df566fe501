"""Creating objects behind the caller: it goes on while disks and services take their time."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from zephon_beam.errors import StoreError
from zephon_beam.store.base import SameContent, Store

_THREADS = 16
"""They wait for most of their time, and disks write for several at once."""
_MOST_BYTES = 64 << 20
"""Waiting to be written; whoever adds more waits for the oldest."""

NewObject = tuple[str, bytes, SameContent | None]
"""(name, content, how it is compared with one that exists)."""


class WriteBehind:
    """Creates objects in a few threads, those of one queue in their order.

    Belongs to one thread, on which everything but the creation happens: errors are raised and
    callbacks called there. After an error nothing that was still waiting is created.
    """

    def __init__(self, store: Store) -> None:
        """Write into a store; threads start when they are needed."""
        self._store = store
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix="write-behind") for _ in range(_THREADS)
        ]
        self._waiting: deque[tuple[Future[bool], int, Callable[[bool], None]]] = deque()
        self._size = 0
        self._has_failed = False
        self._is_closed = False

    def put(
        self, queue: int, objects: Sequence[NewObject], written: Callable[[bool], None]
    ) -> None:
        """Create objects soon, one after the other, behind those of the same queue.

        Args:
            queue: any number.
            objects: what to create.
            written: called when all are durable, with whether the last of them was new.

        Raises:
            DeterminismError: one that was to be created earlier exists with other content.
            StoreError: the store refuses or failed for too long, or this was closed meanwhile.
        """
        if self._is_closed:
            raise StoreError(
                f"{objects[0][0]} must be written while its worker goes on, got one that was told "
                "to end, as when its job is cancelled; what is stored is intact; run again, which "
                "writes it"
            )
        size = sum(len(data) for _, data, _ in objects)
        while self._waiting and (self._size + size > _MOST_BYTES or self._waiting[0][0].done()):
            self._finish_oldest()
        thread = self._threads[queue % _THREADS]
        self._waiting.append((thread.submit(self._create, objects), size, written))
        self._size += size

    def wait(self) -> None:
        """Return when everything is durable.

        Raises:
            DeterminismError: an object exists with other content.
            StoreError: the store refuses or failed for too long.
        """
        while self._waiting:
            self._finish_oldest()

    def forget(self) -> None:
        """Wait for what is being written for a caller that has failed, and start anew."""
        self._has_failed = True
        while self._waiting:
            self._waiting.popleft()[0].exception()
        self._size = 0
        self._has_failed = False

    def close(self) -> None:
        """Let the threads end; nothing can be put any more."""
        self._is_closed = True
        self.forget()
        for thread in self._threads:
            thread.shutdown()

    def _create(self, objects: Sequence[NewObject]) -> bool:
        is_new = False
        try:
            for name, data, same in objects:
                if self._has_failed:
                    return False
                is_new = self._store.put_if_absent(name, data, same)
        except BaseException:
            self._has_failed = True
            raise
        return is_new

    def _finish_oldest(self) -> None:
        future, size, written = self._waiting.popleft()
        self._size -= size
        written(future.result())
