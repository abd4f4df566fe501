"""The pinned bytes of the golden stream, as the Beam pipeline makes them with a real tokenizer.

See `tests/golden/test_golden_core.py` for what a failure means.
"""

from pathlib import Path
from typing import Any

import pytest

from pipelines.run import run_stream
from tests.golden.write_corpus import corpus
from tests.pipelines.small_streams import tree
from zephon_beam.manifest import read_manifest
from zephon_beam.store.base import open_store
from zephon_beam.verification import verify_stream

RECIPE = Path(__file__).parents[1] / "golden" / "recipe.yaml"
FINGERPRINT = "b44d5e9ae89c85c1eb3261b69764e82f"
STREAM = "b4ade10688d1db25c3063e491bd5cad0"
TREE = {
    "shards/lane-00000/000000000.arrow": "22e3cd17b9031df5f47b704cdd2bbf48",
    "shards/lane-00000/000000001.arrow": "b6dbd022167c85c7dcae933e7a334e63",
    "shards/lane-00000/000000002.arrow": "88a8d69902a986b879d469747acf6010",
    "shards/lane-00000/000000003.arrow": "b5d885a35933e82e02ba30c371033a2e",
    "shards/lane-00001/000000000.arrow": "872b2175a9e303168e8dd807ba0b718e",
    "shards/lane-00001/000000001.arrow": "f6bfd8f8509100d8dcc0bd0a6f64b615",
    "shards/lane-00001/000000002.arrow": "b4bf6fabd00c4197f6bc14abe155409c",
    "shards/lane-00001/000000003.arrow": "a0b36e35fd6f820b6be958c52be8aff8",
    "shards/lane-00001/000000004.arrow": "06b32962b16272fa2d81528d22f75d1b",
    "shards/lane-00001/000000005.arrow": "10ba20db08a499f4dfdcf36be64d5145",
    "state/lane-00000/000000000.avro": "66d3179b9644c77bbc7f449a09d15b83",
    "state/lane-00000/000000001.avro": "07d909eff96b866f918a187fef9d05fa",
    "state/lane-00000/000000002.avro": "47af5fb4e31ce22cb28fcfd6f597e384",
    "state/lane-00000/000000003.avro": "8e3db4f0ee44bc5180da91ac5095be84",
    "state/lane-00001/000000000.avro": "7493dfecd0aafa0c18d0b3ec18e42f81",
    "state/lane-00001/000000001.avro": "bb7228971e55b7778d0e19f34ae70052",
    "state/lane-00001/000000002.avro": "a0062a06e7f91746372994067983d6c7",
    "state/lane-00001/000000003.avro": "ae4692ab29eeea5b645acad21c51d7cc",
    "state/lane-00001/000000004.avro": "d426c70ef0d1dad1cb5957dea63593e9",
    "state/lane-00001/000000005.avro": "7b2b8c7a54437d05c0541be5bee326bb",
    "end/lane-00000.json": "4c2343f51cbcbfdd5bf73a639d124c28",
    "end/lane-00001.json": "909c1338043d365dbefc192057fe019f",
}


@pytest.mark.parametrize("run_options", [{}, {"advance_bytes": 1, "drain_bytes": 1}])
def test_the_golden_stream_is_pinned(tmp_path: Path, run_options: dict[str, Any]) -> None:
    """The digest of its samples and every stored byte of its shards, lane states and ends."""
    stream = tmp_path / "s"
    facts = run_stream(RECIPE, stream, **run_options)
    assert facts["finished"]
    assert read_manifest(open_store(str(stream))).fingerprint == FINGERPRINT
    report = verify_stream(str(stream))
    assert report.faults == ()
    assert report.stream_digest == STREAM
    assert tree(stream) == TREE


def test_the_corpus_is_what_its_script_writes() -> None:
    """Nobody edits the committed files by hand."""
    folder = RECIPE.parent / "corpus"
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert found == corpus()
