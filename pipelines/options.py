"""Beam options: read from a list, checked, and never from `sys.argv`."""

import argparse
import logging
from collections.abc import Sequence
from typing import NoReturn

from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.runners.runner import create_runner

from pipelines.engine_defaults import set_engine_defaults
from zephon_beam.checks import nearest
from zephon_beam.errors import RecipeError

IN_PROCESS = "FnApiRunner"
"""Beam's engine that needs no other program; `direct` is its name for users."""

_LOGGER = logging.getLogger(__name__)
_RUNNERS = (
    "DataflowRunner",
    "DirectRunner",
    "FlinkRunner",
    "FnApiRunner",
    "PortableRunner",
    "PrismRunner",
    "SparkRunner",
)
_HAVE_OWN_FLAGS = ("FlinkRunner", "PortableRunner", "SparkRunner")
"""Runners whose job server has flags that Beam's Python SDK does not know."""
_UNFIT = {
    "streaming": (
        "an advance is a bounded job, and engines that run one as a streaming job may end it "
        "without any output",
        "leave it out",
    ),
    "no_wait_until_finish": ("an advance starts from what the one before it left", "leave it out"),
    "output_executable_path": (
        "a stored job would repeat one advance",
        "leave it out, and name a cluster with e.g. --flink_master",
    ),
}
"""Options of Beam that no run can use: {name: (why, what to do)}."""
_FLAG_SIMILARITY = 0.75
"""Beam has hundreds of flags, so that some are a little like anything."""


def parse_beam_options(flags: Sequence[str]) -> PipelineOptions:
    """Turn command line flags into Beam options, refusing those that Beam does not know.

    The default runner is the in-process engine, named so that no other is tried or downloaded.
    Job servers of portable runners may have flags of their own: those pass through, named in a
    warning. What a runner needs for a sane run is set unless a flag sets it.

    Raises:
        RecipeError: a flag is unknown, and the message names the nearest one; or it does not fit.
    """
    flags = list(flags)
    parser = _beam_parser()
    _, unknown = parser.parse_known_args(flags)
    options = PipelineOptions(flags)
    standard = options.view_as(StandardOptions)
    standard.runner = _full_name(standard.runner)
    if unknown:
        _refuse_or_warn(unknown, parser, options)
    _refuse_unknown_runner(standard.runner)
    _refuse_unfit(options)
    _refuse_template(options)
    set_engine_defaults(options, {flag.partition("=")[0].lstrip("-") for flag in flags})
    return options


def leaves_job(options: PipelineOptions) -> bool:
    """Say whether the job of an advance is stored for an engine to run, instead of run."""
    return options.view_as(GoogleCloudOptions).template_location is not None


def is_parallel(options: PipelineOptions) -> bool:
    """Say whether several workers may run a stage, so that a shuffle before packing pays."""
    if options.view_as(StandardOptions).runner != IN_PROCESS:
        return True
    return options.view_as(DirectOptions).direct_num_workers != 1


def _full_name(runner: str | None) -> str:
    """Return Beam's spelling of a runner that a user may have shortened, e.g. `flink`."""
    if runner in (None, "direct"):
        return IN_PROCESS
    asked = str(runner).lower()
    known = {name.lower(): name for name in _RUNNERS}
    return known.get(asked) or known.get(f"{asked}runner") or str(runner)


def _refuse_or_warn(
    unknown: Sequence[str], parser: argparse.ArgumentParser, options: PipelineOptions
) -> None:
    """Refuse flags that nobody takes, and name those that only a job server may know."""
    names = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    name = names[0] if names else unknown[0]
    known = [text for action in parser._actions for text in action.option_strings]
    hint = nearest(name, known, _FLAG_SIMILARITY)
    if names and _has_own_flags(options):
        repair = f" ({hint} is one of Beam)" if hint else ""
        _LOGGER.warning(
            "%s: no option of zephon-beam or of Apache Beam's Python SDK%s; passed to the job "
            "server, which ignores what it does not know either",
            ", ".join(names),
            repair,
        )
        return
    raise RecipeError(
        f"flag must be one of zephon-beam or of Apache Beam, got {unknown[0]!r}; it would be "
        f"ignored; {f'did you mean {hint}?' if hint else 'see --help'}"
    )


def _has_own_flags(options: PipelineOptions) -> bool:
    embedded = options.view_as(PortableOptions).job_endpoint == "embed"
    return options.view_as(StandardOptions).runner in _HAVE_OWN_FLAGS and not embedded


def _refuse_unknown_runner(name: str) -> None:
    try:
        create_runner(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise RecipeError(
            f"--runner must be direct or a runner of Apache Beam, got {name!r}: {error}; use e.g. "
            "direct, FlinkRunner or DataflowRunner"
        ) from error


def _refuse_unfit(options: PipelineOptions) -> None:
    every = options.get_all_options(retain_unknown_options=True)
    for name, (reason, repair) in _UNFIT.items():
        if every.get(name):
            raise RecipeError(
                f"--{name} must not be given to a run, got {every[name]!r}; {reason}; {repair}"
            )


def _refuse_template(options: PipelineOptions) -> None:
    runner = options.view_as(StandardOptions).runner
    if leaves_job(options) and runner != "DataflowRunner":
        raise RecipeError(
            f"--template_location must come with --runner DataflowRunner, got {runner!r}; no other "
            "engine takes a job that is stored; leave it out"
        )


def _beam_parser() -> argparse.ArgumentParser:
    """Return the parser that holds every option class that Beam knows; it raises, never exits."""
    found: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=found.append)
    parser = found[0]
    parser.error = _refuse  # type: ignore[method-assign]
    return parser


def _refuse(message: str) -> NoReturn:
    raise RecipeError(f"Beam option: {message}; nothing was started; see --help")
