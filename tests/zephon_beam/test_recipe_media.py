"""The section `media` of a recipe: values, bounds, and what it asks of the rest of a recipe."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from tests.streams import make_manifest
from zephon_beam.errors import RecipeError
from zephon_beam.fingerprint import differences, recipe_identity
from zephon_beam.lane_config import make_lane_config
from zephon_beam.manifest import DatasetManifest
from zephon_beam.recipe import PackingRecipe, Recipe, TokenizerRecipe
from zephon_beam.recipe_datasets import DatasetRecipe, TransformRecipe
from zephon_beam.recipe_mapping import recipe_from_mapping, recipe_to_mapping
from zephon_beam.recipe_media import MediaRecipe

MEDIA = MediaRecipe(preset="qwen2_vl")


def recipe(**changes: Any) -> Recipe:
    """Return a recipe with one data set with media and one without."""
    values: dict[str, Any] = {
        "name": "x",
        "tokenizer": TokenizerRecipe(path="t"),
        "datasets": {
            "clips": DatasetRecipe(files="c/*.jsonl", content="parts"),
            "web": DatasetRecipe(files="w/*.jsonl"),
        },
        "media": MEDIA,
        **changes,
    }
    return Recipe(**values)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"preset": "qwen"}, "preset must be one of qwen2_vl, llava_1_5"),
        ({"num_frames": 0}, "num_frames must be an integer from 1 to 4096"),
        ({"num_frames": 3}, "num_frames must be a multiple of the 2 frames"),
        ({"num_frames": 4, "fps": 1}, "fps must be left out beside num_frames"),
        ({"fps": 0}, "fps must be above 0 and at most 1000"),
        ({"fps": 1001}, "fps must be above 0 and at most 1000"),
        ({"fps": "two"}, "fps must be a decimal"),
        ({"max_frames": 1}, "max_frames must be an integer from 2 to 4096"),
        ({"min_pixels": 0}, "min_pixels must be an integer"),
        ({"max_pixels": 783}, r"max_pixels must be at least min_pixels \(3136\)"),
        ({"min_pixels": 2, "max_pixels": 783}, r"one token \(784\), got 783"),
        ({"min_pixels": 1 << 21}, "max_pixels must be at least min_pixels"),
        ({"preset": "llava_1_5", "max_pixels": 336}, "max_pixels must be left out for llava_1_5"),
        ({"flip": "1.01"}, "flip must be at most 1"),
        ({"flip": True}, "flip must be a decimal"),
        ({"jitter": 1}, "jitter must be true or false"),
        ({"crop_area": 0}, "crop_area must be at least 0.01 and at most 1"),
        ({"crop_area": "1.1"}, "crop_area must be at least 0.01 and at most 1"),
        ({"crop_area": "0.5", "crop_aspect": "0.9"}, "crop_aspect must be at least 1"),
        ({"crop_area": "0.5", "crop_aspect": 11}, "crop_aspect must be at least 1"),
        ({"crop_aspect": 2}, "crop_aspect must be 1 where the whole picture is kept"),
        ({"image_token": ""}, "image_token must be the text of a token"),
        ({"start_token": 5}, "start_token must be the text of a token"),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], text: str) -> None:
    """Each with its rule."""
    with pytest.raises(RecipeError, match=text):
        MediaRecipe(**{"preset": "qwen2_vl", **changes})


def test_what_is_left_out_is_the_preset() -> None:
    """Tokens, bounds and the rate; an empty token is none."""
    assert MEDIA.pixel_bounds == (3136, 1_003_520)
    assert MEDIA.frame_rate == Fraction(2)
    assert MEDIA.token("start") == "<|vision_start|>"
    other = replace(MEDIA, start_token="", video_token="<v>", fps="0.50", max_pixels=6272)
    assert (other.token("start"), other.token("video")) == ("", "<v>")
    assert other.frame_rate == Fraction(1, 2)
    assert other.fps == "0.5"
    assert other.pixel_bounds == (3136, 6272)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"media": None}, "media must be given where a data set has `content`.*clips"),
        (
            {"datasets": {"web": DatasetRecipe(files="w")}},
            "media must be left out unless a data set has `content` or `messages`",
        ),
        ({"packing": PackingRecipe(method="concat")}, "packing.method must be best_fit or first_"),
        ({"packing": PackingRecipe(method="best_fit_split")}, "packing.method must be best_fit"),
        ({"tokenizer": TokenizerRecipe(path="t", allow_special=True)}, "allow_special must be fa"),
        ({"samples_per_shard": 56}, r"bytes; use at most 55, or a smaller seq_len"),
        ({"seq_len": 1 << 17}, "bytes; use a smaller seq_len"),
    ],
)
def test_recipes_that_cannot_keep_media_whole_are_refused(
    changes: dict[str, Any], text: str
) -> None:
    """By the field that is at fault."""
    with pytest.raises(RecipeError, match=text):
        recipe(**changes)


def test_the_bound_on_pixels_is_that_of_a_shard_of_placeholders() -> None:
    """512 MiB at the most, and `auto` keeps to a quarter of it."""
    bytes_per_row = 2048 * 2 * 28 * 28 * 3
    assert recipe(samples_per_shard=55).shard_samples == 55
    assert 55 * bytes_per_row <= 512 << 20 < 56 * bytes_per_row
    assert recipe().shard_samples == 13
    assert 13 * bytes_per_row <= 128 << 20 < 14 * bytes_per_row
    assert recipe(media=MediaRecipe(preset="llava_1_5")).shard_samples == 111
    assert recipe(seq_len=1 << 16).shard_samples == 1


def test_content_is_the_only_content_and_has_no_transforms() -> None:
    """A document is read from one field."""
    with pytest.raises(RecipeError, match="only one of text, messages, content and tokens"):
        DatasetRecipe(files="x", content="parts", messages="chat")
    with pytest.raises(RecipeError, match="transforms must be empty for documents with images"):
        DatasetRecipe(files="x", content="parts", transforms=(TransformRecipe(call="a:b"),))


def test_a_stream_with_media_has_masks_and_drops_what_is_too_long() -> None:
    """Whatever `packing.overlong` says; other data sets follow it."""
    found = recipe(packing=PackingRecipe(overlong="truncate"))
    assert found.has_loss_mask
    datasets = [
        DatasetManifest(
            name=name,
            format="jsonl",
            root="",
            weight="1",
            chunk_bytes=1,
            part_rows=0,
            chunk_count=1,
            source_bytes=1,
            catalog_digest="",
        )
        for name in found.datasets
    ]
    config = make_lane_config(found, make_manifest(datasets=datasets))
    assert config.overlong == ("drop", "truncate")


def test_media_go_through_plain_mappings() -> None:
    """As in `stream.json`, and a misspelt key is named."""
    found = recipe(media=replace(MEDIA, fps="1.5"))
    assert recipe_from_mapping(recipe_to_mapping(found)) == found
    mapping = recipe_to_mapping(found)
    mapping["media"]["frames"] = 4
    with pytest.raises(RecipeError, match="unknown key 'frames' in media"):
        recipe_from_mapping(mapping)
    mapping["media"] = {}
    with pytest.raises(RecipeError, match=r"media\.preset must be given; add e\.g\. `preset"):
        recipe_from_mapping(mapping)


@pytest.mark.parametrize(
    "change",
    [
        {"preset": "llava_1_5"},
        {"num_frames": 8},
        {"fps": 1},
        {"max_frames": 64},
        {"min_pixels": 784},
        {"max_pixels": 6272},
        {"flip": "0.5"},
        {"jitter": True},
        {"crop_area": "0.5"},
        {"image_token": "<i>"},
        {"video_token": "<v>"},
        {"start_token": ""},
        {"end_token": ""},
    ],
)
def test_every_field_enters_the_fingerprint(change: dict[str, Any]) -> None:
    """And a difference is named."""
    found = differences(
        recipe_identity(recipe(samples_per_shard=4)),
        recipe_identity(recipe(samples_per_shard=4, media=replace(MEDIA, **change))),
    )
    assert list(found) == [f"media.{name}" for name in change]


def test_keys_that_came_later_do_not_enter_unless_they_are_used() -> None:
    """Streams that were written before them keep their names, and are compared with them."""
    old = recipe_identity(recipe())
    assert list(old["media"]) == [*OLD_KEYS]
    cropped = replace(MEDIA, crop_area="0.50", crop_aspect="1.330")
    found = recipe_identity(recipe(media=cropped))
    assert (found["media"]["crop_area"], found["media"]["crop_aspect"]) == ("0.5", "1.33")
    assert differences(old, found) == {
        "media.crop_area": 'the stream has "1", the recipe now has "0.5"',
        "media.crop_aspect": 'the stream has "1", the recipe now has "1.33"',
    }


OLD_KEYS = (
    *("preset", "num_frames", "fps", "max_frames", "min_pixels", "max_pixels", "flip", "jitter"),
    *("image_token", "video_token", "start_token", "end_token"),
)


def test_the_field_of_content_enters_the_fingerprint() -> None:
    """As that of text does."""
    datasets = {"clips": DatasetRecipe(files="c/*.jsonl", content="other")}
    found = differences(
        recipe_identity(recipe(datasets={"clips": DatasetRecipe(files="c", content="parts")})),
        recipe_identity(recipe(datasets=datasets)),
    )
    words = 'the stream has "parts", the recipe now has "other"'
    assert found == {"datasets.clips.content": words}
