"""Prism servers: one for each endless job, and one for all other jobs of a process.

They have a session of their own, so that what ends or interrupts a whole group of processes leaves
it to the driver to cancel their jobs; and they die with the driver, however that dies.
"""

import atexit
import logging
import subprocess
import sys
import threading
import time
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.job_server import StopOnExitJobServer
from apache_beam.runners.portability.prism_runner import PrismJobServer, PrismRunner

from pipelines.engines.processes import bound_to_parent

_ENDS_SECS = 2.0
"""In which a server ends that is told to, unless it is stopped or busy."""
_LAST_WORDS_SECS = 0.1
"""In which Beam's thread reads what a server that has ended said last."""


_OWN_SESSION = "import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])"


class BoundPrismServer(PrismJobServer):
    """Beam's server for Prism, in a session of its own and bound to the thread that starts it."""

    def subprocess_cmd_and_endpoint(self) -> tuple[list[Any], str]:
        """Return the command that starts it, and where it will listen."""
        command, endpoint = super().subprocess_cmd_and_endpoint()
        return [sys.executable, "-S", "-c", _OWN_SESSION, *bound_to_parent(command)], endpoint


class PrismRunnerWithBoundServer(PrismRunner):
    """Beam's runner for Prism, whose one server for all jobs dies with the process.

    One that a thread has started outlives it, as jobs of other threads may run on it.
    """

    def default_job_server(self, options: PipelineOptions) -> Any:
        """Return the server of this process, started or not."""
        is_main = threading.current_thread() is threading.main_thread()
        kind = BoundPrismServer if is_main else PrismJobServer
        return PrismRunner.shared_handle.acquire(lambda: StopOnExitJobServer(kind(options)))


class PrismRunnerWithOwnServer(PrismRunner):
    """Beam's runner for Prism, which shares one server among all jobs of a process.

    An endless job has its own: that can be ended, with whatever it does not do any more, without
    a harm to other jobs, and nothing of a job that was cancelled reaches the next one.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        super().__init__()
        self._server: PrismJobServer | None = None

    def default_job_server(self, options: PipelineOptions) -> Any:
        """Return a server that is yet to be started; not called if the options name one."""
        self._server = BoundPrismServer(options)
        atexit.register(self.stop_server)
        return self._server

    @property
    def has_ended(self) -> bool:
        """Whether there was a server of its own, and its process has ended."""
        process = _process_of(self._server)
        return process is not None and process.poll() is not None

    def end_process(self) -> None:
        """End the server's process, if there is one, by force if need be.

        From any thread: whoever waits for it meets an error, or starts it once more.
        """
        process = _process_of(self._server)
        if process is not None:
            _end(process)

    def stop_server(self) -> None:
        """End the server, if there is one; from the thread that has run the job."""
        self.end_process()
        server, self._server = self._server, None
        if server is None:
            return
        atexit.unregister(self.stop_server)
        if server._server is not None:
            server.stop()
        # Beam hangs one more on it with each server.
        if server._log_filter is not None:
            logging.getLogger(PrismJobServer.__name__).removeFilter(server._log_filter)


def _process_of(server: PrismJobServer | None) -> "subprocess.Popen[bytes] | None":
    """Return the process of a server, None if there is none or it was never started."""
    found = None if server is None else server._server
    if found is None:
        return None
    entry = found._cache._cache.get((tuple(found._cmd), found._port, found._logger))
    return None if entry is None else entry.obj[0]


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_ENDS_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    time.sleep(_LAST_WORDS_SECS)
    if process.stdout is not None:
        process.stdout.close()
