"""Traces of polls: that an engine still calls the source of an endless job.

One object of the stream, replaced every few seconds by every worker that polls. It says nothing
but that there was a poll: if it changes, there was another one.
"""

import json

from zephon_beam.layout import POLLED
from zephon_beam.store.base import Store


def encode_trace(job: int, beat: int) -> bytes:
    """Encode the trace of a poll as one line of JSON.

    Args:
        job: number of the job's plan.
        beat: any number that no poll has left before.
    """
    return (json.dumps({"advance": job, "beat": beat}) + "\n").encode()


def read_trace(store: Store, job: int) -> int | None:
    """Return the beat of the last poll that a job left a trace of.

    None if there is none, or if it cannot be read now.

    Args:
        store: of the stream.
        job: number of the job's plan.
    """
    try:
        raw = json.loads(store.get(POLLED))
        return int(raw["beat"]) if raw["advance"] == job else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
