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
STREAM = "072988cd30711a8b08f0ee46801d72f9"
TREE = {
    "shards/lane-00000/000000000.arrow": "8c3d5b92eb49ce7871679e955f78e90f",
    "shards/lane-00000/000000001.arrow": "bfdddb3dd1cf3fd29e7949b3330ec0df",
    "shards/lane-00000/000000002.arrow": "bc836126485c84a4e91325a83b0930a7",
    "shards/lane-00000/000000003.arrow": "2910c8a71e16b13f47a13fd0b83846f9",
    "shards/lane-00001/000000000.arrow": "7e5720d1a39dd0b166c17d2d7ca03661",
    "shards/lane-00001/000000001.arrow": "ba57d703d870295822570961e32bdf4c",
    "shards/lane-00001/000000002.arrow": "032c07137d897da8de408bb21053f713",
    "shards/lane-00001/000000003.arrow": "4bfd3269937b0b5b336dbb88c77de740",
    "shards/lane-00001/000000004.arrow": "d04ab73903435e5d56425907545727e4",
    "shards/lane-00001/000000005.arrow": "e13bb6b9c38ff1536f6969f6a8ec77e0",
    "state/lane-00000/000000000.avro": "6af699da8221d55276bb3e49737e2f30",
    "state/lane-00000/000000001.avro": "50987d17fd691d86622ea3398e4a05b7",
    "state/lane-00000/000000002.avro": "c428acf76b99af038957f78dcc946c6a",
    "state/lane-00000/000000003.avro": "dab2f7093bba069721818466b80552a1",
    "state/lane-00001/000000000.avro": "250ee16da5aaf5701c282b28a7923bdf",
    "state/lane-00001/000000001.avro": "60ee853f5ab7d0fa892bc1337a1bb53b",
    "state/lane-00001/000000002.avro": "5bf39dc14e1417855a0e53c659708532",
    "state/lane-00001/000000003.avro": "f8a78627c9ebe5e6b93fcfe4d32b98f7",
    "state/lane-00001/000000004.avro": "203d0bec3964a3e37882c82786e50ddd",
    "state/lane-00001/000000005.avro": "187d814208829d33b3439bf14e79e6da",
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
