"""The streams of the chaos suite: so small that a kill costs little, with objects of every kind."""

import json
import shutil
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.demo_corpus import TOKENIZER_FILE
from zephon_beam.shard import verify_shard
from zephon_beam.store.base import Store

LANES = 3
SHARD_SAMPLES = 8
_DOCUMENTS = 220
_BAD_LINES = (17, 90, 203)
_KINDS = ("shards", "state", "end", "quarantine", "catalog")
"""Folders whose objects are the same whatever happened on the way."""

_RECIPE = """
name: chaos
seed: 3
lanes: 3
seq_len: 48
samples_per_shard: 8
chunk_bytes: 1KiB
tokenizer: {{path: tokenizer.json}}
datasets:
  lines: {{files: lines/*.jsonl, weight: 0.6{each}}}
  rows: {{files: rows/*.parquet, text: body, weight: 0.4{each}}}
shuffle: {{interleave: 2}}
packing: {{open_bins: 4}}
bad_records: {{action: quarantine, max_fraction: 0.1}}
"""


def write_recipe(folder: Path, *, finite: bool) -> Path:
    """Write sources and a recipe over them into an empty folder; return the recipe."""
    for name in ("lines", "rows"):
        (folder / name).mkdir(parents=True)
    texts = [
        f"Document {number}: " + " ".join(f"word{number * n % 23}" for n in range(number % 37))
        for number in range(_DOCUMENTS)
    ]
    for place in range(3):
        lines = [
            '{"text": broken}\n' if number in _BAD_LINES else json.dumps({"text": text}) + "\n"
            for number, text in list(enumerate(texts))[place::3]
        ]
        (folder / f"lines/{place}.jsonl").write_text("".join(lines))
    table = pa.table({"body": [text.upper() for text in texts]})
    pq.write_table(table, folder / "rows/all.parquet", row_group_size=30)
    shutil.copy(TOKENIZER_FILE, folder / "tokenizer.json")
    recipe = folder / "recipe.yaml"
    recipe.write_text(_RECIPE.format(each=", passes: 1" if finite else ""))
    return recipe


def tree(store: Store, kinds: Iterable[str] = _KINDS) -> dict[str, str]:
    """Digest every object of some folders, byte by byte."""
    return {
        name: blake2b(store.get(name), digest_size=16).hexdigest()
        for kind in kinds
        for name in store.list(f"{kind}/")
    }


def digests(store: Store) -> dict[str, str]:
    """Name the content of every shard, whatever its codec: that of a bucket may be another one."""
    return {name: verify_shard(store.get(name), name).digest for name in store.list("shards/")}


def stray_files(folder: Path) -> list[Path]:
    """Return the temporary files below a folder."""
    return list(folder.rglob(".tmp-*"))
