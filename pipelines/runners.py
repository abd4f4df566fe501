"""Runners: how a graph is handed to an engine, and what happens when a worker process dies."""

import gc
import logging
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.runners.portability.fn_api_runner import FnApiRunner, worker_handlers
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from pipelines.cancelling import cancel
from pipelines.engine_defaults import DIRECT_RUNNERS
from pipelines.failures import FORGOTTEN, OURS, find_cause, printed_once
from pipelines.garbage import rare_collections, return_large_blocks
from pipelines.job_servers import FlinkRunnerWithOneServer, refuse_silent_endpoint
from pipelines.loopback_workers import loopback_workers
from pipelines.prism_servers import PrismRunnerWithBoundServer, PrismRunnerWithOwnServer
from pipelines.process_wide import process_wide
from pipelines.whole_bundles import undivided_states
from zephon_beam.errors import ZephonBeamError

_WORKER_THREAD = "run_worker"
"""Name that Beam gives to the threads that wait for a worker process."""
_TALKATIVE = (
    "apache_beam.runners.common",
    "apache_beam.runners.worker.sdk_worker",
    "apache_beam.runners.worker.data_plane",
    "apache_beam.runners.dataflow.dataflow_runner",
    "apache_beam.runners.portability.fn_api_runner.fn_runner",
    "apache_beam.runners.portability.local_job_service",
    "apache_beam.runners.portability.portable_runner",
    "PrismJobServer",
)
_NEEDLESS = (
    OURS,
    "If direct_num_workers is not equal to 1",
    "No semi_persistent_directory found",
    "pipeline canceled",
    FORGOTTEN,
)
_LAST_POLL_SECS = 0.6
"""In which the poll of an endless job ends that waits when the job does."""


@contextmanager
def running_pipeline(options: PipelineOptions) -> Iterator[beam.Pipeline]:
    """Yield a pipeline that runs, to its end, when the block is left.

    Raises:
        ZephonBeamError: what a worker met, named as it was there; or that a worker died.
    """
    refuse_silent_endpoint(options.view_as(PortableOptions).job_endpoint)
    return_large_blocks()
    try:
        with (
            _chosen_runner(options) as runner,
            _told_once(),
            _no_timed_flushes(),
            _no_state_cache(),
            rare_collections(),
            undivided_states(),
            loopback_workers(),
            _watched_workers(),
            _with_last_poll(options),
            _cancelled_if_left() as started,
            beam.Pipeline(runner=runner, options=options) as built,
        ):
            started.append(built)
            yield built
    except Exception as error:
        cause = find_cause(error)
        if cause is None:
            raise
        raise cause from error
    finally:
        if options.view_as(StandardOptions).runner not in DIRECT_RUNNERS:
            # What a job of a portable engine leaves, some 10 MB, hangs together in cycles.
            gc.collect()


@contextmanager
def _chosen_runner(options: PipelineOptions) -> Iterator[PipelineRunner | str]:
    """Yield the runner that the options name.

    Worker processes of the in-process engine are started by our own entry point: the working
    directory is not on their path, and they end when their parent does.
    """
    direct = options.view_as(DirectOptions)
    name = options.view_as(StandardOptions).runner
    if name == "FlinkRunner":
        yield FlinkRunnerWithOneServer()
        return
    # It warns of each server that it starts or ends.
    logging.getLogger("apache_beam.utils.subprocess_server").setLevel(logging.ERROR)
    if name == "PrismRunner" and not options.view_as(StandardOptions).streaming:
        yield PrismRunnerWithBoundServer()
        return
    if name == "PrismRunner":
        runner = PrismRunnerWithOwnServer()
        try:
            yield runner
        finally:
            runner.stop_server()
        return
    if name != "FnApiRunner" or direct.direct_running_mode != "multi_processing":
        yield str(name)
        return
    root = str(Path(__file__).resolve().parent.parent)
    script = f"import sys; sys.path[:1] = [{root!r}]; from pipelines.worker import main; main()"
    command = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(script)}"
    environment = SubprocessSDKEnvironment.from_command_string(command_string=command)
    # A runner ignores its default environment while the mode asks for one of its own; the options
    # are the caller's, who runs more than one pipeline with them.
    direct.direct_running_mode = "in_memory"
    try:
        yield FnApiRunner(default_environment=environment)
    finally:
        direct.direct_running_mode = "multi_processing"


@contextmanager
def _cancelled_if_left() -> Iterator[list[beam.Pipeline]]:
    """Cancel the job of a pipeline when nobody waits for it any more, as after Ctrl-C.

    Not every engine obeys, or answers. That is a waste and no harm: whoever goes on with the
    stream computes the same objects.
    """
    pipelines: list[beam.Pipeline] = []
    try:
        yield pipelines
    except BaseException:
        result = getattr(pipelines[0], "result", None) if pipelines else None
        if result is not None and not _is_gone(pipelines[0].runner):
            cancel(result)
        raise


def _is_gone(runner: PipelineRunner) -> bool:
    """Say whether an engine of ours was ended; to ask it may take long."""
    return isinstance(runner, PrismRunnerWithOwnServer) and runner.has_ended


@process_wide
@contextmanager
def _no_timed_flushes() -> Iterator[None]:
    """Keep the in-process engine from losing elements between its workers.

    Beam 2.77 flushes its streams every second from a thread of its own, which takes the bytes and
    then empties the stream: what a worker writes in between is gone. Without the clock a stream is
    flushed by its writer, when it is large and at its end.
    """
    limit = worker_handlers.DATA_BUFFER_TIME_LIMIT_MS
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
    try:
        yield
    finally:
        worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = limit


@process_wide
@contextmanager
def _no_state_cache() -> Iterator[None]:
    """Spare the workers of the in-process engine the cache before their states.

    The states are in the same memory, or a lane reads them once in a drain, while the cache takes
    the size of each by walking through the globals of all modules.
    """
    size = worker_handlers.STATE_CACHE_SIZE_MB
    worker_handlers.STATE_CACHE_SIZE_MB = 0
    try:
        yield
    finally:
        worker_handlers.STATE_CACHE_SIZE_MB = size


class _ToldOnce(logging.Filter):
    """Drops what Beam logs of an error that is raised anyway, and notes on how we start workers."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if record.exc_info is not None:
            text += str(record.exc_info[1])
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
        with printed_once():
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(quiet)


@contextmanager
def _with_last_poll(options: PipelineOptions) -> Iterator[None]:
    """Let a worker in this process end what it does when an endless job is over, unheard."""
    try:
        yield
    finally:
        if options.view_as(StandardOptions).streaming:
            time.sleep(_LAST_POLL_SECS)


class _WorkerDiedError(Exception):
    """Raised in the main thread, wherever it waits."""


@contextmanager
def _watched_workers() -> Iterator[None]:
    """Turn the death of a worker process into an error.

    When a worker is gone the in-process engine fails with whatever broke first, or waits for ever;
    it says so only in the thread that waited for the process. That is noticed here, and a signal
    takes the main thread out of its wait.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    main = threading.get_ident()
    deaths: list[str] = []
    left = threading.Event()
    previous = threading.excepthook

    def notice(failure: threading.ExceptHookArgs) -> None:
        if failure.thread is not None and failure.thread.name == _WORKER_THREAD:
            deaths.append(str(failure.exc_value))
            if not left.is_set():
                signal.pthread_kill(main, signal.SIGUSR1)
        elif not isinstance(failure.exc_value, grpc.RpcError):
            previous(failure)

    def interrupt(_number: int, _frame: object) -> None:
        if not left.is_set():
            left.set()
            raise _WorkerDiedError

    threading.excepthook = notice
    handler = signal.signal(signal.SIGUSR1, interrupt)
    try:
        yield
    except Exception as error:
        left.set()
        if not deaths and not isinstance(error, grpc.RpcError):
            raise
        reason = deaths[0] if deaths else "its connection broke"
        raise ZephonBeamError(
            f"worker process must stay alive and reach its engine while the job runs: {reason}; "
            "one of the two may have run out of memory or was killed; the stream is intact; run it "
            "again, with fewer workers or a smaller --advance-bytes if it repeats"
        ) from error
    finally:
        left.set()
        signal.signal(signal.SIGUSR1, handler)
        threading.excepthook = previous
