"""Changes to what all threads of a process share, while any of them needs the change."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps


def process_wide(
    change: Callable[[], AbstractContextManager[None]],
) -> Callable[[], AbstractContextManager[None]]:
    """Make a change with the first block that begins, and undo it with the last one that ends.

    Jobs that run in threads of one process, as for a stream to train on and one to evaluate on,
    overlap without one being inside the other: whoever ends first must take nothing from the rest.
    """
    lock = threading.Lock()
    made = ExitStack()
    users = 0

    @contextmanager
    @wraps(change)
    def shared() -> Iterator[None]:
        nonlocal users
        with lock:
            if not users:
                made.enter_context(change())
            users += 1
        try:
            yield
        finally:
            with lock:
                users -= 1
                if not users:
                    made.close()

    return shared
