"""Streams of content and of conversations with media are the same whatever holds the documents."""

import gzip
import json
import shutil
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from pipelines.run import run_stream
from tests.clips import data_part, file_part, image_bytes, text_part
from tests.media_sources import (
    FORMATS,
    content,
    talk,
    write_documents,
    write_media,
    write_model,
)
from zephon_beam.errors import BadRecordError, RecipeError
from zephon_beam.samples import Samples
from zephon_beam.shard import decode_shard
from zephon_beam.store.base import open_store
from zephon_beam.verification import verify_stream

COUNT = 24
RECIPE = """
name: media
lanes: 1
seq_len: 160
samples_per_shard: 3
chunk_bytes: 1KiB
shuffle: {{chunks: false, documents: false, interleave: 1}}
tokenizer: {{path: {model}, eos: null}}
datasets:
  d: {{files: "{files}", {kind}: {field}, passes: 1}}
media: {{preset: qwen2_vl, num_frames: 4, min_pixels: 784, max_pixels: 6272, crop_area: 0.6}}
packing: {{open_bins: 4}}
bad_records: {{action: {action}, max_fraction: 1}}
"""
MAKE: dict[str, Any] = {"content": content, "messages": talk}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tokenizer's folder."""
    folder = tmp_path_factory.mktemp("media_model") / "model"
    write_model(folder)
    return folder


def write_recipe(
    folder: Path, model: Path, kind: str, ending: str, *, files: str = "", action: str = "fail"
) -> Path:
    """Write a recipe over the one file of a folder."""
    field = "json.doc" if ending == "tar" else "doc"
    text = RECIPE.format(
        model=model, files=files or f"data/d.{ending}", kind=kind, field=field, action=action
    )
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def write_source(folder: Path, model: Path, kind: str, ending: str) -> Path:
    """Write a data set and its recipe."""
    folder.mkdir(exist_ok=True)
    write_media(folder / "data" / "media")
    documents = [MAKE[kind](number) for number in range(COUNT)]
    write_documents(folder / "data" / f"d.{ending}", kind, documents)
    return write_recipe(folder, model, kind, ending)


def samples_of(stream: str) -> list[Samples]:
    """Decode all shards in order."""
    store = open_store(stream)
    names = sorted(store.list("shards/"))
    return [decode_shard(store.get(name), name)[1] for name in names]


def digest(pixels: Any) -> str:
    """Digest the frames of an item."""
    return blake2b(repr(pixels.shape).encode() + pixels.tobytes(), digest_size=8).hexdigest()


def rows_of(stream: str) -> list[tuple[bytes, bytes, tuple[tuple[int, str], ...]]]:
    """Return tokens, masks and placed items of each row."""
    rows = []
    for samples in samples_of(stream):
        assert samples.loss_mask is not None
        assert samples.media is not None
        media = samples.media
        for row in range(len(samples)):
            items = range(*media.offsets[row : row + 2].tolist())
            assert not media.items["media_failed"][list(items)].any()
            rows.append(
                (
                    samples.tokens[row].tobytes(),
                    samples.loss_mask[row].tobytes(),
                    tuple(
                        (
                            int(media.items["media_starts"][item]),
                            digest(media.frames(item, media.pixel_offsets)),
                        )
                        for item in items
                    ),
                )
            )
    return rows


Expected = dict[str, list[Any]]
ITEMS = {"content": 24, "messages": 32}


@pytest.fixture(scope="module")
def expected(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """Return the rows of the streams of plain lines, by what they hold."""
    rows = {}
    for kind, count in ITEMS.items():
        folder = tmp_path_factory.mktemp("media_lines")
        recipe = write_source(folder, model, kind, "jsonl")
        plain_crops(recipe)
        run_stream(recipe, folder / "stream")
        assert verify_stream(str(folder / "stream")).faults == ()
        rows[kind] = rows_of(str(folder / "stream"))
        assert sum(len(row[2]) for row in rows[kind]) == count
    return rows


def plain_crops(recipe: Path) -> None:
    """Take the crops out of a recipe: they differ by the file and place of a document."""
    recipe.write_text(recipe.read_text().replace(", crop_area: 0.6", ""))


@pytest.mark.parametrize("kind", ["content", "messages"])
@pytest.mark.parametrize("ending", [ending for ending in FORMATS if ending != "jsonl"])
def test_every_format_gives_the_stream_of_plain_lines(
    ending: str, kind: str, expected: Expected, model: Path, tmp_path: Path
) -> None:
    """Tokens, masks, places and pixels."""
    rows = expected[kind]
    recipe = write_source(tmp_path, model, kind, ending)
    plain_crops(recipe)
    run_stream(recipe, tmp_path / "stream")
    assert rows_of(str(tmp_path / "stream")) == rows
    assert verify_stream(str(tmp_path / "stream")).faults == ()


@pytest.mark.parametrize(("ending", "kind"), [("jsonl.gz", "messages"), ("avro", "content")])
def test_crops_are_found_again_in_every_format(
    ending: str, kind: str, expected: Expected, model: Path, tmp_path: Path
) -> None:
    """What probing drew is what decoding draws, or the placeholders would not fit."""
    rows = expected[kind]
    recipe = write_source(tmp_path, model, kind, ending)
    run_stream(recipe, tmp_path / "one")
    run_stream(recipe, tmp_path / "two", options=["--direct_runner_bundle_repeat=1"])
    found = rows_of(str(tmp_path / "one"))
    assert found == rows_of(str(tmp_path / "two"))
    assert sum(len(row[2]) for row in found) == sum(len(row[2]) for row in rows)
    assert [row[2] for row in found] != [row[2] for row in rows]


@pytest.mark.parametrize(
    ("ending", "kind"),
    [(ending, ("content", "messages")[place % 2]) for place, ending in enumerate(FORMATS)],
)
def test_no_format_leads_out_of_its_folder(
    ending: str, kind: str, model: Path, tmp_path: Path
) -> None:
    """By `..`, by an absolute path, by an address, and by a link."""
    (tmp_path / "data" / "media").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(image_bytes())
    (tmp_path / "data" / "link.png").symlink_to(tmp_path / "secret.png")
    paths = ["../secret.png", str(tmp_path / "secret.png"), "file:///a.png", "link.png"]
    documents: list[Any] = [[text_part("x"), file_part("image", path)] for path in paths]
    documents.append([text_part("y"), data_part("image", image_bytes(30, 30))])
    if kind == "messages":
        documents = [[{"role": "user", "content": parts}] for parts in documents]
    write_documents(tmp_path / "data" / f"d.{ending}", kind, documents)
    recipe = write_recipe(tmp_path, model, kind, ending, action="quarantine")
    run_stream(recipe, tmp_path / "stream")
    listed = [
        json.loads(line)["reason"]
        for path in (tmp_path / "stream" / "quarantine").rglob("*.probe.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert listed == ["outside"] * len(paths)
    assert sum(len(row[2]) for row in rows_of(str(tmp_path / "stream"))) == 1


@pytest.mark.parametrize("kind", ["content", "messages"])
def test_members_of_compressed_archives_are_refused(kind: str, model: Path, tmp_path: Path) -> None:
    """Before any work where every document holds items, else with the first one that does."""
    recipe = write_source(tmp_path, model, kind, "tar")
    packed = tmp_path / "data" / "d.tar.gz"
    packed.write_bytes(gzip.compress((tmp_path / "data" / "d.tar").read_bytes(), mtime=0))
    recipe.write_text(recipe.read_text().replace("data/d.tar", "data/d.tar.gz"))
    error: Any = (RecipeError, "archives must not be compressed")
    if kind == "messages":
        error = (BadRecordError, "archives that are not compressed")
    with pytest.raises(error[0], match=error[1]):
        run_stream(recipe, tmp_path / "stream")


def test_other_spellings_of_an_item_are_read(model: Path, tmp_path: Path) -> None:
    """As chat datasets have them."""
    write_media(tmp_path / "data" / "media")
    data = data_part("image", image_bytes())["base64"]
    url = f"data:image/png;base64,{data}"
    spellings: list[dict[str, Any]] = [
        {"type": "image", "path": "media/a.png"},
        {"type": "image", "image": "media/a.png"},
        {"type": "image", "image": {"bytes": None, "path": "media/a.png"}},
        {"type": "image", "image": {"bytes": data, "path": "once.png"}},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image", "url": url},
        {"type": "image", "image": url},
    ]
    talks = [[{"role": "user", "content": [part]}] for part in spellings]
    write_documents(tmp_path / "data" / "d.jsonl", "messages", talks)
    recipe = write_recipe(tmp_path, model, "messages", "jsonl")
    plain_crops(recipe)
    run_stream(recipe, tmp_path / "stream")
    items = [item for row in rows_of(str(tmp_path / "stream")) for item in row[2]]
    assert len(items) == len(spellings)
    assert len({pixels for _, pixels in items}) == 1


# The client of Google leaves the connections of answers that it does not read to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("store", "ending", "kind"),
    [
        ("gcs", "jsonl", "content"),
        ("gcs", "tar", "messages"),
        ("s3", "parquet", "messages"),
        ("s3", "jsonl.zst", "content"),
    ],
)
def test_streams_from_and_in_buckets_are_those_of_folders(
    store: str,
    ending: str,
    kind: str,
    expected: Expected,
    model: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Documents, the files they name, and the stream itself, all in a bucket."""
    rows = expected[kind]
    bucket = request.getfixturevalue(store)
    write_source(tmp_path, model, kind, ending)
    objects = open_store(f"{bucket}/data")
    for path in sorted((tmp_path / "data").rglob("*")):
        if path.is_file():
            objects.replace(path.relative_to(tmp_path / "data").as_posix(), path.read_bytes())
    shutil.rmtree(tmp_path / "data")
    recipe = write_recipe(tmp_path, model, kind, ending, files=f"{bucket}/data/*.{ending}")
    plain_crops(recipe)
    run_stream(recipe, f"{bucket}/stream")
    assert rows_of(f"{bucket}/stream") == rows
    assert verify_stream(f"{bucket}/stream").faults == ()
