"""Prism servers: one for each endless job."""

import atexit
import logging
import subprocess
import time
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.prism_runner import PrismJobServer, PrismRunner

_ENDS_SECS = 2.0
"""In which a server ends that is told to, unless it is stopped or busy."""
_LAST_WORDS_SECS = 0.1
"""In which Beam's thread reads what a server that has ended said last."""


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
        self._server = PrismJobServer(options)
        atexit.register(self.stop_server)
        return self._server

    @property
    def has_ended(self) -> bool:
        """Whether there was a server of its own, and its process has ended."""
        process = None if self._server is None else _process_of(self._server)
        return process is not None and process.poll() is not None

    def end_process(self) -> None:
        """End the server's process, if there is one, by force if need be.

        From any thread: whoever waits for it meets an error, or starts it once more.
        """
        process = None if self._server is None else _process_of(self._server)
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


def _process_of(server: PrismJobServer) -> "subprocess.Popen[bytes] | None":
    """Return the process of a server, None if it was never started."""
    found = server._server
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
