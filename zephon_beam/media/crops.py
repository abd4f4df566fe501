"""Random crops: which stretch of a picture is kept, in integers alone.

    picture 1280 x 720, area from 0.5, aspect up to 4/3
    share 0.6, change 1.2    →    1086 x 509, anywhere within

The share of the area and the change of the sides' ratio are drawn evenly, the latter to either
side; so are the places of the crop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

CROP_DRAWS = 5
"""Numbers that a crop is made of."""

_BITS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Crop:
    """A stretch of an upright picture, in pixels of the whole one."""

    top: int
    left: int
    height: int
    width: int


def choose_crop(
    height: int, width: int, *, area: Fraction, aspect: Fraction, draws: Sequence[int]
) -> Crop:
    """Choose what is kept of a picture.

    Args:
        height: of the upright picture with square pixels.
        width: likewise.
        area: least share of the picture's area, above 0 and at most 1.
        aspect: most by which width to height may change, at least 1; a crop of a large share can
            change less, for it must fit.
        draws: `CROP_DRAWS` integers in [0, 2^64).

    Returns:
        A crop within the picture, of at least one pixel.

    Determinism: integers alone, so equal on every machine.

    Source: `RandomResizedCrop` of torchvision, without its repeated trials and its logarithm.
    """
    share = area + (1 - area) * Fraction(draws[0], 1 << _BITS)
    most = min(aspect, 1 / share)
    change = 1 + (most - 1) * Fraction(draws[1], 1 << _BITS)
    if draws[2] % 2:
        change = 1 / change
    tall = max(1, _root(height * height * share / change))
    wide = max(1, _root(width * width * share * change))
    return Crop(
        top=draws[3] * (height - tall + 1) >> _BITS,
        left=draws[4] * (width - wide + 1) >> _BITS,
        height=tall,
        width=wide,
    )


def _root(value: Fraction) -> int:
    """Return the largest integer whose square is at most a value."""
    return isqrt(value.numerator // value.denominator)
