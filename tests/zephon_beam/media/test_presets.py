"""Sizes, grids and token counts of the presets against the published formulas."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zephon_beam.media.presets import (
    PRESETS,
    SizeError,
    fit,
    grid,
    smart_resize,
    square_pixels,
    token_count,
)

QWEN, LLAVA = PRESETS["qwen2_vl"], PRESETS["llava_1_5"]
sides = st.integers(1, 5000)


def published(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """Compute the formula as it is published, with decimals of 60 digits instead of floats."""
    with localcontext() as context:
        context.prec = 60
        tall = max(factor, round(Fraction(height, factor)) * factor)
        wide = max(factor, round(Fraction(width, factor)) * factor)
        area = Decimal(height * width)
        if tall * wide > most:
            beta = (area / most).sqrt()
            tall = max(factor, _floor(Decimal(height) / beta / factor) * factor)
            wide = max(factor, _floor(Decimal(width) / beta / factor) * factor)
        elif tall * wide < least:
            beta = (least / area).sqrt()
            tall = -_floor(-(height * beta / factor)) * factor
            wide = -_floor(-(width * beta / factor)) * factor
        return tall, wide


def _floor(value: Decimal) -> int:
    """Round down, and take what is within 1e-40 of an integer for it."""
    return math.floor(value + Decimal("1e-40"))


@given(sides, sides)
@example(28, 42)
@example(42, 70)
@example(1, 200)
@example(5000, 5000)
def test_smart_resize_is_the_published_formula(height: int, width: int) -> None:
    """Also where roots are whole numbers and where rounding meets a half."""
    found = smart_resize(height, width, factor=28, min_pixels=3136, max_pixels=1003520)
    assert found == tuple(max(28, abs(s)) for s in published(height, width, 28, 3136, 1003520))


@given(st.integers(30, 4000), st.integers(30, 4000))
def test_sizes_are_multiples_within_the_bounds(height: int, width: int) -> None:
    """Of pictures that are not extremely narrow; proportions are kept as far as they can be."""
    if max(height, width) > 8 * min(height, width):
        return
    tall, wide = smart_resize(height, width, factor=28, min_pixels=3136, max_pixels=1003520)
    assert (tall % 28, wide % 28) == (0, 0)
    assert 3136 <= tall * wide <= 1003520


@pytest.mark.parametrize(
    ("height", "width", "size", "tokens"),
    [
        (720, 1280, (728, 1288), 1196),
        (1365, 2048, (812, 1204), 1247),
        (56, 56, (56, 56), 4),
        (10, 10, (56, 56), 4),
        (42, 42, (56, 56), 4),
        (70, 70, (56, 56), 4),
    ],
)
def test_sizes_of_known_pictures_are_pinned(
    height: int, width: int, size: tuple[int, int], tokens: int
) -> None:
    """Halves round to the even multiple: 42 is 1.5 times 28, 70 is 2.5 times."""
    found = fit(QWEN, height, width, min_pixels=QWEN.min_pixels, max_pixels=QWEN.max_pixels)
    assert (found.height, found.width) == size
    assert (found.top, found.left) == (0, 0)
    assert token_count(QWEN, grid(QWEN, 1, found.height, found.width)) == tokens


def test_two_frames_share_a_patch_of_qwen() -> None:
    """An odd last frame stands for two."""
    grids = [grid(QWEN, frames, 56, 84) for frames in (1, 2, 3, 4)]
    assert grids == [(1, 4, 6), (1, 4, 6), (2, 4, 6), (2, 4, 6)]
    assert [token_count(QWEN, found) for found in grids] == [6, 6, 12, 12]


@given(sides, sides)
def test_llava_takes_the_square_in_the_middle_of_the_short_side(height: int, width: int) -> None:
    """As CLIP's processor: the long side is cut to an integer, and 576 tokens stand for a frame."""
    if max(height, width) > 200 * min(height, width):
        return
    found = fit(LLAVA, height, width, min_pixels=1, max_pixels=1)
    assert min(found.scaled_height, found.scaled_width) == 336
    long = int(336 * max(height, width) / min(height, width))
    assert max(found.scaled_height, found.scaled_width) in (long, long + 1)
    assert (found.height, found.width) == (336, 336)
    assert found.top == (found.scaled_height - 336) // 2
    assert token_count(LLAVA, grid(LLAVA, 1, 336, 336)) == 576


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
@pytest.mark.parametrize(("height", "width"), [(0, 5), (5, 0), (1, 201), (2010, 10)])
def test_shapes_without_a_grid_are_refused(preset: object, height: int, width: int) -> None:
    """At 200 : 1 there is one, beyond there is none."""
    with pytest.raises(SizeError, match=f"{width} x {height}"):
        fit(preset, height, width, min_pixels=1, max_pixels=1 << 20)  # type: ignore[arg-type]
    fit(preset, 10, 2000, min_pixels=1, max_pixels=1 << 20)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("aspect", "size"),
    [
        (Fraction(1), (144, 176)),
        (Fraction(0), (144, 176)),
        (Fraction(128, 117), (144, 193)),
        (Fraction(1, 2), (144, 88)),
        (Fraction(1, 10**6), (144, 1)),
    ],
)
def test_pixels_are_shown_as_squares(aspect: Fraction, size: tuple[int, int]) -> None:
    """The height stays; a ratio of 0 says nothing."""
    assert square_pixels(144, 176, aspect) == size


@given(st.integers(1, 64), st.integers(1, 60), st.integers(1, 60))
def test_no_placeholder_stands_for_more_bytes_than_said(frames: int, tall: int, wide: int) -> None:
    """The bound on the pixels of a shard rests on it."""
    for preset in PRESETS.values():
        height, width = tall * preset.factor, wide * preset.factor
        tokens = token_count(preset, grid(preset, frames, height, width))
        assert frames * height * width * 3 <= tokens * preset.bytes_per_token
