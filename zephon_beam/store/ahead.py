"""Fetching what will be wanted next, in a few threads of the process, for as long as it lives."""

import os
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread

from zephon_beam.errors import ZephonBeamError

_THREADS = 4


class _Ahead:
    """Threads that work off a queue; the first task starts them."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._threads: list[Thread] = []
        self._lock = Lock()

    def add(self, task: Callable[[], object]) -> None:
        with self._lock:
            if len(self._threads) < _THREADS:
                # They hold nothing that must be given back, so they need not outlive the rest.
                thread = Thread(target=self._work, name="fetch-ahead", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._tasks.put(task)

    def _work(self) -> None:
        while True:
            # Whoever wants the object fetches it then, and meets the error if it is still there.
            with suppress(ZephonBeamError, OSError):
                self._tasks.get()()


_processes: dict[int, _Ahead] = {}
"""One for each process: a fork has none of its parent's threads, and may find its locks held."""


def fetch_ahead(task: Callable[[], object]) -> None:
    """Run a task soon, at most a few at a time; its result and its errors are dropped."""
    _processes.setdefault(os.getpid(), _Ahead()).add(task)
