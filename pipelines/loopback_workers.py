"""Workers in this process (`LOOPBACK`): each ends with its job."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from apache_beam.runners.worker import worker_pool_main
from apache_beam.utils.sentinel import Sentinel

from pipelines.process_wide import process_wide

_Pool = worker_pool_main.BeamFnExternalWorkerPoolServicer
_here = threading.local()
"""`pools`: those that the job of this thread has started."""


class _NotedPool(_Pool):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if hasattr(_here, "pools"):
            _here.pools.append(self)


@contextmanager
def loopback_workers() -> Iterator[None]:
    """End the workers that a job of this thread has run in this process when the block is left.

    Flink and Spark keep a worker for a while when its job is over. When they end it, Beam no longer
    listens: the worker meets a broken connection instead, and threads that never end keep all that
    it has held, some 10 MB, for every job.
    """
    pools: list[Any] = []
    with _noted_pools():
        _here.pools = pools
        try:
            yield
        finally:
            del _here.pools
            for pool in pools:
                _end_workers(pool)


@process_wide
@contextmanager
def _noted_pools() -> Iterator[None]:
    worker_pool_main.BeamFnExternalWorkerPoolServicer = _NotedPool  # type: ignore[misc]
    try:
        yield
    finally:
        worker_pool_main.BeamFnExternalWorkerPoolServicer = _Pool  # type: ignore[misc]


def _end_workers(pool: Any) -> None:
    """Do what a pool does when an engine tells it to stop its workers."""
    while pool._worker_threads:
        _, worker = pool._worker_threads.popitem()
        worker._responses.put(Sentinel.sentinel)
