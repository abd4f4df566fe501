"""What becomes of the data sets of a fork, decided from two recipes."""

from dataclasses import replace
from typing import Any

import pytest

from zephon_beam.errors import RecipeError
from zephon_beam.kept_datasets import (
    DatasetFork,
    changed_fields,
    compare_tokens,
    decides_order,
    fork_datasets,
)
from zephon_beam.manifest import DatasetManifest, Manifest
from zephon_beam.recipe import Recipe
from zephon_beam.recipe_mapping import recipe_from_mapping, recipe_to_mapping

RECIPE: dict[str, Any] = {
    "name": "r",
    "tokenizer": {"path": "t.json"},
    "datasets": {
        "web": {"files": "web/*.jsonl", "transforms": [{"call": "a.b:c"}]},
        "chat": {"files": "chat/*.jsonl", "messages": "turns"},
        "clips": {"files": "clips/*.jsonl", "content": "parts"},
    },
    "media": {"preset": "qwen2_vl"},
}
CODE = {"datasets.web.transforms[0]": "source:1", "chat_template": "x", "media_libraries": "y"}


def recipe_with(**changes: Any) -> Recipe:
    """Return the recipe with some of its sections changed."""
    media = {**RECIPE["media"], **changes.pop("media", {})}
    return recipe_from_mapping({**RECIPE, **changes, "media": media})


def manifest_of(recipe: Recipe, **changes: Any) -> Manifest:
    """Return what a stream of a recipe says of itself."""
    datasets = [
        DatasetManifest(
            name=name,
            format="jsonl",
            root="/",
            weight="1",
            chunk_bytes=1,
            part_rows=0,
            chunk_count=1,
            source_bytes=1,
            catalog_digest="d",
        )
        for name in recipe.datasets
    ]
    manifest = Manifest(
        name="r",
        fingerprint="f",
        lanes=recipe.lanes,
        seq_len=recipe.seq_len,
        samples_per_shard=1,
        token_dtype="uint16",
        vocab_size=9,
        pad_id=0,
        eos_id=1,
        bos_id=None,
        has_loss_mask=True,
        tokenizer_digest="t",
        recipe=recipe_to_mapping(recipe),
        datasets=datasets,
        code_versions=CODE,
    )
    return replace(manifest, **changes)


def decide(
    recipe: Recipe, files: dict[str, str] | None = None, **changes: Any
) -> dict[str, DatasetFork]:
    """Fork the stream of the recipe to a changed one."""
    older, newer = manifest_of(recipe_with()), manifest_of(recipe, **changes)
    forks = fork_datasets(older, recipe, newer.code_versions, files or {})
    return {fork.name: fork for fork in compare_tokens(forks, older, recipe, newer)}


def datasets_with(name: str, **changes: Any) -> dict[str, Any]:
    """Return the data sets, one of them changed."""
    return {**RECIPE["datasets"], name: {**RECIPE["datasets"][name], **changes}}


KEEPS = {
    "nothing": {},
    "weights": {"datasets": datasets_with("web", weight="0.1")},
    "passes": {"datasets": datasets_with("web", passes=3)},
    "rows": {"seq_len": 64, "packing": {"method": "first_fit"}, "samples_per_shard": 3},
    "mixture": {
        "mixing": {"unit": "documents", "schedule": [{"at_sample": 8, "weights": {"web": 1}}]}
    },
    "interleave": {"shuffle": {"interleave": 2}},
    "padding": {"tokenizer": {"path": "u.json", "pad": 5}},
    "chunks": {"chunk_bytes": 4096, "bad_records": {"action": "quarantine"}},
}


@pytest.mark.parametrize("change", KEEPS)
def test_what_does_not_touch_documents_or_tokens_keeps_everything(change: str) -> None:
    """Every data set goes on, and what waits re-enters."""
    found = decide(recipe_with(**KEEPS[change]))
    assert found == {
        name: DatasetFork(name=name, older=place)
        for place, name in enumerate(("web", "chat", "clips"))
    }


def test_the_order_of_data_sets_may_change() -> None:
    """Each keeps its own place in the older recipe."""
    datasets = dict(reversed(RECIPE["datasets"].items()))
    found = decide(recipe_with(datasets=datasets))
    assert [(name, fork.older) for name, fork in found.items()] == [
        ("clips", 2),
        ("chat", 1),
        ("web", 0),
    ]


@pytest.mark.parametrize(
    ("recipe", "files", "code", "expected"),
    [
        (
            {"datasets": datasets_with("web", text="body")},
            {},
            {},
            ("web", 'text: the stream has "text"'),
        ),
        (
            {"datasets": datasets_with("chat", messages="m")},
            {},
            {},
            ("chat", "messages: the stream has"),
        ),
        ({}, {"web": "'x' is gone"}, {}, ("web", "'x' is gone")),
        (
            {"datasets": datasets_with("web", transforms=[{"call": "a.b:d"}])},
            {},
            {},
            ("web", "transforms[0].call: the stream has"),
        ),
        (
            {},
            {},
            {"datasets.web.transforms[0]": "source:2"},
            ("web", "datasets.web.transforms[0]: code source:1 became source:2"),
        ),
    ],
)
def test_other_documents_begin_anew_and_the_rest_goes_on(
    recipe: Any, files: Any, code: Any, expected: tuple[str, str]
) -> None:
    """What is said names the field, the file or the code."""
    found = decide(recipe_with(**recipe), files, code_versions={**CODE, **code})
    name, why = expected
    assert found[name].older is None
    assert found[name].anew.startswith(why)
    assert all(
        fork.older is not None and not fork.dropped for n, fork in found.items() if n != name
    )


@pytest.mark.parametrize(
    ("recipe", "changes", "names", "why"),
    [
        ({}, {"tokenizer_digest": "u"}, "web chat clips", "the tokenizer is another one"),
        (
            {},
            {"eos_id": 2},
            "web chat clips",
            "tokenizer.eos: the stream has 1, the recipe now has 2",
        ),
        ({}, {"bos_id": 2}, "web chat clips", "tokenizer.bos: the stream has None"),
        (
            {"tokenizer": {"path": "t.json", "pattern": "x"}},
            {},
            "web chat clips",
            "tokenizer.pattern: the stream has null",
        ),
        ({"chat": {"loss_on": "all"}}, {}, "chat", "chat.loss_on: the stream has"),
        ({}, {"code_versions": {**CODE, "chat_template": "z"}}, "chat", "chat template: code x"),
        ({"media": {"max_pixels": 50176}}, {}, "chat clips", "media."),
        (
            {},
            {"code_versions": {**CODE, "media_libraries": "z"}},
            "chat clips",
            "media libraries: code y",
        ),
    ],
)
def test_other_tokens_are_dropped_and_the_place_is_kept(
    recipe: Any, changes: Any, names: str, why: str
) -> None:
    """Of the data sets whose tokens they are, and of no other."""
    found = decide(recipe_with(**recipe), **changes)
    assert all(fork.older is not None for fork in found.values())
    assert [name for name, fork in found.items() if fork.dropped] == names.split()
    assert all(fork.dropped.startswith(why) for fork in found.values() if fork.dropped)


def test_changed_fields_say_whether_a_fork_is_possible() -> None:
    """Errors of drift offer a fork by this."""
    older = manifest_of(recipe_with())
    for change, fields in (
        ({"seed": 1}, ["seed"]),
        ({"lanes": 2}, ["lanes"]),
        ({"shuffle": {"chunks": False}}, ["shuffle.chunks"]),
        ({"holdout": {"fraction": "0.1"}}, ["holdout"]),
    ):
        changed = changed_fields(older, recipe_with(**change))
        assert list(changed) == fields
        assert all(map(decides_order, changed))
        with pytest.raises(RecipeError, match=r"must stay what (it is|they are) in a fork"):
            decide(recipe_with(**change))
    for change in KEEPS.values():
        assert not any(map(decides_order, changed_fields(older, recipe_with(**change))))
