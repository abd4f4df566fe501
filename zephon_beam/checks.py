"""Small checks for recipes and arguments, so that every message has one wording."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from zephon_beam.errors import RecipeError


def require(condition: bool, field: str, rule: str, value: object, repair: str) -> None:
    """Raise a `RecipeError` in the project's wording unless the condition holds."""
    if not condition:
        raise RecipeError(f"{field} must be {rule}, got {value!r}; {repair}")


def require_int(field: str, value: Any, minimum: int, repair: str, maximum: int = 2**62) -> None:
    """Require an integer (never a bool) in [minimum, maximum]."""
    rule = f"an integer of at least {minimum}"
    if maximum < 2**62:
        rule = f"an integer from {minimum} to {maximum}"
    valid = isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum
    require(valid, field, rule, value, repair)


def require_choice(field: str, value: Any, choices: Iterable[str], repair: str = "") -> None:
    """Require one of a few words; name the nearest one when it is misspelt."""
    names = list(choices)
    hint = nearest(value, names)
    require(
        isinstance(value, str) and value in names,
        field,
        f"one of {', '.join(names)}",
        value,
        repair or (f"did you mean {hint!r}?" if hint else "choose one of these"),
    )


def require_bool(field: str, value: Any) -> None:
    """Require true or false, never a text or a number that looks like one."""
    require(isinstance(value, bool), field, "true or false", value, "write true or false")


def require_text(field: str, value: Any, repair: str) -> None:
    """Require a non-empty text."""
    require(isinstance(value, str) and bool(value), field, "a non-empty text", value, repair)


def nearest(value: object, names: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the name that is spelt most like the value, or None when none is close.

    Args:
        value: what was written.
        names: what could have been meant.
        cutoff: similarity from which a name is close, 0 to 1; more where there are many names.
    """
    matches = get_close_matches(str(value), list(names), n=1, cutoff=cutoff)
    return matches[0] if matches else None
