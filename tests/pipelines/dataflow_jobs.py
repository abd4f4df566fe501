"""Submitting to Dataflow without a cloud: the flags, and what was staged."""

from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from tests.pipelines.recording_cloud import RecordingCloud

BUCKET = "gs://bucket/"
IMAGE = "europe-docker.pkg.dev/p/r/zephon-beam:1"


def enter_cloud(cloud: RecordingCloud, monkeypatch: pytest.MonkeyPatch) -> RecordingCloud:
    """Let the Dataflow runner of this process talk to a server of ours, and to nobody else."""
    for name, value in cloud_environment(cloud).items():
        monkeypatch.setenv(name, value)
    return cloud


def cloud_environment(cloud: RecordingCloud) -> dict[str, str]:
    """Return what a process needs to find the server instead of Google's, and no credentials."""
    return {
        "STORAGE_EMULATOR_HOST": cloud.address,
        "NO_GCE_CHECK": "true",
        "GOOGLE_CLOUD_PROJECT": "p",
    }


def cloud_flags(cloud: RecordingCloud) -> list[str]:
    """Return what every submission needs."""
    return [
        *("--runner=DataflowRunner", "--no_auth", f"--dataflow_endpoint={cloud.address}"),
        *("--project=p", "--region=r", "--job_name=advance"),
        *("--temp_location=gs://bucket/tmp", "--staging_location=gs://bucket/staging"),
    ]


def staged_graph(cloud: RecordingCloud) -> Any:
    """Return the one graph that was staged."""
    return beam_runner_api_pb2.Pipeline.FromString(cloud.staged("pipeline.pb"))


def run_job(cloud: RecordingCloud, job: dict[str, Any], environment: str, payload: str) -> None:
    """Run the graph that a job names to its end, as a service would.

    Args:
        cloud: where it was staged.
        job: what was submitted, or stored as a template.
        environment: kind of the workers, in place of the container that the job names.
        payload: how they are started.
    """
    place = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
    graph = beam_runner_api_pb2.Pipeline.FromString(cloud.objects[place.removeprefix(BUCKET)])
    for found in graph.components.environments.values():
        found.urn = environment
        found.payload = payload.encode()
        del found.dependencies[:]
    FnApiRunner().run_via_runner_api(graph, PipelineOptions([])).wait_until_finish()
