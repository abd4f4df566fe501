"""What each runner needs for a sane run, set where no flag sets it. docs/engines.md lists it."""

import json
import shutil
import sys
from collections.abc import Set
from pathlib import Path
from urllib.parse import urlsplit

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    PrismRunnerOptions,
    SetupOptions,
    SparkRunnerOptions,
    StandardOptions,
    WorkerOptions,
)

from pipelines.engines.software import prism_binary
from pipelines.staged_wheels import WHEEL
from zephon_beam.errors import RecipeError

STATE_CACHE_MB = 256
"""Beam's workers cache no state by default: each look at a lane would be a call to the runner."""
ENVIRONMENT_CACHE_MILLIS = 30_000
"""Flink stops a worker with the last stage that used it; task managers that share a pool of
workers may then stop each other's."""
JOB_SECS = 30 * 24 * 3600
"""Beam ends the stream of a job's states after `--job_server_timeout`, and the job with it."""
WORKER_COMMAND = "zephon-beam-worker"
"""Installed beside `zephon-beam`; starts a worker for `--environment_type=PROCESS`."""

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_PORTABLE = ("FlinkRunner", "PortableRunner", "PrismRunner", "SparkRunner")
DIRECT_RUNNERS = ("DirectRunner", "FnApiRunner")
"""Those that run in this process, or in processes that it starts."""


def set_engine_defaults(options: PipelineOptions, given: Set[str]) -> None:
    """Set what the chosen runner needs, except what flags of the names `given` have set."""
    standard = options.view_as(StandardOptions)
    runner = standard.runner
    if options.view_as(GoogleCloudOptions).template_location is not None:
        # There is no job to wait for yet.
        standard.no_wait_until_finish = True
    if "max_cache_memory_usage_mb" not in given:
        options.view_as(WorkerOptions).max_cache_memory_usage_mb = STATE_CACHE_MB
    portable = options.view_as(PortableOptions)
    if not given & {"job_server_timeout", "job-server-timeout"}:
        portable.job_server_timeout = JOB_SECS
    if runner not in _PORTABLE:
        return
    if "environment_type" not in given and _is_local(options):
        portable.environment_type = "LOOPBACK"
    if "environment_cache_millis" not in given and runner != "PrismRunner":
        portable.environment_cache_millis = ENVIRONMENT_CACHE_MILLIS
    if portable.environment_type == "PROCESS" and not (
        given & {"environment_config", "environment_option", "environment_options"}
    ):
        portable.environment_config = json.dumps({"command": worker_command()})
        _refuse_unused_packages(options)
    if runner == "PrismRunner":
        _set_prism_defaults(options, given)


def worker_command() -> str:
    """Return the path of the program that starts a worker.

    Raises:
        RecipeError: it is not installed.
    """
    beside = Path(sys.executable).parent / WORKER_COMMAND
    found = str(beside) if beside.is_file() else shutil.which(WORKER_COMMAND)
    if found is None:
        raise RecipeError(
            f"--environment_type=PROCESS must find the program {WORKER_COMMAND}, found none beside "
            f"{sys.executable}; no worker could be started; install zephon-beam with pip, or name "
            'a program with --environment_config=\'{"command": "..."}\''
        )
    return found


def _refuse_unused_packages(options: PipelineOptions) -> None:
    """Refuse what Beam's containers would install and our program for workers does not.

    Raises:
        RecipeError: with what to give instead.
    """
    setup = options.view_as(SetupOptions)
    sources = [name for name in setup.extra_packages or () if not name.endswith(WHEEL)]
    given = {
        "--setup_file": setup.setup_file,
        "--requirements_file": setup.requirements_file,
        "--extra_package": sources[0] if sources else None,
    }
    for flag, value in given.items():
        if value is not None:
            raise RecipeError(
                f"{flag} must be left out with --environment_type=PROCESS, got {value!r}; "
                f"{WORKER_COMMAND} builds and installs nothing, so that workers would not have it; "
                "install it beside zephon-beam on each machine, or stage wheels (`python -m pip "
                "wheel --no-deps FOLDER`) with --extra_package FILE.whl"
            )


def is_on_this_machine(options: PipelineOptions) -> bool:
    """Say whether an engine and its workers run on the machine of this process."""
    runner = options.view_as(StandardOptions).runner
    return runner in DIRECT_RUNNERS or (runner in _PORTABLE and _is_local(options))


def _is_local(options: PipelineOptions) -> bool:
    """Say whether a portable engine runs here, so that this process can be its worker."""
    endpoint = options.view_as(PortableOptions).job_endpoint
    runner = options.view_as(StandardOptions).runner
    if runner == "FlinkRunner":
        master = options.view_as(FlinkRunnerOptions).flink_master
        if not master.startswith("["):
            return _is_local_address(master)
    if runner == "SparkRunner" and not endpoint:
        return options.view_as(SparkRunnerOptions).spark_master_url.startswith("local")
    return endpoint in (None, "embed") or _is_local_address(endpoint)


def _is_local_address(address: str) -> bool:
    text = address if "//" in address else f"//{address}"
    return (urlsplit(text).hostname or "") in _LOCAL_HOSTS


def _set_prism_defaults(options: PipelineOptions, given: Set[str]) -> None:
    """Use the Prism that `selftest --install` built; else Beam looks for one on the internet."""
    prism = options.view_as(PrismRunnerOptions)
    if "prism_location" not in given and prism_binary().is_file():
        prism.prism_location = str(prism_binary())
    if "prism_log_level" not in given:
        prism.prism_log_level = "warn"
