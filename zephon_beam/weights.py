"""Weights and fractions as users write them: exact decimals, never floats."""

from decimal import Decimal, InvalidOperation
from typing import Any

from zephon_beam.checks import require
from zephon_beam.errors import RecipeError

_MAX_WEIGHT_DIGITS = 12


def parse_weight(field_name: str, value: Any) -> Decimal:
    """Read a mixture weight exactly, as a decimal number.

    Raises:
        RecipeError: not a finite decimal ≥ 0 with at most 12 significant digits.
    """
    repair = "write a plain decimal such as 0.7; weights are relative and need not sum to 1"
    rule = f"a decimal of at least 0 with at most {_MAX_WEIGHT_DIGITS} significant digits"
    require(not isinstance(value, bool), field_name, rule, value, repair)
    try:
        weight = Decimal(repr(value) if isinstance(value, float) else str(value))
    except InvalidOperation:
        raise RecipeError(f"{field_name} must be {rule}, got {value!r}; {repair}") from None
    require(weight.is_finite() and weight >= 0, field_name, rule, value, repair)
    # By hand: `normalize` would first round to the context's precision.
    digits = "".join(map(str, weight.as_tuple().digits)).strip("0")
    plain = weight == 0 or -30 <= weight.adjusted() <= 30
    require(plain and len(digits) <= _MAX_WEIGHT_DIGITS, field_name, rule, value, repair)
    return weight


def canonical_weight(weight: Decimal) -> str:
    """Return one spelling for equal weights: 0.70 and 0.7 are the same recipe."""
    return format(weight.normalize(), "f") if weight else "0"
