"""From a failed job back to the error that a user can act on.

Runners wrap what a worker raised: with a step name appended, or as the text of a traceback from
another process. Our errors are one line each, so they can be found in both. Where there is no
engine to run a job, Beam says why, in as many ways as there are engines.
"""

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.process_wide import process_wide
from zephon_beam import errors
from zephon_beam.errors import RecipeError, ZephonBeamError

_LINE = re.compile(r"(?:zephon_beam\.errors\.)(\w+): (.+)")
OURS = "zephon_beam.errors."
"""In what is told of an error of ours, which is raised anyway."""
FORGOTTEN = "self.bundle_processor_cache.release(instruction_id)"
"""In the traceback of a worker that has ended a bundle of a job that was cancelled meanwhile."""
_STARTS_ENGINE = "create_job_service"
"""The function of Beam's portable runners in which an engine is looked for, started or reached."""
_LACKS_OPTIONS = "Pipeline has validations errors"
_STEP = re.compile(r"\s*\[while running [^\]]*\]\s*$")


def find_cause(error: BaseException) -> ZephonBeamError | None:
    """Return the error that made a job fail and that a user can act on, or None.

    It is ours, or says why there was no engine to run the job.
    """
    chained: BaseException | None = error
    while chained is not None:
        if isinstance(chained, ZephonBeamError):
            return type(chained)(_STEP.sub("", str(chained)))
        chained = chained.__cause__
    found = _LINE.findall(str(error))
    for name, message in reversed(found):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, ZephonBeamError):
            return kind(_STEP.sub("", message.split("\\n")[0]))
    return _find_missing_engine(error)


def _find_missing_engine(error: BaseException) -> ZephonBeamError | None:
    """Return what keeps Beam from starting or reaching an engine, or None if that is not it."""
    text = " ".join(str(error).split()).rstrip(".")
    frames = traceback.walk_tb(error.__traceback__)
    if any(frame.f_code.co_name == _STARTS_ENGINE for frame, _ in frames):
        return ZephonBeamError(
            f"--runner must name an engine that can be started or reached, Beam says: {text}; no "
            "job was started; correct its options, or install it: `zephon-beam doctor` says what "
            "is here, docs/engines.md what each engine needs"
        )
    if text.startswith(_LACKS_OPTIONS):
        return RecipeError(
            f"--runner must come with the options that it needs, Beam says: {text}; no job was "
            "started; add them, as in docs/engines.md"
        )
    return None


@process_wide
@contextmanager
def printed_once() -> Iterator[None]:
    """Keep Beam's worker from printing the traceback of an error of ours, which is raised anyway.

    And of a bundle that it forgot when its job was cancelled. It prints to standard error besides
    logging, so only its own `print` can be told not to.
    """
    from apache_beam.runners.worker import sdk_worker

    vars(sdk_worker)["print"] = _print_unless_ours
    try:
        yield
    finally:
        del vars(sdk_worker)["print"]


def _print_unless_ours(text: object = "", **_options: Any) -> None:
    if OURS not in str(text) and FORGOTTEN not in str(text):
        sys.stderr.write(f"{text}\n")
