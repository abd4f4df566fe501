"""Wheels that a job stages (`--extra_package`), for workers that no container of Beam's starts.

Beam's containers install what a job stages. A worker that runs in an environment of its user's must
not change that, so wheels are unpacked into a folder of their own, named by their content, and put
at the end of the import path: they can add modules and never replace one.
"""

import hashlib
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from pipelines.engines.software import cache_folder

WHEEL = ".whl"
_DIGEST_CHARACTERS = 32
_FETCH_SECS = 300


def add_staged_wheels(info: Any, worker_id: str) -> None:
    """Fetch the wheels of a job, and make what is in them importable in this process.

    Args:
        info: what the engine has told of the job: `ProvisionInfo` of Beam's container contract.
        worker_id: of this worker.
    """
    for wheel in _fetch(info, worker_id):
        sys.path.append(str(unpack_wheel(wheel, cache_folder() / "packages")))


def unpack_wheel(content: bytes, parent: Path) -> Path:
    """Return the folder that holds what is in a wheel, unpacking it if it is new.

    Workers that do so at the same time give each other no half of it.
    """
    folder = parent / hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]
    if folder.is_dir():
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=parent) as temporary:
        complete = Path(temporary) / "complete"
        with zipfile.ZipFile(BytesIO(content)) as archive:
            archive.extractall(complete)
        with suppress(OSError):  # another worker was faster
            complete.rename(folder)
    return folder


def _fetch(info: Any, worker_id: str) -> Iterator[bytes]:
    """Yield the content of each wheel that the engine keeps for the job, in the order given."""
    import grpc
    from apache_beam.portability.api import beam_artifact_api_pb2 as messages
    from apache_beam.portability.api import beam_artifact_api_pb2_grpc
    from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor

    if not any(name.endswith(WHEEL) for name in _names(info.dependencies)):
        return
    with grpc.insecure_channel(info.artifact_endpoint.url) as channel:
        named = grpc.intercept_channel(channel, WorkerIdInterceptor(worker_id))
        stub = beam_artifact_api_pb2_grpc.ArtifactRetrievalServiceStub(named)
        request = messages.ResolveArtifactsRequest(artifacts=info.dependencies)
        found = stub.ResolveArtifacts(request, timeout=_FETCH_SECS).replacements
        for artifact, name in zip(found, _names(found), strict=True):
            if name.endswith(WHEEL):
                wanted = messages.GetArtifactRequest(artifact=artifact)
                parts = stub.GetArtifact(wanted, timeout=_FETCH_SECS)
                yield b"".join(part.data for part in parts)


def _names(artifacts: Iterable[Any]) -> list[str]:
    """Return what each artifact is called where it is staged; nothing for those without a name."""
    from apache_beam.portability.api import beam_runner_api_pb2

    return [
        beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(
            artifact.role_payload
        ).staged_name
        if artifact.role_urn == "beam:artifact:role:staging_to:v1"
        else ""
        for artifact in artifacts
    ]
