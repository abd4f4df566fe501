"""Runners: how a graph is handed to an engine, and what happens when a worker process dies."""

import _thread
import logging
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    StandardOptions,
)
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from pipelines.failures import find_cause
from zephon_beam.errors import ZephonBeamError

_WORKER_THREAD = "run_worker"
"""Name that Beam gives to the threads that wait for a worker process."""
_TALKATIVE = (
    "apache_beam.runners.common",
    "apache_beam.runners.worker.sdk_worker",
    "apache_beam.runners.worker.data_plane",
    "apache_beam.runners.portability.fn_api_runner.fn_runner",
    "apache_beam.runners.portability.local_job_service",
    "apache_beam.runners.portability.portable_runner",
)
_NEEDLESS = (
    "zephon_beam.errors.",
    "If direct_num_workers is not equal to 1",
    "No semi_persistent_directory found",
)


@contextmanager
def running_pipeline(options: PipelineOptions) -> Iterator[beam.Pipeline]:
    """Yield a pipeline that runs, to its end, when the block is left.

    Raises:
        ZephonBeamError: what a worker met, named as it was there; or that a worker died.
    """
    try:
        pipeline = beam.Pipeline(runner=_runner(options), options=options)
        with _told_once(), _watched_workers(), pipeline as built:
            yield built
    except Exception as error:
        cause = find_cause(error)
        if cause is None:
            raise
        raise cause from error


def _runner(options: PipelineOptions) -> PipelineRunner | str:
    """Return the runner that the options name.

    Worker processes of the in-process engine are started by our own entry point: the working
    directory is not on their path, and they end when their parent does.
    """
    direct = options.view_as(DirectOptions)
    name = options.view_as(StandardOptions).runner
    if name != "FnApiRunner" or direct.direct_running_mode != "multi_processing":
        return str(name)
    root = str(Path(__file__).resolve().parent.parent)
    script = f"import sys; sys.path[:1] = [{root!r}]; from pipelines.worker import main; main()"
    command = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(script)}"
    environment = SubprocessSDKEnvironment.from_command_string(command_string=command)
    # A runner ignores its default environment while the mode asks for one of its own.
    direct.direct_running_mode = "in_memory"
    return FnApiRunner(default_environment=environment)


class _ToldOnce(logging.Filter):
    """Drops what Beam logs of an error that is raised anyway, and notes on how we start workers."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        ours = record.exc_info is not None and _holds_ours(record.exc_info[1])
        return not (ours or any(part in text for part in _NEEDLESS))


def _holds_ours(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ZephonBeamError):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _told_once() -> Iterator[None]:
    """Keep a user's mistake from being a page of tracebacks before its one line."""
    quiet = _ToldOnce()
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    for logger in loggers:
        logger.addFilter(quiet)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(quiet)


@contextmanager
def _watched_workers() -> Iterator[None]:
    """Turn the death of a worker process into an error.

    The in-process engine waits for ever for a worker that is gone; it only raises in the thread
    that waited for the process. That is noticed here, and the waiting main thread interrupted.
    """
    deaths: list[str] = []
    previous = threading.excepthook

    def notice(failure: threading.ExceptHookArgs) -> None:
        if failure.thread is not None and failure.thread.name == _WORKER_THREAD:
            deaths.append(str(failure.exc_value))
            _thread.interrupt_main()
        else:
            previous(failure)

    threading.excepthook = notice
    try:
        yield
    except KeyboardInterrupt:
        if not deaths:
            raise
        raise ZephonBeamError(
            f"worker process must stay alive while the job runs: {deaths[0]}; it may have run out "
            "of memory or was killed; the stream is intact; run it again, with fewer workers or a "
            "smaller --advance-bytes if it repeats"
        ) from None
    finally:
        threading.excepthook = previous
