"""Submitting to Dataflow without a cloud: the flags, and what was staged."""

from typing import Any

import pytest
from apache_beam.portability.api import beam_runner_api_pb2

from tests.pipelines.recording_cloud import RecordingCloud

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
