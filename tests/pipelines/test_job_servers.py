"""Job servers: one that does not answer is named, and one serves all jobs of a process."""

from typing import Any

import grpc
import pytest
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.utils.thread_pool_executor import UnboundedThreadPoolExecutor

from pipelines import job_servers
from pipelines.engines.processes import free_ports
from pipelines.job_servers import FlinkRunnerWithOneServer, refuse_silent_endpoint
from pipelines.options import parse_beam_options
from zephon_beam.errors import ZephonBeamError


def test_a_job_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beam would wait for it as long as for a job."""
    monkeypatch.setattr(job_servers, "_ANSWER_SECS", 0.5)
    endpoint = f"localhost:{free_ports(1)[0]}"
    with pytest.raises(ZephonBeamError, match=rf"--job_endpoint must .* got '{endpoint}'"):
        refuse_silent_endpoint(endpoint)


def test_a_job_server_that_answers_is_let_be() -> None:
    """Whatever it serves; the embedded one has no address."""
    server = grpc.server(UnboundedThreadPoolExecutor())
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        refuse_silent_endpoint(f"localhost:{port}")
        refuse_silent_endpoint("embed")
        refuse_silent_endpoint(None)
    finally:
        server.stop(None).wait()


def test_jobs_with_the_same_options_share_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a JVM that takes seconds to start; other options need another one."""
    monkeypatch.setattr(job_servers, "_servers", {})
    started: list[Any] = []

    def start(_self: Any, options: Any) -> object:
        started.append(options)
        return object()

    monkeypatch.setattr(FlinkRunner, "default_job_server", start)
    here = parse_beam_options(["--runner=flink", "--flink_master=localhost:1"])
    there = parse_beam_options(["--runner=flink", "--flink_master=localhost:2"])
    first = FlinkRunnerWithOneServer().default_job_server(here)
    assert FlinkRunnerWithOneServer().default_job_server(here) is first
    assert FlinkRunnerWithOneServer().default_job_server(there) is not first
    assert len(started) == 2
