"""The strict conversion between plain mappings and the recipe."""

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.errors import RecipeError
from zephon_beam.recipe import Recipe, ShardRecipe
from zephon_beam.recipe_datasets import TransformRecipe
from zephon_beam.recipe_mapping import (
    LocatedMapping,
    parse_byte_size,
    recipe_from_mapping,
    recipe_to_mapping,
)


def minimal(**changes: Any) -> dict[str, Any]:
    """Return the smallest mapping that is a recipe, with some keys changed."""
    return {
        "name": "mine",
        "tokenizer": {"path": "tokenizer.json"},
        "datasets": {"web": {"files": "web/*.jsonl"}, "code": {"files": ["a.jsonl", "b.jsonl"]}},
        **changes,
    }


def dataset(**changes: Any) -> dict[str, Any]:
    """Return a minimal mapping with one data set that has some keys changed."""
    return minimal(datasets={"web": {"files": "web/*.jsonl", **changes}})


def refused(mapping: Any, text: str, **options: Any) -> None:
    """Require that a mapping is refused with a text in the message."""
    with pytest.raises(RecipeError, match=re.escape(text)):
        recipe_from_mapping(mapping, **options)


def test_missing_keys_get_the_defaults_of_the_dataclasses() -> None:
    """A minimal mapping is a whole recipe."""
    recipe = recipe_from_mapping(minimal())
    assert recipe.lanes == 8
    assert recipe.shuffle.interleave == 16
    assert recipe.datasets["web"].weight == "1"
    assert recipe.datasets["code"].patterns == ("a.jsonl", "b.jsonl")


recipes = st.builds(
    minimal,
    seed=st.integers(0, 2**61),
    lanes=st.sampled_from([1, 4]),
    samples_per_shard=st.sampled_from(["auto", 7]),
    chunk_bytes=st.sampled_from([None, 65_536, "1MiB"]),
    mixing=st.fixed_dictionaries(
        {
            "unit": st.sampled_from(["tokens", "documents"]),
            "schedule": st.sampled_from(
                [
                    [],
                    [{"at_sample": 8, "weights": {"web": "0.10"}}],
                    [{"at_tokens": 9, "weights": {"code": 2}}],
                ]
            ),
        }
    ),
    packing=st.fixed_dictionaries(
        {
            "method": st.sampled_from(["concat", "best_fit"]),
            "within": st.sampled_from(["all", "dataset", {"both": ["code", "web"]}]),
            "max_segments": st.sampled_from([None, 3]),
        }
    ),
    datasets=st.fixed_dictionaries(
        {
            "web": st.fixed_dictionaries(
                {
                    "files": st.just("x/*.parquet"),
                    "weight": st.sampled_from([1, "0.50", 0.25, Decimal("1e-5")]),
                    "transforms": st.sampled_from(
                        [[], [{"call": "a.b:c", "with": {"d": [1, None]}, "version": "2"}]]
                    ),
                }
            ),
            "code": st.fixed_dictionaries(
                {"files": st.just(["y"]), "passes": st.sampled_from(["repeat", 3])}
            ),
        }
    ),
)


@given(recipes)
def test_round_trip_through_json_gives_an_equal_recipe(mapping: dict[str, Any]) -> None:
    """What is stored in a stream is the recipe that made it."""
    recipe = recipe_from_mapping(mapping)
    text = json.dumps(recipe_to_mapping(recipe))
    again = recipe_from_mapping(json.loads(text))
    assert again == recipe
    assert tuple(again.datasets) == tuple(recipe.datasets)
    assert json.dumps(recipe_to_mapping(again)) == text


def test_round_trip_keeps_a_recipe_made_in_python() -> None:
    """Dataclasses and mappings are two spellings of one recipe."""
    recipe = recipe_from_mapping(minimal(shard={"compression": "zstd"}))
    assert recipe_from_mapping(recipe_to_mapping(recipe)) == recipe
    assert isinstance(recipe, Recipe)


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (minimal(lane=4), "recipe: unknown key 'lane'; did you mean 'lanes'?"),
        (
            minimal(zzz=4),
            "recipe: unknown key 'zzz'; the keys here are name, tokenizer, datasets, seed, lanes, "
            "seq_len, samples_per_shard, mixing, shuffle, packing, chat, bad_records, holdout, "
            "media, chunk_bytes, shard",
        ),
        (
            dataset(zzz=4),
            "unknown key 'zzz' in datasets.web; the keys here are files, format, text, messages",
        ),
        (minimal(chat={"zzz": 4}), "unknown key 'zzz' in chat; the keys here are loss_on"),
        (dataset(wieght=1), "unknown key 'wieght' in datasets.web; did you mean 'weight'?"),
        (
            dataset(transform=[]),
            "unknown key 'transform' in datasets.web; did you mean 'transforms'?",
        ),
        (
            minimal(shuffle={"chunk": True}),
            "unknown key 'chunk' in shuffle; did you mean 'chunks'?",
        ),
        (minimal(chat={"los_on": 1}), "unknown key 'los_on' in chat; did you mean 'loss_on'?"),
        (
            minimal(mixing={"schedule": [{"at_sampel": 8, "weights": {"web": 1}}]}),
            "unknown key 'at_sampel' in mixing.schedule[0]; did you mean 'at_sample'?",
        ),
    ],
)
def test_unknown_key_names_the_nearest_valid_one(mapping: dict[str, Any], text: str) -> None:
    """A misspelling is never taken for a wish that could be ignored."""
    refused(mapping, text)


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (minimal(interleave=4), "unknown key 'interleave'; it belongs to shuffle"),
        (minimal(weight=1), "unknown key 'weight'; it belongs to each data set"),
        (
            minimal(packing={"seq_len": 8}),
            "unknown key 'seq_len' in packing; it belongs to the top level",
        ),
        (dataset(eos="x"), "unknown key 'eos' in datasets.web; it belongs to tokenizer"),
    ],
)
def test_misplaced_key_names_its_place(mapping: dict[str, Any], text: str) -> None:
    """Wrong nesting is told apart from a wrong word."""
    refused(mapping, text)


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (
            [1],
            "recipe: recipe must be a mapping of keys such as name, tokenizer, datasets, got [1]",
        ),
        (minimal(tokenizer="t.json"), "tokenizer must be a mapping with keys of path, eos, bos,"),
        (minimal(shuffle=None), "shuffle must be a mapping with keys of chunks, documents,"),
        (minimal(shuffle=None), "got None; leave the key out for its defaults"),
        (minimal(tokenizer=None), "got None; write its keys below it, indented"),
        (minimal(datasets=["a.jsonl"]), "datasets must be a mapping of name to data set, got ['a."),
        (
            minimal(datasets=None),
            "datasets must name at least one data set, got None; add e.g. `datasets: {web:",
        ),
        (minimal(datasets={}), "datasets must name at least one data set, got {}; add e.g."),
        (minimal(datasets={"web": None}), "got None; write its keys below it, indented"),
        (
            minimal(datasets={"web": "a"}),
            "datasets.web must be a mapping with at least the key files",
        ),
        (minimal(mixing={"schedule": {}}), "mixing.schedule must be a list of entries, got {}"),
        (minimal(mixing={"schedule": [3]}), "mixing.schedule[0] must be a mapping with at_sample"),
        (
            minimal(packing={"within": {"g": "web"}}),
            "packing.within.g must be a list of data set names, got 'web'; write [ … ]",
        ),
        (minimal(datasets={1: {"files": "a"}}), "keys of datasets must be text, got 1; put it in"),
        (
            minimal(chat="assistant"),
            "chat must be a mapping with keys of loss_on, overlong, got 'assistant'",
        ),
    ],
)
def test_wrong_shape_is_refused(mapping: Any, text: str) -> None:
    """Each level must have the shape that the format gives it."""
    refused(mapping, text)


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (
            {"name": "x"},
            "recipe: tokenizer must be given; add e.g. `tokenizer: {path: tokenizer.json}`",
        ),
        (minimal(tokenizer={}), "tokenizer.path must be given; add e.g. `path: tokenizer.json`"),
        (minimal(datasets={"web": {}}), "datasets.web.files must be given; add e.g. `files: data/"),
        (
            minimal(mixing={"schedule": [{"at_sample": 8}]}),
            "mixing.schedule[0].weights must be given; add e.g. `weights: {web: 0.5",
        ),
    ],
)
def test_missing_key_is_named_with_an_example(mapping: dict[str, Any], text: str) -> None:
    """What has no default must be written."""
    refused(mapping, text)


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (dataset(weight="heavy"), "recipe: datasets.web.weight must be a decimal of at least 0"),
        (dataset(files=[]), "recipe: datasets.web.files must be a glob or a list of globs, got ()"),
        (dataset(files=3), "recipe: datasets.web.files must be a glob or a list of globs, got 3"),
        (dataset(passes=0), "recipe: datasets.web.passes must be an integer of at least 1, got 0"),
        (minimal(lanes="8"), "recipe: lanes must be an integer from 1 to 65536, got '8'"),
        (
            minimal(seq_len="2K"),
            "recipe: seq_len must be an integer from 1 to 16777216, got '2K'; write a plain number "
            "of tokens, e.g. 2048",
        ),
        (
            minimal(mixing={"schedule": [{"at_sample": 0, "weights": {"web": 1}}]}),
            "recipe: mixing.schedule[0].at_sample must be an integer of at least 1, got 0; before "
            "the first entry the data sets' own weights apply",
        ),
        (
            minimal(mixing={"schedule": [{"at_tokens": 0, "weights": {"web": 1}}]}),
            "recipe: mixing.schedule[0].at_tokens must be an integer of at least 1, got 0; before",
        ),
        (
            minimal(packing={"within": 3}),
            "recipe: packing.within must be all, dataset or a mapping, got 3; a mapping is of",
        ),
        (
            minimal(shuffle={"chunks": "yes"}),
            "recipe: shuffle.chunks must be true or false, got 'yes'",
        ),
        (
            minimal(mixing={"schedule": [{"at_sample": 8, "weights": {"web": "x"}}]}),
            "recipe: mixing.schedule[0].weights.web must be a decimal",
        ),
        (
            minimal(mixing={"schedule": [{"at_sample": 8, "weights": {"wbe": 1}}]}),
            "recipe: mixing.schedule.weights must be names of data sets, got ['wbe']",
        ),
        (
            dataset(transforms={"call": "a:b"}),
            "recipe: datasets.web.transforms must be a list of calls, got {'call': 'a:b'}",
        ),
        (
            dataset(transforms=[{"kind": "map"}]),
            "recipe: datasets.web.transforms[0].call must be given; add e.g. `call: my_package",
        ),
        (
            dataset(transforms=[{"call": "a:b"}, {"call": "strip"}]),
            "recipe: datasets.web.transforms[1].call must be `package.module:function` or one of",
        ),
        (
            dataset(transforms=[{"call": "a:b", "kind": "reduce"}]),
            "recipe: datasets.web.transforms[0].kind must be one of map, filter, flat_map, got",
        ),
        (
            dataset(transforms=[{"call": "normalize", "kind": "filter"}]),
            "recipe: datasets.web.transforms[0].kind must be map, got 'filter'; leave it out",
        ),
        (
            dataset(transforms=[{"call": "a:b", "with": {"x": object}}]),
            "recipe: datasets.web.transforms[0].with must be plain JSON values, got",
        ),
        (
            dataset(transforms=[{"call": "a:b", "version": 2}]),
            "recipe: datasets.web.transforms[0].version must be a non-empty text, got 2; write it",
        ),
        (
            dataset(transforms=[{"call": "a:b", "wiht": {}}]),
            "recipe: unknown key 'wiht' in datasets.web.transforms[0]; did you mean 'with'?",
        ),
        (
            dataset(messages="chat", tokens="ids"),
            "recipe: datasets.web.text must be the only one of text, messages, content and tokens, "
            "got ['me",
        ),
        (
            dataset(loss_mask="mask"),
            "recipe: datasets.web.loss_mask must be given with tokens only, got 'mask'",
        ),
        (
            dataset(tokens="ids", transforms=[{"call": "a:b"}]),
            "recipe: datasets.web.transforms must be empty for documents that are tokens already",
        ),
        (
            minimal(holdout={"fraction": 1}),
            "recipe: holdout.fraction must be above 0 and below 1, got 1; e.g. 0.001",
        ),
        (
            minimal(packing={"segment_multiple": 3}),
            "recipe: packing.segment_multiple must be a divisor of seq_len (2048), got 3",
        ),
        (
            minimal(tokenizer={"path": "t", "special": {"x": -1}}),
            "recipe: tokenizer.special.x must be an integer from 0 to 2147483648, got -1",
        ),
        (minimal(chunk_bytes="1 furlong"), "recipe: chunk_bytes must be a number of bytes above 0"),
    ],
)
def test_wrong_value_is_named_by_its_dotted_path(mapping: dict[str, Any], text: str) -> None:
    """An error of a dataclass says in which data set or entry it happened."""
    refused(mapping, text)


def test_defaults_of_features_to_come_are_accepted() -> None:
    """A recipe that writes out every documented default can be read."""
    mapping = dataset(transforms=[], messages=None, content=None, format="auto")
    mapping |= {"chat": {"loss_on": "assistant"}, "packing": {"segment_multiple": 1}}
    mapping["tokenizer"] = {**mapping["tokenizer"], "pattern": None, "special": {}}
    mapping |= {
        "holdout": None,
        "media": None,
        "bad_records": {"action": "fail", "max_fraction": "0.001"},
    }
    assert recipe_from_mapping(mapping) == recipe_from_mapping(dataset())


def test_a_function_stands_for_its_name() -> None:
    """What is stored is what a worker can import; what it cannot import is refused."""
    assert TransformRecipe(call=json.dumps) == TransformRecipe(call="json:dumps")
    for function in (lambda text: text, object()):
        with pytest.raises(RecipeError, match="call must be a function at the top level"):
            TransformRecipe(call=function)  # type: ignore[arg-type]


def test_errors_carry_origin_and_line() -> None:
    """A mapping that knows its lines gives them to every error below it."""
    web = LocatedMapping([("files", "a"), ("weight", "x")], {"files": 5, "weight": 6})
    root = LocatedMapping(
        minimal(datasets=LocatedMapping([("web", web)], {"web": 4})).items(), {"datasets": 3}
    )
    refused(root, "r.yaml:6: datasets.web.weight must be a decimal", origin="r.yaml")
    web["weight"] = "1"
    web["typo"] = 1
    refused(root, "r.yaml:4: unknown key 'typo' in datasets.web", origin="r.yaml")
    del web["typo"], web["files"]
    refused(root, "r.yaml:4: datasets.web.files must be given", origin="r.yaml")


def test_paths_are_resolved_against_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths belong to the recipe's folder, wherever the command is run."""
    monkeypatch.setenv("HOME", "/home/me")
    files = ["a/*.jsonl", "/b/*.jsonl", "~/c.jsonl", "gs://bucket/d.jsonl"]
    mapping = minimal(datasets={"web": {"files": files}})
    recipe = recipe_from_mapping(mapping, base="/base")
    assert recipe.datasets["web"].patterns == (
        "/base/a/*.jsonl",
        "/b/*.jsonl",
        "/home/me/c.jsonl",
        "gs://bucket/d.jsonl",
    )
    assert recipe.tokenizer.path == "/base/tokenizer.json"
    assert recipe_from_mapping(mapping).tokenizer.path == "tokenizer.json"


def test_a_base_with_glob_characters_stands_for_itself(tmp_path: Path) -> None:
    """A folder named [1] is a folder, not a pattern; the tokenizer's path is no pattern at all."""
    recipe = recipe_from_mapping(dataset(), base=str(tmp_path / "[1]"))
    assert recipe.datasets["web"].patterns == (f"{tmp_path}/[[]1]/web/*.jsonl",)
    assert recipe.tokenizer.path == f"{tmp_path}/[1]/tokenizer.json"


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (262_144, 262_144),
        ("262144", 262_144),
        ("256KiB", 262_144),
        ("1MiB", 1 << 20),
        ("1 mib", 1 << 20),
        ("64 KB", 64_000),
        ("1.5MiB", 1_572_864),
        ("2GiB", 1 << 31),
        ("7B", 7),
    ],
)
def test_byte_sizes_are_read_with_their_unit(value: object, size: int) -> None:
    """KiB counts 1024 bytes, KB 1000."""
    assert parse_byte_size("chunk_bytes", value) == size


@pytest.mark.parametrize(
    "value", ["64K", "1.0000001KB", "-1", 0, True, 1.5, "", "KiB", None, "1XB"]
)
def test_byte_sizes_that_are_not_whole_or_not_clear_are_refused(value: object) -> None:
    """A size that two people read differently is not a size."""
    with pytest.raises(RecipeError, match="chunk_bytes must be a number of bytes above 0"):
        parse_byte_size("chunk_bytes", value)


@pytest.mark.parametrize(
    "value", ["0.70000000000000000000000000000000001", "1e31", "0.1234567890123"]
)
def test_weights_of_too_many_digits_are_refused_not_rounded(value: str) -> None:
    """A weight is taken as written or not at all."""
    refused(dataset(weight=value), "datasets.web.weight must be a decimal of at least 0")


def test_a_negative_zero_weight_is_zero() -> None:
    """No spelling of zero slips through the check that something can be taken."""
    refused(dataset(weight="-0.0"), "datasets.*.weight must be above 0 for at least one data set")


@pytest.mark.parametrize(
    ("web", "code", "when", "schedule", "endless"),
    [
        ({}, {}, "continue", [], True),
        ({"passes": 1}, {}, "continue", [], True),
        ({"passes": 1}, {}, "stop", [], False),
        ({"passes": 1}, {"weight": 0}, "continue", [], False),
        ({"passes": 1}, {"passes": 2}, "continue", [], False),
        (
            {"passes": 1},
            {"weight": 0},
            "continue",
            [{"at_sample": 8, "weights": {"code": 1}}],
            True,
        ),
        ({"passes": 1}, {}, "continue", [{"at_sample": 8, "weights": {"web": 1}}], False),
    ],
)
def test_a_recipe_knows_whether_it_ends(
    web: dict[str, Any],
    code: dict[str, Any],
    when: str,
    schedule: list[dict[str, Any]],
    endless: bool,
) -> None:
    """Endless is what the last phase of the mixture can take from without end."""
    mapping = minimal(
        datasets={"web": {"files": "a", **web}, "code": {"files": "b", **code}},
        mixing={"when_exhausted": when, "schedule": schedule},
    )
    assert recipe_from_mapping(mapping).endless is endless


@pytest.mark.parametrize(
    ("compression", "stream", "codec"),
    [
        ("auto", "/data/s", "none"),
        ("auto", "file:///data/s", "none"),
        ("auto", "gs://b/s", "zstd"),
        ("auto", "s3://b/s", "zstd"),
        ("auto", "az://b/s", "zstd"),
        ("none", "gs://b/s", "none"),
        ("zstd", "/data/s", "zstd"),
    ],
)
def test_shards_are_compressed_where_they_are_downloaded(
    compression: str, stream: str, codec: str
) -> None:
    """Unless the recipe says otherwise."""
    assert ShardRecipe(compression=compression).codec(stream) == codec
