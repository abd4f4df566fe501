"""Beam options: read from a list, checked, and never from `sys.argv`."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.runners.runner import create_runner

from zephon_beam.checks import nearest
from zephon_beam.errors import RecipeError

_PORTABLE_RUNNERS = ("PortableRunner", "FlinkRunner", "SparkRunner", "PrismRunner")
_STATE_CACHE_MB = 256
_FLAG_SIMILARITY = 0.75
"""Beam has hundreds of flags, so that some are a little like anything."""


def parse_beam_options(flags: Sequence[str]) -> PipelineOptions:
    """Turn command line flags into Beam options, refusing those that Beam does not know.

    The default runner is the in-process engine, named so that no other is tried or downloaded.
    Portable runners get their own flags through, since their job server may know them.

    Raises:
        RecipeError: a flag is unknown; the message names the nearest one.
    """
    flags = list(flags)
    parser = _beam_parser()
    _, unknown = parser.parse_known_args(flags)
    options = PipelineOptions(flags)
    standard = options.view_as(StandardOptions)
    if standard.runner in (None, "direct"):
        standard.runner = "FnApiRunner"
    if unknown and standard.runner not in _PORTABLE_RUNNERS:
        known = [text for action in parser._actions for text in action.option_strings]
        name = unknown[0].split("=", 1)[0]
        hint = nearest(name, known, _FLAG_SIMILARITY)
        raise RecipeError(
            f"flag must be one of zephon-beam or of Apache Beam, got {unknown[0]!r}; it would be "
            f"ignored; {f'did you mean {hint}?' if hint else 'see --help'}"
        )
    _refuse_unknown_runner(str(standard.runner))
    worker = options.view_as(WorkerOptions)
    if worker.max_cache_memory_usage_mb is None or worker.max_cache_memory_usage_mb == 0:
        worker.max_cache_memory_usage_mb = _STATE_CACHE_MB
    return options


def _refuse_unknown_runner(name: str) -> None:
    try:
        create_runner(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise RecipeError(
            f"--runner must be direct or a runner of Apache Beam, got {name!r}: {error}; use e.g. "
            "direct, FlinkRunner or DataflowRunner"
        ) from error


def is_parallel(options: PipelineOptions) -> bool:
    """Say whether several workers may run a stage, so that a shuffle before packing pays."""
    if options.view_as(StandardOptions).runner != "FnApiRunner":
        return True
    return options.view_as(DirectOptions).direct_num_workers != 1


def _beam_parser() -> argparse.ArgumentParser:
    """Return the parser that holds every option class that Beam knows; it raises, never exits."""
    found: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=found.append)
    parser = found[0]
    parser.error = _refuse  # type: ignore[method-assign]
    return parser


def _refuse(message: str) -> NoReturn:
    raise RecipeError(f"Beam option: {message}; nothing was started; see --help")
