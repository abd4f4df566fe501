"""Opening a stream that a pipeline may be about to create."""

from collections.abc import Callable
from pathlib import Path

from zephon_beam.errors import StreamNotFoundError
from zephon_beam.layout import MANIFEST
from zephon_beam.manifest import Manifest, read_manifest
from zephon_beam.reader.waiting import Waiting
from zephon_beam.store.base import Store

_BEFORE_MANIFEST = ("catalog/", "origin/")
"""What is written before `stream.json`."""
_REASON = "no stream is there yet: is it the place that its pipeline was given?"


def wait_for_manifest(store: Store, new_waiting: Callable[[], Waiting]) -> Manifest:
    """Read the manifest, waiting for it where a stream may still be created.

    Args:
        store: of the stream.
        new_waiting: begins a wait.

    Raises:
        StreamNotFoundError: the place holds something else, or may not be waited for.
        StreamTimeoutError: the stream was not created in time.
        StoreError: the place cannot be reached.
        CorruptObjectError: the manifest is damaged or of another format version.
    """
    waiting = None
    try:
        while True:
            try:
                return read_manifest(store)
            except StreamNotFoundError:
                if waiting is None:
                    _refuse_other_content(store)
                    waiting = new_waiting()
                    if waiting.expired:
                        raise
            what = f"{MANIFEST} in {store.uri!r}"
            if waiting.expired:
                waiting.give_up(what, _REASON)
            waiting.pause(what, reason=_REASON)
    finally:
        if waiting is not None:
            waiting.close()


def _refuse_other_content(store: Store) -> None:
    """Refuse to wait at a place where no stream can be created."""
    path = Path(store.uri)
    found = [str(place) for place in (path, *path.parents) if place.is_file()]
    if not found:
        names = (name for name in store.list("") if not name.startswith(_BEFORE_MANIFEST))
        found = [name for name in [next(names, "")] if name]
    # It may have been created between the two looks.
    if found and not store.exists(MANIFEST):
        raise StreamNotFoundError(
            f"stream must be the place of a stream, or one where there is nothing yet, found "
            f"{found[0]!r} and no {MANIFEST} in {store.uri!r}; no pipeline creates a stream among "
            "other files; check the path"
        )
