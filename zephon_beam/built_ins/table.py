"""From the name and the `with` of a built-in transform to the transform."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from zephon_beam.built_ins.base import BuiltIn
from zephon_beam.built_ins.deduplicate import Deduplicate
from zephon_beam.built_ins.fill_in_the_middle import FillInTheMiddle
from zephon_beam.built_ins.filter_length import FilterLength
from zephon_beam.built_ins.normalize import Normalize
from zephon_beam.checks import nearest
from zephon_beam.errors import RecipeError

BUILT_INS: dict[str, Any] = {
    "normalize": Normalize,
    "filter_length": FilterLength,
    "fill_in_the_middle": FillInTheMiddle,
    "deduplicate": Deduplicate,
}
"""By the name that a recipe calls."""


def make_built_in(name: str, options: Mapping[str, Any]) -> BuiltIn:
    """Build a built-in transform.

    Args:
        name: one of `BUILT_INS`.
        options: the recipe's `with`.

    Raises:
        RecipeError: an option is unknown or wrong; the message starts with its name.
    """
    kind = BUILT_INS[name]
    known = [field.name for field in fields(kind)]
    for option in options:
        if option not in known:
            hint = nearest(option, known)
            listed = f"the options are {', '.join(known)}" if known else "there are no options"
            repair = f"did you mean {hint!r}?" if hint else listed
            raise RecipeError(f"{option} must be an option of {name}, got an unknown one; {repair}")
    made: BuiltIn = kind(**options)
    return made
