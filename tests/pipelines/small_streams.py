"""A small corpus of real text, recipes over it, and byte-exact comparison of streams.

The text is that of the apache-beam package: Python modules as text files, their docstrings once as
JSON lines and once as Parquet with small row groups.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.demo_corpus import TOKENIZER_FILE, docstrings
from pipelines.recipe_file import load_recipe
from pipelines.run import run_stream
from zephon_beam.recipe import Recipe

ROOT = Path(__file__).parents[2]
LANES = 3
SEQ_LEN = 128
SHARD_SAMPLES = 16
UNTIL_SAMPLES = 240
"""What runs of the endless recipe are asked for: five shards of each lane."""
SMALL_ADVANCE = 48 * 1024
"""Source bytes an advance when a test wants several of them."""

_FILE_COUNT = 60
_LARGEST_FILE = 7_000
_DOCSTRING_COUNT = 450
_SHORTEST_DOCSTRING = 20
_FOLDERS = ("transforms", "io", "utils", "metrics", "testing", "options")

RECIPE = """
name: small
seed: 7
lanes: 3
seq_len: 128
samples_per_shard: 16
chunk_bytes: 16KiB
tokenizer: {{path: {tokenizer}}}
datasets:
  code: {{files: code/**/*.py, format: text, weight: 0.5{each}}}
  prose: {{files: prose/*.jsonl, weight: 0.3{each}}}
  rows: {{files: rows/*.parquet, text: body, weight: 0.2{each}}}
shuffle: {{interleave: 3}}
packing: {{open_bins: 8}}
"""

Tree = dict[str, str]
"""Digest of every object that may never differ, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallStream:
    """A stream that ran without interruption, and what it must always look like."""

    recipe: Path
    folder: Path
    tree: Tree
    facts: dict[str, Any]


def write_small_corpus(folder: Path) -> None:
    """Write `code/`, `prose/` and `rows/` below a folder."""
    modules = list(_modules())
    for name, source in modules[:_FILE_COUNT]:
        path = folder / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source)
    texts = [
        text
        for _, source in modules
        for _, text in docstrings(source.decode())
        if len(text) >= _SHORTEST_DOCSTRING
    ][:_DOCSTRING_COUNT]
    write_json_lines(folder / "prose", texts, files=3)
    (folder / "rows").mkdir()
    table = pa.table({"body": texts, "number": list(range(len(texts)))})
    pq.write_table(table, folder / "rows" / "all.parquet", row_group_size=40)


def write_json_lines(folder: Path, texts: Sequence[str], *, files: int) -> None:
    """Spread texts over JSON Lines files."""
    folder.mkdir(parents=True, exist_ok=True)
    for place in range(files):
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts[place::files]]
        (folder / f"part-{place}.jsonl").write_text("".join(line + "\n" for line in lines))


def write_recipe(
    path: Path, *, finite: bool = False, changes: Sequence[tuple[str, str]] = ()
) -> Path:
    """Write the recipe of the small corpus, with stretches of its text replaced."""
    text = RECIPE.format(tokenizer=TOKENIZER_FILE, each=", passes: 1" if finite else "")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)
    return path


def run(recipe: Path | Recipe, stream: Path, **options: Any) -> dict[str, Any]:
    """Run a recipe in this process, to its end unless limited."""
    return run_stream(recipe, stream, **options)


def tree(stream: Path) -> Tree:
    """Digest every object of `shards/`, `state/` and `end/`, byte by byte."""
    return {
        path.relative_to(stream).as_posix(): blake2b(path.read_bytes(), digest_size=16).hexdigest()
        for kind in ("shards", "state", "end")
        for path in sorted((stream / kind).rglob("*"))
        if path.is_file()
    }


def shard_counts(found: Mapping[str, str]) -> list[int]:
    """Return the number of shards of each lane of the small recipe."""
    folders = [f"shards/lane-{lane:05d}/" for lane in range(LANES)]
    return [sum(name.startswith(folder) for name in found) for folder in folders]


def assert_same_prefix(found: Tree, expected: Tree, until_samples: int = UNTIL_SAMPLES) -> None:
    """Compare two streams as far as both reach, which must be as far as was asked for."""
    both = [min(pair) for pair in zip(shard_counts(found), shard_counts(expected), strict=True)]
    for lane, shards in enumerate(both):
        needed = -(-(until_samples - lane) // LANES)
        assert shards * SHARD_SAMPLES >= needed, (lane, shards)
        for shard in range(shards):
            for name in (
                f"state/lane-{lane:05d}/{shard:09d}.avro",
                f"shards/lane-{lane:05d}/{shard:09d}.arrow",
            ):
                assert found[name] == expected[name], name


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a child process that finds the packages under test."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def _modules() -> list[tuple[str, bytes]]:
    """Return (name, content) of the smaller modules of some folders of apache-beam, by name."""
    spec = find_spec("apache_beam")
    assert spec is not None
    assert spec.origin is not None
    beam = Path(spec.origin).parent
    paths = [path for folder in _FOLDERS for path in sorted((beam / folder).glob("*.py"))]
    found = [(path.relative_to(beam).as_posix(), path.read_bytes()) for path in paths]
    small = [entry for entry in found if 500 <= len(entry[1]) <= _LARGEST_FILE]
    large = [entry for entry in found if len(entry[1]) > _LARGEST_FILE]
    return small[:_FILE_COUNT] + large


def load(path: Path) -> Recipe:
    """Load a recipe file."""
    return load_recipe(path)
