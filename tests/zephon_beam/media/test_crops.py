"""Random crops: within the picture, of the wanted shares and ratios, by integers alone."""

from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from zephon_beam.media.crops import CROP_DRAWS, Crop, choose_crop
from zephon_beam.media.presets import LARGEST_ASPECT, MOST_SCALED_PIXELS, PRESETS, fit

TOP = (1 << 64) - 1
HALF = 1 << 63
draws = st.lists(st.integers(0, TOP), min_size=CROP_DRAWS, max_size=CROP_DRAWS)
sides = st.integers(1, 4000)
areas = st.fractions(Fraction(1, 100), 1, max_denominator=10**6)
aspects = st.fractions(1, 10, max_denominator=10**6)


@given(sides, sides, areas, aspects, draws)
@example(1, 1, Fraction(1, 100), Fraction(10), [0, TOP, 1, TOP, TOP])
@example(720, 1280, Fraction(1, 2), Fraction(4, 3), [TOP] * 5)
def test_a_crop_lies_within_and_keeps_its_share(
    height: int, width: int, area: Fraction, aspect: Fraction, draws: list[int]
) -> None:
    """Of at least one pixel; rounding down takes less than a row and a column."""
    crop = choose_crop(height, width, area=area, aspect=aspect, draws=draws)
    assert 0 <= crop.top <= crop.top + crop.height <= height
    assert 0 <= crop.left <= crop.left + crop.width <= width
    assert min(crop.height, crop.width) >= 1
    assert (crop.height + 1) * (crop.width + 1) > area * height * width
    change = Fraction(crop.width + 1, crop.height) * Fraction(height, width)
    assert change > 1 / aspect or crop.height == 1
    change = Fraction(crop.height + 1, crop.width) * Fraction(width, height)
    assert change > 1 / aspect or crop.width == 1


def test_crops_are_pinned() -> None:
    """They decide bytes."""
    half, third = Fraction(1, 2), Fraction(4, 3)
    found = [
        choose_crop(720, 1280, area=half, aspect=third, draws=[a, b, c, d, e])
        for a, b, c, d, e in (
            (0, 0, 0, 0, 0),
            (TOP, TOP, TOP, TOP, TOP),
            (0, TOP, 0, HALF, HALF),
            (HALF, HALF, 1, 0, TOP),
        )
    ]
    assert found == [
        Crop(top=0, left=0, height=509, width=905),
        Crop(top=1, left=1, height=719, width=1279),
        Crop(top=140, left=118, height=440, width=1045),
        Crop(top=0, left=254, height=673, width=1026),
    ]


@given(sides, sides, areas, aspects, draws, st.sampled_from(sorted(PRESETS)))
def test_a_cropped_picture_is_scaled_as_its_crop_has_to_be(
    height: int, width: int, area: Fraction, aspect: Fraction, draws: list[int], name: str
) -> None:
    """The stored frame lies within the scaled picture, and shows what the crop holds."""
    if max(height, width) > LARGEST_ASPECT * min(height, width):
        return
    preset = PRESETS[name]
    bounds = {"min_pixels": preset.min_pixels, "max_pixels": preset.max_pixels}
    crop = choose_crop(height, width, area=area, aspect=aspect, draws=draws)
    found = fit(preset, height, width, crop=crop, **bounds)
    assert found.top >= 0
    assert found.left >= 0
    assert found.top + found.height <= found.scaled_height
    assert found.left + found.width <= found.scaled_width
    if found == fit(preset, height, width, **bounds):
        return
    own = fit(preset, crop.height, crop.width, **bounds)
    assert (found.height, found.width) == (own.height, own.width)
    down, along = Fraction(own.scaled_height, crop.height), Fraction(own.scaled_width, crop.width)
    assert 0 <= crop.top * down + own.top - found.top < 1
    assert 0 <= crop.left * along + own.left - found.left < 1
    assert 0 <= height * down - found.scaled_height < 1
    assert 0 <= width * along - found.scaled_width < 1
    assert found.scaled_height * found.scaled_width <= MOST_SCALED_PIXELS


def test_a_crop_too_narrow_for_a_grid_is_not_taken() -> None:
    """A picture at the edge of what is allowed must not fail by chance."""
    preset = PRESETS["qwen2_vl"]
    bounds = {"min_pixels": preset.min_pixels, "max_pixels": preset.max_pixels}
    whole = fit(preset, 1000, 5, **bounds)
    narrow = Crop(top=0, left=0, height=1000, width=4)
    assert fit(preset, 1000, 5, crop=narrow, **bounds) == whole
    assert fit(preset, 1000, 5, crop=Crop(top=9, left=1, height=800, width=4), **bounds) != whole


def test_a_crop_that_needs_a_huge_picture_is_not_taken() -> None:
    """Memory must not depend on chance."""
    preset = PRESETS["llava_1_5"]
    bounds = {"min_pixels": 1, "max_pixels": 1}
    whole = fit(preset, 5000, 5000, **bounds)
    assert fit(preset, 5000, 5000, crop=Crop(top=0, left=0, height=9, width=9), **bounds) == whole
    taken = fit(preset, 5000, 5000, crop=Crop(top=0, left=0, height=500, width=500), **bounds)
    assert (taken.scaled_height, taken.height) == (3360, 336)
