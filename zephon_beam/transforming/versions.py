"""What stands for a called function in the fingerprint: its source, or the recipe's `version`."""

import inspect
from collections.abc import Callable
from hashlib import blake2b
from textwrap import dedent
from types import CodeType, FunctionType, MethodType
from typing import Any

from zephon_beam.errors import RecipeError

_REPAIR = 'give the transform a `version`, e.g. version: "1", and change it with the code'


def function_version(call: str, function: Callable[..., Any], version: str | None) -> str:
    """Return `version:…` if the recipe gives one, else `source:` and a digest of the source.

    What the function itself calls is not looked at.

    Raises:
        RecipeError: there is no source to be had, or the process runs an older one.

    Determinism: depends on the source text of the function alone, not on where it lies.
    """
    if version is not None:
        return f"version:{version}"
    source = _source(call, function)
    return "source:" + blake2b(source.encode(), digest_size=16).hexdigest()


def _source(call: str, function: Callable[..., Any]) -> str:
    inner = inspect.unwrap(function)
    is_plain = isinstance(inner, (FunctionType, MethodType)) and "<" not in inner.__qualname__
    try:
        if not is_plain:
            raise TypeError("it is no function that is defined by `def` in a module")
        lines, _ = inspect.findsource(inner)
        source = dedent(inspect.getsource(inner))
    except (OSError, TypeError) as error:
        raise RecipeError(
            f"version must be given for {call!r}: its source, which would stand for it in the "
            f"fingerprint, cannot be had ({error}); {_REPAIR}"
        ) from error
    if not _holds("".join(lines), inner.__code__):
        raise RecipeError(
            f"call must name a function that is as its file says, got {call!r}, which this process "
            "imported before the file was changed; the stream would be said to be made by code "
            "that did not run; start a new process"
        )
    return source


def _holds(source: str, code: CodeType) -> bool:
    """Say whether a module's source, compiled, has this very code in it."""
    try:
        waiting = [compile(source, code.co_filename, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError):
        return False
    while waiting:
        found = waiting.pop()
        if found == code:
            return True
        waiting += [constant for constant in found.co_consts if isinstance(constant, CodeType)]
    return False
