"""Jobs of a Flink cluster, asked about and ended by its REST interface.

Beam's job server forgets a job that it is told to cancel, and leaves it running in the cluster:
for an advance that is a waste, for a job without end it would be one without end.
"""

import json
import logging
import time
import urllib.request
from typing import Any

_ENDED = ("CANCELED", "FAILED", "FINISHED")
_ENDED_IN_TIME_SECS = 60.0
_POLL_SECS = 0.2
_ANSWER_SECS = 10.0

_LOGGER = logging.getLogger(__name__)


def end_cluster_job(master: str, beam_job: str) -> None:
    """Make sure that a job has ended in the cluster; a warning tells if that cannot be had.

    Args:
        master: address of the cluster, as `--flink_master` takes it; there is none to be asked
            behind `[local]` and its like.
        beam_job: the job's name for Beam, which is that of Flink and a suffix.
    """
    if master.startswith("["):
        return
    address = master if "//" in master else f"http://{master}"
    name = beam_job.rpartition("_")[0]
    end = time.monotonic() + _ENDED_IN_TIME_SECS
    try:
        while running := _running(address, name):
            if time.monotonic() > end:
                raise TimeoutError(f"it still runs after {_ENDED_IN_TIME_SECS:.0f} s")
            for job in running:
                _ask(f"{address}/jobs/{job}?mode=cancel", "PATCH")
            time.sleep(_POLL_SECS)
    except (OSError, ValueError, KeyError) as error:
        _LOGGER.warning(
            "job %s may still run in the cluster at %s: %s; cancel it there", name, master, error
        )


def _running(address: str, name: str) -> list[str]:
    """Return the ids of the jobs of a name that have not ended."""
    jobs: list[dict[str, Any]] = json.loads(_ask(f"{address}/jobs/overview", "GET"))["jobs"]
    return [job["jid"] for job in jobs if job["name"] == name and job["state"] not in _ENDED]


def _ask(url: str, method: str) -> bytes:
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=_ANSWER_SECS) as answer:
        return bytes(answer.read())
