"""Job servers: reached before anything is built, and started once for all jobs of a process."""

import threading
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.flink_runner import FlinkRunner

from zephon_beam.errors import ZephonBeamError

_ANSWER_SECS = 30.0
_servers: dict[str, Any] = {}
_starting = threading.Lock()


class FlinkRunnerWithOneServer(FlinkRunner):
    """Beam's runner for Flink, which would start a job server, a JVM, for each advance."""

    def default_job_server(self, options: PipelineOptions) -> Any:
        """Return the server that an earlier job with the same options started, or a new one."""
        key = str(sorted(options.get_all_options(drop_default=True).items(), key=str))
        with _starting:
            if key not in _servers:
                _servers[key] = super().default_job_server(options)
            return _servers[key]


def refuse_silent_endpoint(endpoint: str | None) -> None:
    """Make sure that a job server answers at an address.

    Beam would wait as long as it waits for a job.

    Raises:
        ZephonBeamError: it does not within half a minute.
    """
    if endpoint in (None, "embed"):
        return
    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_ANSWER_SECS)
        except grpc.FutureTimeoutError as error:
            raise ZephonBeamError(
                f"--job_endpoint must be the address of a Beam job server that answers, got "
                f"{endpoint!r}; nothing was started; start the server, or correct the address"
            ) from error
