"""The pinned golden stream with images and videos.

Tokens, masks, places and sizes hold for all libraries. Pixels, and with them every stored byte,
hold for the libraries of `constraints.txt`: others decode otherwise, and make another stream.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.run import run_stream
from tests.golden.write_media_corpus import documents, lines
from tests.pipelines.small_streams import tree
from tests.pipelines.test_media_sources import samples_of
from transforms.media.libraries import library_versions
from zephon_beam.inspection import inspect_stream
from zephon_beam.manifest import read_manifest
from zephon_beam.store.base import open_store
from zephon_beam.verification import verify_stream

FOLDER = Path(__file__).parents[1] / "golden" / "media"
GEOMETRY = ("media_starts", "media_lengths", "media_kinds", "media_frames", "media_heights")


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the golden stream, made by these libraries."""
    stream = tmp_path_factory.mktemp("golden_media") / "s"
    assert run_stream(FOLDER / "recipe.yaml", stream)["finished"]
    return stream


def pinned_libraries_only() -> None:
    """Skip a test of pixels where other libraries decode."""
    found = library_versions()
    if found != LIBRARIES:
        pytest.skip(f"pixels are pinned for {LIBRARIES}; here decode {found}")


def digest(*arrays: Any) -> str:
    """Digest arrays and their shapes."""
    found = blake2b(digest_size=8)
    for array in arrays:
        found.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def test_tokens_and_geometry_are_pinned_for_all_libraries(stream: Path) -> None:
    """What probing learns comes from headers alone, and everything else from the core."""
    found = []
    for samples in samples_of(str(stream)):
        media = samples.media
        assert media is not None
        assert samples.loss_mask is not None
        places = [media.items[name].astype(np.int64) for name in GEOMETRY]
        found.append(
            (
                digest(samples.tokens.astype(np.int64), samples.loss_mask),
                digest(media.offsets, *places, media.items["media_widths"], media.grids),
            )
        )
    assert found == ROWS
    facts = inspect_stream(str(stream))["datasets"]
    counted = {name: (fact["tokens"], fact["truncated_tokens"]) for name, fact in facts.items()}
    assert counted == COUNTS


def test_pixels_and_every_stored_byte_are_pinned(stream: Path) -> None:
    """With the libraries of `constraints.txt`."""
    pinned_libraries_only()
    assert read_manifest(open_store(str(stream))).fingerprint == FINGERPRINT
    report = verify_stream(str(stream))
    assert report.faults == ()
    assert report.stream_digest == STREAM
    assert tree(stream) == TREE


def test_small_advances_make_the_same_golden_stream(stream: Path, tmp_path: Path) -> None:
    """Whatever the libraries."""
    run_stream(FOLDER / "recipe.yaml", tmp_path / "s", advance_bytes=1, drain_bytes=1)
    assert tree(tmp_path / "s") == tree(stream)


def test_the_documents_are_what_their_script_writes() -> None:
    """Nobody edits the committed files by hand; what encoders made is kept as it is."""
    for name, records in documents().items():
        assert (FOLDER / f"{name}.jsonl").read_bytes() == lines(records)


LIBRARIES = (
    "av 17.1.0, libavcodec 62.28.101, libavformat 62.12.101, "
    "libavutil 60.26.101, libswscale 9.5.101, pillow 12.3.0, "
    "libjpeg_turbo 3.1.4.1, webp 1.6.0, zlib 1.2.13, "
    "libtiff 4.7.1"
)
FINGERPRINT = "7d51ca01489ea16d324f97e19948f4eb"
STREAM = "370ef0eacf9442f5e7ba1eff22d7b65b"
COUNTS = {"parts": (704, 0), "talks": (1470, 98)}
ROWS = [
    ("7120b591b9a22086", "3ed9e30dd211f56d"),
    ("0aaaf41ad1cc216b", "da9e6f372de07e28"),
    ("821e65322d22c391", "4d557ec37ac64601"),
    ("f250bd72443a9cfa", "fe6b58cd1bc6e86b"),
    ("6ee455a238aa5555", "daac8ba5e6cbce09"),
    ("d6601c6d870bb475", "ffc8964643129c11"),
    ("086b1c573956fdee", "037e6b4d43f10d6b"),
    ("09f7ead9f32f6466", "41845c136bcb362c"),
]
TREE = {
    "shards/lane-00000/000000000.arrow": "0967a50790d3f0fe355c5e5c977b376f",
    "shards/lane-00000/000000001.arrow": "573dbe0c5a0f9222df54aa644605740f",
    "shards/lane-00000/000000002.arrow": "ea5e17bbc9f27d4051bb7e6ce1e9bb51",
    "shards/lane-00001/000000000.arrow": "fb517f13815fc676aaf7c2ff4df162ba",
    "shards/lane-00001/000000001.arrow": "dcd8d23af95de60ce3b7de9edb3549f7",
    "shards/lane-00001/000000002.arrow": "e3f85bb280e3087beea8aef4bb641ed6",
    "shards/lane-00001/000000003.arrow": "ec86267fdbdfcd4e7ed9a223d186176c",
    "shards/lane-00001/000000004.arrow": "8882ee8550e7afaf3e51dbcd4cdf3d76",
    "state/lane-00000/000000000.avro": "d957faaf716c2c094726f7a9a0bdce19",
    "state/lane-00000/000000001.avro": "3b23569c4e1ff99471e6cbdde8979acb",
    "state/lane-00000/000000002.avro": "9789e150370f6a28c83e020cdd692203",
    "state/lane-00001/000000000.avro": "206e80f735ba3ef21ab610d32aa806ff",
    "state/lane-00001/000000001.avro": "3e0c588e5177f9ce4f80f7ffbd0302fb",
    "state/lane-00001/000000002.avro": "5c2834f9d43feda7931ab5999e912eae",
    "state/lane-00001/000000003.avro": "537761bc48ddb3c4b7848158f60b8849",
    "state/lane-00001/000000004.avro": "ed20fcb6affdcea89aabbec1d02068fd",
    "end/lane-00000.json": "66cfaee416e5ae7bdc02919c2ad759d8",
    "end/lane-00001.json": "14047a32c5240a9af90187a8f61f2cd2",
}
