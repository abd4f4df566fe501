"""Entry points of worker processes: those of the in-process engine, and those of clusters."""

import argparse
import ctypes
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
from typing import Any

_PR_SET_PDEATHSIG = 1
_LOOK_SECS = 1.0


def main() -> None:
    """Run Beam's worker, without the working directory on its path, and die with the parent.

    Whoever starts this has put the folder of our packages in front of the path.
    """
    _die_with_parent()
    # Ctrl-C reaches every process of the terminal; it is the parent's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _work()


def serve() -> None:
    """Run as the program `zephon-beam-worker`: a worker that an engine's process starts.

    Engines start it for `--environment_type=PROCESS` with the arguments of Beam's container
    contract; what the job needs is asked for at `--provision_endpoint`. The packages are those that
    this Python has, and behind them the wheels that the job stages.
    """
    parser = argparse.ArgumentParser(prog="zephon-beam-worker", description=serve.__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--provision_endpoint", required=True)
    parser.add_argument("--logging_endpoint", default="")
    parser.add_argument("--control_endpoint", default="")
    args, _ = parser.parse_known_args()
    # The thread of the engine that started this may end before the engine does, so that the
    # kernel cannot be asked to watch the parent.
    threading.Thread(target=_end_without, args=(os.getppid(),), daemon=True).start()
    info = _job_info(args)
    os.environ.update(_provisions(args, info))
    from pipelines.staged_wheels import add_staged_wheels

    sys.path[:] = [entry for entry in sys.path if entry]
    add_staged_wheels(info, args.id)
    _work()


def _job_info(args: argparse.Namespace) -> Any:
    """Ask the engine about the job."""
    import grpc
    from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc
    from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor

    with grpc.insecure_channel(args.provision_endpoint) as channel:
        named = grpc.intercept_channel(channel, WorkerIdInterceptor(args.id))
        stub = beam_provision_api_pb2_grpc.ProvisionServiceStub(named)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        return stub.GetProvisionInfo(request, wait_for_ready=True, timeout=60).info


def _provisions(args: argparse.Namespace, info: Any) -> dict[str, str]:
    """Return what Beam's worker looks for in its environment."""
    from apache_beam.portability.api import endpoints_pb2
    from google.protobuf import json_format, text_format

    def describe(found: str, given: str) -> str:
        descriptor = endpoints_pb2.ApiServiceDescriptor(url=found or given)
        return str(text_format.MessageToString(descriptor))

    return {
        "WORKER_ID": args.id,
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "SEMI_PERSISTENT_DIRECTORY": tempfile.gettempdir(),
        "LOGGING_API_SERVICE_DESCRIPTOR": describe(
            info.logging_endpoint.url, args.logging_endpoint
        ),
        "CONTROL_API_SERVICE_DESCRIPTOR": describe(
            info.control_endpoint.url, args.control_endpoint
        ),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }


def _work() -> None:
    sys.path[:] = [entry for entry in sys.path if entry]
    from pipelines.failures import printed_once
    from pipelines.garbage import rare_collections, return_large_blocks
    from pipelines.whole_bundles import undivided_states

    return_large_blocks()
    with printed_once(), rare_collections(), undivided_states():
        runpy.run_module("apache_beam.runners.worker.sdk_worker_main", run_name="__main__")


def _end_without(parent: int) -> None:
    """End this process when the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECS)
    os._exit(1)


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, also by SIGKILL (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
