"""Runners: how an advance's graph is handed to an engine."""

import sys

from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    StandardOptions,
)
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

_WORKER = "import sys; sys.path[:1] = []; from pipelines.worker import main; main()"


def make_runner(options: PipelineOptions) -> PipelineRunner | str:
    """Return the runner that the options name.

    Worker processes of the in-process engine are started by our own entry point: the working
    directory is not on their path, and they end when their parent does.
    """
    direct = options.view_as(DirectOptions)
    runner = options.view_as(StandardOptions).runner
    if runner != "FnApiRunner" or direct.direct_running_mode != "multi_processing":
        return str(runner)
    direct.direct_running_mode = "in_memory"
    command = f"exec '{sys.executable}' -c '{_WORKER}'"
    environment = SubprocessSDKEnvironment.from_command_string(command_string=command)
    return FnApiRunner(default_environment=environment)
