"""From a failed job back to the error that a user can act on.

Runners wrap what a worker raised: with a step name appended, or as the text of a traceback from
another process. Our errors are one line each, so they can be found in both.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.process_wide import process_wide
from zephon_beam import errors
from zephon_beam.errors import ZephonBeamError

_LINE = re.compile(r"(?:zephon_beam\.errors\.)(\w+): (.+)")
_OURS = "zephon_beam.errors."
_FORGOTTEN = "self.bundle_processor_cache.release(instruction_id)"
"""In the traceback of a worker that has ended a bundle of a job that was cancelled meanwhile."""
_STEP = re.compile(r"\s*\[while running [^\]]*\]\s*$")


def find_cause(error: BaseException) -> ZephonBeamError | None:
    """Return the error of ours that made a job fail, or None if it was none of ours."""
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
    if _OURS not in str(text) and _FORGOTTEN not in str(text):
        sys.stderr.write(f"{text}\n")
