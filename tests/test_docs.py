"""The references in docs/ stay true: every key, default, value and array that they state."""

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pipelines.recipe_file import load_recipe
from tests.verified_streams import write_whole_stream
from zephon_beam.built_ins.filter_length import FilterLength
from zephon_beam.built_ins.table import BUILT_INS
from zephon_beam.errors import RecipeError
from zephon_beam.reader import StreamReader
from zephon_beam.reader.batches import DEFAULT_FIELDS, FIELDS
from zephon_beam.recipe import (
    BadRecordsRecipe,
    ChatRecipe,
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
from zephon_beam.recipe_media import MediaRecipe
from zephon_beam.sources.formats import FORMATS, UNSUPPORTED_ENDINGS

DOCS = Path(__file__).parent.parent / "docs"
RECIPE = (DOCS / "recipe.md").read_text()
READER = (DOCS / "reader.md").read_text()
SECTIONS: dict[str, Any] = {
    "Top level": Recipe,
    "`tokenizer`": TokenizerRecipe,
    "`datasets`": DatasetRecipe,
    "`mixing`": MixingRecipe,
    "`mixing.schedule`": ScheduleEntry,
    "`shuffle`": ShuffleRecipe,
    "`packing`": PackingRecipe,
    "`transforms`": TransformRecipe,
    "`chat`": ChatRecipe,
    "`bad_records`": BadRecordsRecipe,
    "`holdout`": HoldoutRecipe,
    "`media`": MediaRecipe,
    "`shard`": ShardRecipe,
}
OPTIONS: dict[str, Any] = {f"`{name}`": kind for name, kind in BUILT_INS.items()}
"""Sections on what `with` may hold for a built-in transform."""
REQUIRED: dict[Any, dict[str, Any]] = {
    Recipe: {
        "name": "x",
        "tokenizer": TokenizerRecipe(path="t"),
        "datasets": {"web": DatasetRecipe(files="x")},
    },
    TokenizerRecipe: {"path": "t"},
    DatasetRecipe: {"files": "x"},
    ScheduleEntry: {"weights": {"web": 1}},
    TransformRecipe: {"call": "a:b"},
    HoldoutRecipe: {"fraction": "0.1"},
    MediaRecipe: {"preset": "qwen2_vl"},
    FilterLength: {"min_characters": 1},
}
NEEDS: dict[tuple[Any, str], dict[str, Any]] = {
    (DatasetRecipe, "loss_mask"): {"tokens": "ids"},
}
"""Fields that are only legal together with others."""


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, without its head."""
    section = page.partition(f"# {heading}\n")[2].partition("\n#")[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    lines = table.group().splitlines()[2:] if table else []
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[cell.strip().replace(r"\|", "|") for cell in row] for row in cells]


def keys(heading: str) -> dict[str, list[str]]:
    """Return the cells of a table of keys: {key: [default, values, meaning]}."""
    return {row[0].strip("`"): row[1:] for row in rows(RECIPE, heading) if row[0].startswith("`")}


def stated_fields() -> list[Any]:
    """Return each field that a table must state, with its cells."""
    found = []
    for heading, kind in {**SECTIONS, **OPTIONS}.items():
        table = keys(heading)
        for field in fields(kind):
            if f"`{field.name}`" not in SECTIONS:
                cells = table.get(field.name.rstrip("_"))
                found.append(pytest.param(kind, field, cells, id=f"{kind.__name__}.{field.name}"))
    return found


@pytest.mark.parametrize(("kind", "field", "cells"), stated_fields())
def test_every_key_is_stated_with_its_default(kind: Any, field: Any, cells: Any) -> None:
    """As the dataclass has it; values that are listed are taken, what exceeds them is not."""
    assert cells is not None
    default, values, _meaning = cells
    if field.default_factory is dict:
        assert default == "`{}`"
    elif field.default is MISSING:
        assert default == "required"
    else:
        spelt = {None: "null", True: "true", False: "false", (): "[]"}
        is_special = field.default is None or isinstance(field.default, (bool, tuple))
        assert default == f"`{spelt[field.default] if is_special else field.default}`"
    given = {key: value for key, value in REQUIRED.get(kind, {}).items() if key != field.name}
    given |= NEEDS.get((kind, field.name), {})
    for text in re.findall(r"`([^`]+)`", values):
        if text not in ("lanes", "256KiB", "256KB"):
            kind(**given, **{field.name: yaml.safe_load(text)})
    bounds = re.search(r"([\d,]+) to ([\d,]+)", values)
    if bounds:
        low, high = (int(bound.replace(",", "")) for bound in bounds.groups())
        rule = f"an integer from {low} to {high}"
        if field.name in ("max_fraction", "rate"):
            rule = "must be"
        for value in (low - 1, high + 1):
            with pytest.raises(RecipeError, match=rule):
                kind(**given, **{field.name: value})


def test_no_key_is_stated_that_does_not_exist() -> None:
    """Every row of a table of keys is a field, and every section has its table."""
    for heading, kind in {**SECTIONS, **OPTIONS}.items():
        assert set(keys(heading)) <= {field.name.rstrip("_") for field in fields(kind)}
    sections = {field.name for field in fields(Recipe)} - set(keys("Top level"))
    assert {f"`{name}`" for name in sections} <= set(SECTIONS)


def test_the_example_is_a_recipe_that_shows_every_key(tmp_path: Path) -> None:
    """It is complete, and says in comments what is true."""
    (text,) = re.findall(r"```yaml\n(.*?)```", RECIPE, re.DOTALL)
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    recipe = load_recipe(path)
    assert recipe.dataset_names == ("web", "code", "books", "dialogues")
    assert recipe.shard_samples == 256
    assert recipe.datasets["books"].patterns == (f"{tmp_path}/data/books/*.txt",)
    for kind in SECTIONS.values():
        for field in fields(kind):
            shown = f"{field.name.rstrip('_')}:" in text
            alternatives = ("at_tokens", "pattern", "special", "content", "tokens", "loss_mask")
            is_left_out = field.name in alternatives or kind is MediaRecipe
            assert shown or is_left_out, field.name


def test_formats_and_endings_are_those_of_the_code() -> None:
    """A new format is a new row."""
    stated = {row[0].strip("`"): row[1] for row in rows(RECIPE, "Files")}
    assert set(stated) == set(FORMATS)
    for name, entry in FORMATS.items():
        assert tuple(re.findall(r"`(\.\w+)`", stated[name])) == entry.endings
    refused = dict(rows(RECIPE, "Refused in this version"))["files"]
    assert set(re.findall(r"`(\.\w+)`", refused)) == set(UNSUPPORTED_ENDINGS)


def test_the_keys_of_a_batch_are_stated_with_type_and_shape(tmp_path: Path) -> None:
    """As a reader builds them."""
    stream = write_whole_stream(tmp_path, [9, 8])
    sizes = {"mb": 3, "seq_len": stream.manifest.seq_len}
    reader = StreamReader(stream.uri, global_batch_size=3, micro_batch_size=3, fields=FIELDS)
    batch = next(reader)
    stated = {row[0].strip("`"): row[1:] for row in rows(READER, "A batch")}
    assert tuple(stated) == FIELDS
    for name, (dtype, shape, built, _meaning) in stated.items():
        assert (built == "always") == (name in DEFAULT_FIELDS)
        if dtype == "int":
            assert type(batch[name]) is int
            assert shape == ""
            continue
        accepted = "int32" if dtype == "index" else dtype
        assert batch[name].dtype.name in accepted.split(" or ")
        if name.startswith("cu_seqlens"):
            parts = "runs" if name == "cu_seqlens" else "slots"
            assert (shape, batch[name].ndim) == (f"`[{parts} + 1]`", 1)
        else:
            assert batch[name].shape == tuple(
                sizes[size] for size in re.findall(r"\w+", shape.strip("`"))
            )


def test_padding_is_a_run_of_its_own(tmp_path: Path) -> None:
    """So that the statement about attention holds."""
    stream = write_whole_stream(tmp_path, [9, 8], seed=3)
    with StreamReader(stream.uri, global_batch_size=16, micro_batch_size=16) as reader:
        batch = next(reader)
    ids = batch["segment_ids"].reshape(-1)
    inner = np.flatnonzero(np.diff(ids)) + 1
    row_starts = np.arange(0, len(ids) + 1, stream.manifest.seq_len)
    assert 0 in ids
    assert set(batch["cu_seqlens"].tolist()) >= {*inner.tolist(), *row_starts.tolist()}


def test_the_arguments_and_the_state_are_as_stated(tmp_path: Path) -> None:
    """Defaults, the eleven entries, and methods that exist."""
    stream = write_whole_stream(tmp_path, [9, 8])
    defaults = inspect.signature(StreamReader).parameters
    assert defaults["timeout"].default is None
    assert defaults["placement"].default == "by_lane"
    assert np.dtype(defaults["index_dtype"].default) == np.int32
    with StreamReader(stream.uri, global_batch_size=4, micro_batch_size=2) as reader:
        state = reader.state_dict()
        assert len(state) == 11
        assert {type(value) for value in state.values()} == {int, str, bool}
        for name in re.findall(r"`(?:reader\.)?(\w+)\(", READER):
            assert name == "StreamReader" or name == "iter" or callable(getattr(reader, name))


def test_the_reader_example_runs(tmp_path: Path) -> None:
    """As it stands, on a stream that ends, and once more from its own state."""
    stream = write_whole_stream(tmp_path, [700, 700], samples_per_shard=100)
    (code,) = re.findall(r"```python\n(.*?)```", READER, re.DOTALL)
    code = code.replace("/data/streams/web-code", str(stream.uri)).replace("% 100", "% 2")
    seen: list[Any] = []
    checkpoint: dict[str, Any] = {}
    names = {"rank": 0, "world": 2, "checkpoint": checkpoint, "train": seen.append}
    exec(compile(code, "reader.md", "exec"), names)
    assert len(seen) == 3 * 32
    assert checkpoint["data"]["next_sample"] == 1024
    exec(compile(code, "reader.md", "exec"), names)
    assert len(seen) == 4 * 32
