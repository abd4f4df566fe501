"""Draining: an endless job is asked to end once all that it was supplied with is committed.

The wish is an object of the stream, which the job's own source looks at, so it needs nothing of
the engine, and reaches a job whose command is gone. It is for all endless jobs up to a number:
numbers only grow, so a wish that is old never ends a job that began after it.

Determinism: it decides when a job ends, never what is in the stream.
"""

import json

from zephon_beam.heads import Heads
from zephon_beam.layout import DRAIN
from zephon_beam.manifest import Manifest
from zephon_beam.plan import Plan
from zephon_beam.position import is_complete
from zephon_beam.store.base import Store


def ask_to_drain(store: Store, job: int) -> None:
    """Ask the endless jobs of a stream up to a number to end; they see it within seconds.

    Args:
        store: of the stream.
        job: number of the newest one's plan.
    """
    store.replace(DRAIN, (json.dumps({"advance": max(job, _asked(store))}) + "\n").encode())


def is_drain_asked(store: Store, job: int) -> bool:
    """Say whether an endless job was asked to end."""
    return _asked(store) >= job


def is_drained(store: Store, manifest: Manifest, plan: Plan) -> bool:
    """Say whether an endless job was asked to end and every lane of it has committed all it had."""
    return is_drain_asked(store, plan.advance) and is_complete(store, Heads(store, manifest), plan)


def _asked(store: Store) -> int:
    """Return the number of the newest job that was asked to end; -1 if that cannot be told."""
    try:
        return int(json.loads(store.get(DRAIN))["advance"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return -1
