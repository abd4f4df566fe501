"""Presets: how a family of models turns pictures into visual tokens, in integers alone.

    source 1280 x 720 ── resize ── 1008 x 560 ── patches of 14 ── 72 x 40 ── merged 2 x 2 ── 720

A preset fixes sizes and counts, not the pixels' normalization, which is the trainer's.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

from zephon_beam.errors import ZephonBeamError
from zephon_beam.media.crops import Crop

LARGEST_ASPECT = 200
"""Of the long side to the short one; what is longer is refused, as by Qwen2-VL."""
MOST_SCALED_PIXELS = 1 << 26
"""Of a picture that is scaled to take a crop out of it."""


class SizeError(ZephonBeamError, ValueError):
    """A picture has a shape that a preset gives no grid for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """The numbers of one family."""

    patch: int
    """Side of a patch, in pixels."""
    merge: int
    """Patches along each side of what becomes one token."""
    temporal: int
    """Frames that one patch of a video spans."""
    fixed: int | None
    """Side of the square that every picture becomes; None: sizes follow the source."""
    min_pixels: int
    max_pixels: int
    """Bounds of height · width after the resize; without effect on a fixed square."""
    min_frames: int
    """Frames that `fps` chooses at least, if there are as many."""
    image_token: str
    video_token: str
    start_token: str
    end_token: str
    """Texts of the tokens; an empty start or end: none is put around the placeholders."""

    @property
    def factor(self) -> int:
        """Pixels along each side of one token."""
        return self.patch * self.merge

    @property
    def bytes_per_token(self) -> int:
        """Most bytes of RGB that one placeholder can stand for."""
        return 3 * self.temporal * self.factor * self.factor


PRESETS = {
    "qwen2_vl": Preset(
        patch=14,
        merge=2,
        temporal=2,
        fixed=None,
        min_pixels=56 * 56,
        max_pixels=28 * 28 * 1280,
        min_frames=4,
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        start_token="<|vision_start|>",
        end_token="<|vision_end|>",
    ),
    "llava_1_5": Preset(
        patch=14,
        merge=1,
        temporal=1,
        fixed=336,
        min_pixels=1,
        max_pixels=336 * 336,
        min_frames=1,
        image_token="<image>",
        video_token="<image>",
        start_token="",
        end_token="",
    ),
}
"""By name.

Source: `qwen2_vl`: Wang et al., "Qwen2-VL" (2024), and the defaults of `Qwen2VLImageProcessor` in
Transformers and of `vision_process.py` in qwen-vl-utils. `llava_1_5`: Liu et al., "Improved
Baselines with Visual Instruction Tuning" (2023), whose encoder is CLIP ViT-L/14 at 336 pixels,
prepared as by `CLIPImageProcessor`: the short side to 336, then the square in the middle.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """How an upright frame becomes the stored one: scaled, then cut out."""

    scaled_height: int
    scaled_width: int
    height: int
    width: int
    """Of the stored frame; equal to the scaled size where nothing is cut away."""
    top: int = 0
    """First scaled row that is kept."""
    left: int = 0
    """First scaled column that is kept."""


def fit(
    preset: Preset,
    height: int,
    width: int,
    *,
    min_pixels: int,
    max_pixels: int,
    crop: Crop | None = None,
) -> Geometry:
    """Choose the stored size of a picture.

    Args:
        preset: of the recipe.
        height: of the upright picture with square pixels.
        width: likewise.
        min_pixels: bound of height · width, for presets whose sizes follow the source.
        max_pixels: likewise.
        crop: what is kept of it. A crop that would itself be refused, or for which the whole would
            have to be scaled beyond `MOST_SCALED_PIXELS`, is not taken.

    Raises:
        SizeError: the picture is too narrow for any grid.

    Determinism: integers alone, so equal on every machine.
    """
    if height < 1 or width < 1 or max(height, width) > LARGEST_ASPECT * min(height, width):
        raise SizeError(f"{width} x {height} pixels")
    whole = _fit_whole(preset, height, width, min_pixels, max_pixels)
    if crop is None or max(crop.height, crop.width) > LARGEST_ASPECT * min(crop.height, crop.width):
        return whole
    kept = _fit_whole(preset, crop.height, crop.width, min_pixels, max_pixels)
    # The whole is scaled as the crop has to be; rounded down alike, the crop stays within it.
    tall = height * kept.scaled_height // crop.height
    wide = width * kept.scaled_width // crop.width
    if tall * wide > MOST_SCALED_PIXELS:
        return whole
    return Geometry(
        scaled_height=tall,
        scaled_width=wide,
        height=kept.height,
        width=kept.width,
        top=crop.top * kept.scaled_height // crop.height + kept.top,
        left=crop.left * kept.scaled_width // crop.width + kept.left,
    )


def _fit_whole(
    preset: Preset, height: int, width: int, min_pixels: int, max_pixels: int
) -> Geometry:
    if preset.fixed is not None:
        side, short = preset.fixed, min(height, width)
        tall, wide = height * side // short, width * side // short
        return Geometry(
            scaled_height=tall,
            scaled_width=wide,
            height=side,
            width=side,
            top=(tall - side) // 2,
            left=(wide - side) // 2,
        )
    height, width = smart_resize(
        height, width, factor=preset.factor, min_pixels=min_pixels, max_pixels=max_pixels
    )
    return Geometry(scaled_height=height, scaled_width=width, height=height, width=width)


def smart_resize(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Return the size nearest to a picture's whose sides are multiples of `factor`.

    Of sizes outside [min_pixels, max_pixels] the sides are scaled alike first, and rounded down or
    up to multiples, so that the result is within. The published formula takes square roots of
    floats; here its floors and ceilings are found exactly:

        floor(sqrt(h · max / w) / f) = isqrt(h · max // (w · f²))

    Source: `smart_resize` of Qwen2-VL.
    """
    tall = max(factor, _round_half_even(height, factor) * factor)
    wide = max(factor, _round_half_even(width, factor) * factor)
    square = factor * factor
    if tall * wide > max_pixels:
        tall = max(1, isqrt(height * max_pixels // (width * square))) * factor
        wide = max(1, isqrt(width * max_pixels // (height * square))) * factor
    elif tall * wide < min_pixels:
        tall = _ceil_root(height * min_pixels, width * square) * factor
        wide = _ceil_root(width * min_pixels, height * square) * factor
    return tall, wide


def grid(preset: Preset, frames: int, height: int, width: int) -> tuple[int, int, int]:
    """Return the patches of stored frames along time, height and width."""
    return -(-frames // preset.temporal), height // preset.patch, width // preset.patch


def token_count(preset: Preset, grid_thw: tuple[int, int, int]) -> int:
    """Return the placeholders that stand for a grid."""
    time, tall, wide = grid_thw
    return time * (tall // preset.merge) * (wide // preset.merge)


def square_pixels(height: int, width: int, aspect: Fraction) -> tuple[int, int]:
    """Return the size at which pixels of some width to height are shown as squares.

    The width changes, and is rounded half up; a ratio that is not above 0 is unknown: square.
    """
    if aspect <= 0:
        return height, width
    scaled = width * aspect
    return height, max(1, (2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator))


def _round_half_even(number: int, factor: int) -> int:
    quotient, rest = divmod(number, factor)
    return quotient + (2 * rest > factor or (2 * rest == factor and quotient % 2 == 1))


def _ceil_root(numerator: int, denominator: int) -> int:
    """Return the smallest k with k² ≥ numerator / denominator > 0."""
    return isqrt(-(-numerator // denominator) - 1) + 1
