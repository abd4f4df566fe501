"""The fingerprint covers what decides bytes, nothing else, in one spelling."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.fingerprint import differences, fingerprint, recipe_identity
from zephon_beam.recipe import (
    BadRecordsRecipe,
    HoldoutRecipe,
    MixingRecipe,
    PackingRecipe,
    Recipe,
    ScheduleEntry,
    ShardRecipe,
    ShuffleRecipe,
    TokenizerRecipe,
)
from zephon_beam.recipe_datasets import DatasetRecipe, TransformRecipe

BASE = Recipe(
    name="mine",
    tokenizer=TokenizerRecipe(path="tokenizer.json"),
    datasets={
        "web": DatasetRecipe(files="web/*.jsonl", weight="0.7"),
        "code": DatasetRecipe(files="code/*.parquet", text="content", weight="0.3"),
    },
)
RICH = Recipe(
    name="rich",
    tokenizer=TokenizerRecipe(path="t", eos=1, bos="<s>", pad="auto", allow_special=True),
    datasets={
        "web": DatasetRecipe(files=("a", "b"), format="jsonl", weight="2.50", passes=3),
        "code": DatasetRecipe(files="c", format="text", text="größe"),
    },
    seed=7,
    lanes=4,
    seq_len=128,
    samples_per_shard=16,
    mixing=MixingRecipe(
        unit="documents",
        when_exhausted="stop",
        schedule=(ScheduleEntry(at_sample=8, weights={"code": "1.0"}),),
    ),
    shuffle=ShuffleRecipe(chunks=False, documents=False, interleave=2),
    packing=PackingRecipe(method="concat", open_bins=3, overlong="drop", within="dataset"),
    bad_records=BadRecordsRecipe(max_fraction="0.01"),
    chunk_bytes=65_536,
    shard=ShardRecipe(compression="zstd"),
)


def of(recipe: Recipe, tokenizer: str = "t", version: int = 1) -> str:
    """Fingerprint a recipe over two made-up catalogs."""
    catalogs = {name: f"digest of {name}" for name in recipe.datasets}
    return fingerprint(
        recipe, tokenizer_digest=tokenizer, catalog_digests=catalogs, format_version=version
    )


def test_fingerprints_are_pinned() -> None:
    """Streams of today are recognised by every later version."""
    assert of(BASE) == "962f1df6558d74d0033f4adea700f4a4"
    assert of(RICH) == "d0071b3a7780eccd07c7b5197afa6303"


UNHASHED = {"name", "tokenizer.path", "datasets.web.files", "datasets.code.files"}
UNHASHED |= {"shard.compression"}
OTHER: dict[str, list[Any]] = {
    "name": ["other"],
    "tokenizer.path": ["/elsewhere/tokenizer.json"],
    "tokenizer.eos": [None, 0, "0", "</s>"],
    "tokenizer.bos": ["<s>", 0, "0"],
    "tokenizer.pad": [1, "0", "auto"],
    "tokenizer.allow_special": [True],
    "tokenizer.pattern": ["x"],
    "tokenizer.special": [{"x": 1}],
    "datasets.web.files": ["other/*.jsonl"],
    "datasets.web.format": ["jsonl", "text", "parquet"],
    "datasets.web.text": ["body"],
    "datasets.web.messages": ["chat"],
    "datasets.web.content": [],
    "datasets.web.tokens": ["ids"],
    "datasets.web.loss_mask": [],
    "datasets.web.transforms": [
        (TransformRecipe(call="a:b"),),
        (TransformRecipe(call="a:b", kind="filter"),),
        (TransformRecipe(call="a:b", with_={"c": 1}),),
        (TransformRecipe(call="a:b", version="1"),),
    ],
    "datasets.web.weight": ["0.8", 1, 0.701],
    "datasets.web.passes": [1, 2],
    "datasets.code.files": [("a", "b")],
    "datasets.code.format": ["jsonl"],
    "datasets.code.text": ["text"],
    "datasets.code.messages": [],
    "datasets.code.content": [],
    "datasets.code.tokens": [],
    "datasets.code.loss_mask": [],
    "datasets.code.transforms": [(TransformRecipe(call="normalize"),)],
    "datasets.code.weight": ["0.31"],
    "datasets.code.passes": [1],
    "seed": [1, 2**60],
    "lanes": [1, 16],
    "seq_len": [1024, 2047],
    "samples_per_shard": [1, 255, 257],
    "mixing.unit": ["documents"],
    "mixing.when_exhausted": ["stop"],
    "mixing.schedule": [
        (ScheduleEntry(at_sample=8, weights={"web": 1}),),
        (ScheduleEntry(at_sample=8, weights={"web": 2}),),
        (ScheduleEntry(at_sample=16, weights={"web": 1}),),
    ],
    "shuffle.chunks": [False],
    "shuffle.documents": [False],
    "shuffle.interleave": [1, 15],
    "packing.method": ["concat", "first_fit", "best_fit_split"],
    "packing.open_bins": [1, 63],
    "packing.overlong": ["truncate", "drop"],
    "packing.within": ["dataset", {"g": ("web", "code")}],
    "packing.max_segments": [1, 2],
    "packing.segment_multiple": [2, 64],
    "chat.loss_on": ["last_assistant", "all"],
    "chat.overlong": ["split", "drop"],
    "bad_records.action": ["quarantine"],
    "bad_records.max_fraction": ["0.01"],
    "holdout": [
        HoldoutRecipe(fraction="0.1"),
        HoldoutRecipe(fraction="0.2"),
        HoldoutRecipe(fraction="0.1", take="eval"),
    ],
    "media": [],
    "chunk_bytes": [1 << 18, 1 << 20],
    "shard.compression": ["none", "zstd"],
}


def leaves(value: Any, path: str = "") -> list[str]:
    """Name every field of a recipe by its dotted path."""
    if is_dataclass(value):
        pairs = [(field.name, getattr(value, field.name)) for field in fields(value)]
    elif path == "datasets":
        pairs = list(value.items())
    else:
        return [path]
    return [leaf for name, item in pairs for leaf in leaves(item, f"{path}.{name}".lstrip("."))]


def changed(recipe: Any, path: str, value: Any) -> Any:
    """Return a recipe with one field changed."""
    name, _, rest = path.partition(".")
    if isinstance(recipe, dict):
        return {**recipe, name: changed(recipe[name], rest, value)}
    return replace(recipe, **{name: changed(getattr(recipe, name), rest, value) if rest else value})


def test_every_field_of_the_recipe_is_in_these_tests() -> None:
    """A field added later must be classified, or this fails."""
    assert set(leaves(BASE)) == set(OTHER)


@given(
    st.sampled_from(
        [
            (path, value)
            for path, values in OTHER.items()
            if path not in UNHASHED
            for value in values
        ]
    )
)
def test_any_single_changed_field_changes_the_fingerprint(change: tuple[str, Any]) -> None:
    """No change that could change a byte goes unnoticed, and the difference is named."""
    path, value = change
    other = changed(BASE, path, value)
    assert of(other) != of(BASE)
    fields = differences(recipe_identity(BASE), recipe_identity(other))
    assert fields
    # Another row length moves what `auto` stands for.
    assert all(field.startswith((path, "samples_per_shard")) for field in fields)


@pytest.mark.parametrize("path", sorted(UNHASHED))
def test_names_places_and_compression_do_not_enter(path: str) -> None:
    """A stream may move, be renamed or be compressed and stays the same stream."""
    for value in OTHER[path]:
        other = changed(BASE, path, value)
        assert of(other) == of(BASE)
        assert not differences(recipe_identity(BASE), recipe_identity(other))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("samples_per_shard", 256),
        ("datasets.web.weight", "0.70"),
        ("datasets.web.weight", 0.7),
        ("bad_records.max_fraction", 0.001),
    ],
)
def test_two_spellings_of_one_value_are_the_same(path: str, value: Any) -> None:
    """What means the same has the same fingerprint."""
    assert of(changed(BASE, path, value)) == of(BASE)


def test_schedule_positions_and_weights_have_one_spelling() -> None:
    """Tokens count as the sample they round to, unnamed data sets as weight 0, in any order."""
    round_tokens = BASE.lanes * BASE.seq_len
    spellings = [
        ScheduleEntry(at_sample=8, weights={"web": 1, "code": 0}),
        ScheduleEntry(at_sample=8, weights={"code": "0.0", "web": "1.0"}),
        ScheduleEntry(at_tokens=round_tokens - 1, weights={"web": 1}),
    ]
    found = {of(changed(BASE, "mixing.schedule", (entry,))) for entry in spellings}
    assert len(found) == 1


def test_order_of_data_sets_counts_and_is_named() -> None:
    """It breaks ties in the mixture and numbers the sources."""
    other = replace(BASE, datasets=dict(reversed(BASE.datasets.items())))
    assert of(other) != of(BASE)
    assert differences(recipe_identity(BASE), recipe_identity(other)) == {
        "order of datasets": 'the stream has ["web", "code"], the recipe now has ["code", "web"]'
    }


def test_contents_and_format_version_enter() -> None:
    """Another tokenizer, catalog or format version is another stream."""
    catalogs = {"web": "1", "code": "2"}
    variants = {
        of(BASE),
        of(BASE, tokenizer="u"),
        of(BASE, version=2),
        fingerprint(BASE, tokenizer_digest="t", catalog_digests=catalogs, format_version=1),
    }
    assert len(variants) == 4


def test_order_of_catalogs_does_not_count() -> None:
    """Only the recipe orders data sets."""
    forward, backward = {"web": "1", "code": "2"}, {"code": "2", "web": "1"}
    found = [
        fingerprint(BASE, tokenizer_digest="t", catalog_digests=catalogs, format_version=1)
        for catalogs in (forward, backward)
    ]
    assert found[0] == found[1]


def test_catalogs_must_be_those_of_the_recipe() -> None:
    """A missing catalog is a mistake in the caller, not another stream."""
    with pytest.raises(
        ValueError, match=r"catalog_digests must name the data sets \['web', 'code'"
    ):
        fingerprint(BASE, tokenizer_digest="t", catalog_digests={"web": "1"}, format_version=1)


def test_differences_name_field_stored_and_new_value() -> None:
    """Drift is refused with words that say what to change back."""
    other = changed(changed(BASE, "datasets.web.weight", "0.8"), "seed", 3)
    assert differences(recipe_identity(BASE), recipe_identity(other)) == {
        "datasets.web.weight": 'the stream has "0.7", the recipe now has "0.8"',
        "seed": "the stream has 0, the recipe now has 3",
    }


def test_differences_name_added_and_removed_data_sets() -> None:
    """A whole data set is one field."""
    other = replace(BASE, datasets={"web": BASE.datasets["web"]})
    [(field, words)] = differences(recipe_identity(BASE), recipe_identity(other)).items()
    assert field == "datasets.code"
    assert words.startswith('the stream has {"format": "auto"')
    assert words.endswith("the recipe now has nothing")
