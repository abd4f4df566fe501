"""Building catalogs in a pipeline: the same as without one, however many files there are."""

from pathlib import Path

import pytest

from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.open_stream import open_or_create
from pipelines.options import parse_beam_options
from zephon_beam.catalog.scan import data_root, list_files, scan_file
from zephon_beam.catalog.table import build_catalog
from zephon_beam.recipe import Recipe, TokenizerRecipe
from zephon_beam.recipe_datasets import DatasetRecipe
from zephon_beam.store.base import open_store


@pytest.mark.parametrize("file_count", [1, 7, 3500])
def test_the_catalog_of_many_files_is_that_of_their_scans(tmp_path: Path, file_count: int) -> None:
    """Each file is in it once, whichever of them were scanned together."""
    for number in range(file_count):
        path = tmp_path / "data" / str(number % 10) / f"{number}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"text": "file %d"}\n' % number)
    patterns = (str(tmp_path / "data" / "**" / "*.jsonl"),)
    recipe = Recipe(
        name="many",
        lanes=1,
        chunk_bytes=16384,
        tokenizer=TokenizerRecipe(path=str(TOKENIZER_FILE)),
        datasets={"d": DatasetRecipe(files=patterns)},
    )
    opened = open_or_create(recipe, str(tmp_path / "s"), parse_beam_options([]))
    scans = [scan_file(path, "jsonl") for path in list_files(patterns)]
    expected = build_catalog("d", "jsonl", data_root(patterns), scans, chunk_bytes=16384)
    assert opened.catalogs[0].file_count == file_count
    assert open_store(str(tmp_path / "s")).get("catalog/d.arrow") == expected
