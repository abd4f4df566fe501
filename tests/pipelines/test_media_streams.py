"""Whole streams of documents with images and videos, through pipelines and readers."""

import base64
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.advance import build_advance
from pipelines.recipe_file import load_recipe
from pipelines.run import run_stream
from tests.clips import (
    data_part,
    file_part,
    image_bytes,
    media_tokenizer,
    text_part,
    write_clip,
)
from tests.pipelines.small_streams import tree
from transforms import decode_media, probe_media
from transforms.media import documents as media_documents
from transforms.stream_job import StreamJob
from zephon_beam.errors import BadRecordError, DriftError, RecipeError
from zephon_beam.inspection import inspect_stream
from zephon_beam.plan import Plan
from zephon_beam.reader.media import MEDIA_FIELDS
from zephon_beam.reader.stream_reader import StreamReader
from zephon_beam.samples import Samples
from zephon_beam.shard import decode_shard
from zephon_beam.verification import verify_stream

DOCUMENTS = 60
ITEMS = 2 * (15 + 15) + 15 + 2 * (10 + 10) + 10 + 12 + 8 * 3

RECIPE = """
name: media
seed: 3
lanes: 2
seq_len: 128
samples_per_shard: 4
chunk_bytes: 1KiB
shuffle: {interleave: 1}
tokenizer: {path: tokenizer.json}
datasets:
  lines: {files: lines/*.jsonl, content: parts, weight: 0.5, passes: 1}
  rows: {files: rows/*.parquet, content: parts, weight: 0.3, passes: 1}
  pairs: {files: pairs/*.tar, content: jpg+txt, weight: 0.2, passes: 1}
  lists: {files: lists/*.tar, content: json.parts, weight: 0.2, passes: 1}
  plain: {files: plain/*.jsonl, weight: 0.2, passes: 1}
media: {preset: qwen2_vl, num_frames: 4, min_pixels: 784, max_pixels: 6272}
packing: {open_bins: 4}
"""


def document(number: int) -> list[dict[str, Any]]:
    """Return the parts of a document; some have no media, some have several items in a row."""
    parts: list[dict[str, Any]] = [text_part(f"Document {number} shows")]
    if number % 4 == 0:
        parts += [file_part("image", "media/a.png"), text_part(" before ")]
        parts += [file_part("video", f"media/{number % 3}.mp4")]
    if number % 4 == 1:
        parts += [file_part("video", "media/turned.mp4"), file_part("image", "media/b.jpg")]
    if number % 4 == 2:
        parts.insert(0, data_part("image", image_bytes(30 + number, 44, seed=number)))
    return [*parts, text_part(" and no more.")]


def write_corpus(folder: Path) -> Path:
    """Write data sets of lines and rows below one folder, with the files that they name."""
    for name in ("lines", "rows", "plain"):
        (folder / name).mkdir(parents=True)
        write_media(folder / name / "media")
    for file in range(2):
        parts = (document(number) for number in range(file, DOCUMENTS, 2))
        lines = [json.dumps({"id": 1, "parts": part}) + "\n" for part in parts]
        (folder / "lines" / f"{file}.jsonl").write_text("".join(lines))
    write_rows(folder / "rows" / "0.parquet", [document(number) for number in range(40)])
    write_archive(folder / "pairs" / "0.tar", [pair(number) for number in range(12)])
    write_archive(folder / "lists" / "0.tar", [sample(number) for number in range(8)])
    texts = [json.dumps({"text": f"Plain text number {number}. " * 9}) for number in range(30)]
    (folder / "plain" / "0.jsonl").write_text("\n".join(texts))
    media_tokenizer(folder / "tokenizer.json")
    return write_recipe(folder)


def pair(number: int) -> dict[str, bytes]:
    """Return the members of a sample: an image, its text, and something else."""
    image = image_bytes(40 + number, 60, seed=number, kind="JPEG")
    return {"jpg": image, "cls": b"7", "txt": f"A picture of {number}".encode()}


def sample(number: int) -> dict[str, bytes]:
    """Return the members of a sample whose parts are listed."""
    parts = [
        {"type": "video", "member": "mp4"},
        text_part(f"is sample {number} and "),
        {"type": "image", "member": "left.PNG"},
        data_part("image", image_bytes(29, 31)),
    ]
    clip = Path(tempfile.mkdtemp()) / "a.mp4"
    return {
        "json": json.dumps({"parts": parts}).encode(),
        "left.png": image_bytes(30, 50 + number),
        "mp4": write_clip(clip, frames=5 + number, b_frames=0).read_bytes(),
    }


def write_archive(path: Path, samples: Sequence[dict[str, bytes]]) -> None:
    """Write samples as a tar archive."""
    path.parent.mkdir()
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for number, members in enumerate(samples):
            for name, body in members.items():
                member = tarfile.TarInfo(f"folder/{number:04d}ü.{name}")
                member.size = len(body)
                archive.addfile(member, io.BytesIO(body))


def write_media(folder: Path) -> None:
    """Write the files that documents name."""
    folder.mkdir()
    for number in range(3):
        write_clip(folder / f"{number}.mp4", frames=8 + number, height=40 + 20 * number)
    write_clip(folder / "turned.mp4", rotation=90, height=32, width=80, frames=7)
    (folder / "a.png").write_bytes(image_bytes())
    (folder / "b.jpg").write_bytes(image_bytes(90, 70, kind="JPEG"))


def write_rows(path: Path, documents: Sequence[list[dict[str, Any]]]) -> None:
    """Write documents as structs, with bytes where lines have base64."""
    kind = pa.struct(
        [(n, pa.string()) for n in ("type", "text", "path")] + [("bytes", pa.binary())]
    )
    rows = []
    for parts in documents:
        plain = [{k: v for k, v in part.items() if k != "base64"} for part in parts]
        for part, source in zip(plain, parts, strict=True):
            if "base64" in source:
                part["bytes"] = base64.b64decode(source["base64"])
        rows.append(plain)
    table = pa.table({"parts": pa.array(rows, pa.list_(kind))})
    pq.write_table(table, path, row_group_size=15)


def write_recipe(folder: Path, *changes: tuple[str, str], name: str = "recipe.yaml") -> Path:
    """Write the recipe with some texts replaced."""
    text = RECIPE
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return folder / name


def shards(stream: Path) -> list[Samples]:
    """Decode every shard, lane by lane."""
    names = sorted((stream / "shards").rglob("*.arrow"))
    return [decode_shard(name.read_bytes(), name.name)[1] for name in names]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the recipe of a small corpus; tests must not change it."""
    return write_corpus(tmp_path_factory.mktemp("media_corpus"))


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the stream of the corpus, computed in one advance."""
    stream = tmp_path_factory.mktemp("media_stream") / "stream"
    assert run_stream(corpus, stream)["finished"]
    return stream


@pytest.mark.parametrize(
    "options",
    [
        ["--direct_runner_bundle_repeat=1"],
        ["--direct_running_mode=multi_threading", "--direct_num_workers=2"],
        ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
    ],
    ids=["replayed", "threads", "processes"],
)
def test_workers_and_replays_do_not_move_a_byte(
    options: list[str], corpus: Path, whole: Path, tmp_path: Path
) -> None:
    """Pixels included."""
    run_stream(corpus, tmp_path / "stream", options=options)
    assert tree(tmp_path / "stream") == tree(whole)


def test_cuts_into_runs_and_advances_do_not_move_a_byte(
    corpus: Path, whole: Path, tmp_path: Path
) -> None:
    """Runs that stop early, and advances of few bytes."""
    stream = tmp_path / "stream"
    for until in (1, 9, 17, 25):
        run_stream(corpus, stream, until_samples=until, advance_bytes=1024)
    facts = run_stream(corpus, stream, advance_bytes=1024)
    assert facts["finished"]
    assert len(list((stream / "advances").iterdir())) > 2
    assert tree(stream) == tree(whole)


def test_the_stream_verifies_and_counts_every_token(whole: Path) -> None:
    """Media columns belong to the digests."""
    assert verify_stream(str(whole)).faults == ()
    facts = inspect_stream(str(whole))
    assert facts["datasets"]["lines"]["documents"] == DOCUMENTS
    assert facts["datasets"]["lines"]["dropped_tokens"] == 0


def test_every_item_stands_at_its_placeholders(whole: Path) -> None:
    """In every row: as many placeholders as the grid says, of the right kind, and no others."""
    placeholders = {0: 8192, 1: 8193}
    count = 0
    for samples in shards(whole):
        media = samples.media
        assert media is not None
        seen = np.zeros(samples.tokens.shape, bool)
        for row in range(len(samples)):
            for item in range(int(media.offsets[row]), int(media.offsets[row + 1])):
                facts = {name: int(values[item]) for name, values in media.items.items()}
                time, tall, wide = media.grids[item].tolist()
                start, length = facts["media_starts"], facts["media_lengths"]
                assert length == time * (tall // 2) * (wide // 2)
                assert time == -(-facts["media_frames"] // 2)
                assert (tall * 14, wide * 14) == (facts["media_heights"], facts["media_widths"])
                tokens = samples.tokens[row, start : start + length]
                assert set(tokens.tolist()) == {placeholders[facts["media_kinds"]]}
                assert samples.tokens[row, start - 1] == 8194
                assert samples.tokens[row, start + length] == 8195
                seen[row, start : start + length] = True
                frames = media.frames(item, media.pixel_offsets)
                assert frames.any(axis=(1, 2, 3)).all()
                count += 1
        assert np.array_equal(seen, np.isin(samples.tokens, list(placeholders.values())))
    assert count == ITEMS


def test_pixels_are_those_of_the_document_of_the_segment(corpus: Path, whole: Path) -> None:
    """Whoever reads the record again by its locator finds the same frames."""
    media = load_recipe(corpus).media
    assert media is not None
    root = corpus.parent / "lines"
    expected = {}
    for file in range(2):
        offset = 0
        for line in (root / f"{file}.jsonl").read_bytes().splitlines(keepends=True):
            parts = json.dumps(json.loads(line)["parts"])
            decoded = media_documents.decode_document(parts, str(root), media)
            expected[file, offset] = [item.pixels for item in decoded]
            offset += len(line)
    checked = 0
    for samples in shards(whole):
        found = samples.media
        assert found is not None
        segments = samples.segments
        rows = np.repeat(np.arange(len(samples)), np.diff(samples.segment_offsets))
        for segment in np.flatnonzero(segments["source_dataset"] == 0).tolist():
            row = rows[segment]
            start = segments["segment_starts"][segment]
            stop = start + segments["segment_lengths"][segment]
            own = [
                item
                for item in range(int(found.offsets[row]), int(found.offsets[row + 1]))
                if start <= found.items["media_starts"][item] < stop
            ]
            source = segments["source_file"][segment], segments["source_document"][segment]
            wanted = expected[int(source[0]), int(source[1])]
            assert len(own) == len(wanted)
            for item, pixels in zip(own, wanted, strict=True):
                assert np.array_equal(found.frames(item, found.pixel_offsets), pixels)
                checked += 1
    assert checked == 15 * 5


def test_pixels_of_members_are_those_of_the_archive(corpus: Path, whole: Path) -> None:
    """Each by its place in the archive, whatever the sample's name."""
    media = load_recipe(corpus).media
    assert media is not None
    part = {"type": "image", "path": "a"}
    expected = set()
    for number in range(12):
        (corpus.parent / "pairs" / "a").write_bytes(pair(number)["jpg"])
        decoded = media_documents.decode_document(
            json.dumps([part]), str(corpus.parent / "pairs"), media
        )
        expected.add(decoded[0].pixels.tobytes())
    found = set()
    for samples in shards(whole):
        columns = samples.media
        assert columns is not None
        segments = samples.segments
        rows = np.repeat(np.arange(len(samples)), np.diff(samples.segment_offsets))
        for segment in np.flatnonzero(segments["source_dataset"] == 2).tolist():
            start = segments["segment_starts"][segment]
            stop = start + segments["segment_lengths"][segment]
            own = range(*columns.offsets[rows[segment] : rows[segment] + 2].tolist())
            for item in own:
                if start <= columns.items["media_starts"][item] < stop:
                    found.add(columns.frames(item, columns.pixel_offsets).tobytes())
    assert found == expected


def test_placeholders_are_not_learned(whole: Path) -> None:
    """Neither are the tokens around them; every other token of a document is, but the first."""
    for samples in shards(whole):
        mask = samples.loss_mask
        assert mask is not None
        following = np.roll(samples.tokens, -1, axis=1)
        of_media = np.isin(following, [8192, 8193, 8194, 8195])
        expected = np.zeros(mask.shape, np.uint8)
        rows = np.repeat(np.arange(len(samples)), np.diff(samples.segment_offsets))
        starts, lengths = (samples.segments[f"segment_{n}"] for n in ("starts", "lengths"))
        for row, start, length in zip(rows, starts, lengths, strict=True):
            expected[row, start : start + length - 1] = 1
        expected[of_media] = 0
        assert np.array_equal(mask, expected)


def test_readers_of_any_world_give_the_same_items(whole: Path) -> None:
    """Positions lead to the placeholders of each item, and each has its frames."""
    fields = ("input_ids", "sample_ids", *MEDIA_FIELDS)
    by_sample: dict[int, list[bytes]] = {}
    for world, size in ((1, 4), (1, 1), (2, 2), (3, 1)):
        found: dict[int, list[bytes]] = {}
        for rank in range(world):
            with StreamReader(
                str(whole),
                global_batch_size=6,
                micro_batch_size=size,
                dp_rank=rank,
                dp_world_size=world,
                fields=fields,
            ) as reader:
                for batch in reader:
                    collect(batch, found)
        by_sample = by_sample or found
        assert found == by_sample
    assert sum(map(len, by_sample.values())) == ITEMS


def collect(batch: dict[str, Any], found: dict[int, list[bytes]]) -> None:
    """Check a batch against itself and note the items of each sample."""
    positions, tokens = batch["media_positions"], batch["media_cu_tokens"]
    flat = batch["input_ids"].reshape(-1)
    assert np.array_equal(np.flatnonzero(np.isin(flat, [8192, 8193])), positions)
    assert tokens[-1] == len(positions)
    assert batch["media_cu_frames"][-1] == sum(len(p) for p in batch["pixel_values"])
    assert not batch["media_failed"].any()
    for item, pixels in enumerate(batch["pixel_values"]):
        time, tall, wide = batch["media_grid_thw"][item].tolist()
        assert pixels.shape[1:] == (14 * tall, 14 * wide, 3)
        own = positions[tokens[item] : tokens[item + 1]]
        assert len(own) == time * tall * wide // 4
        assert set(flat[own].tolist()) == {8192 + int(batch["media_kinds"][item])}
        row = int(own[0]) // batch["input_ids"].shape[1]
        found.setdefault(int(batch["sample_ids"][row]), []).append(pixels.tobytes())


def test_pixels_cross_no_shuffle(corpus: Path, whole: Path) -> None:
    """With several workers every shuffle lies before `DecodeMedia`, which only feeds the writer."""
    recipe = load_recipe(corpus)
    job = StreamJob(stream=str(whole), advance=0, recipe=recipe, roots=("",) * 5)
    pipeline = beam.Pipeline(runner="FnApiRunner")
    plan = Plan(advance=0, fingerprint="", lanes=())
    build_advance(pipeline, job, plan, parallel=True, drain_bytes=1)
    steps: list[str] = []

    class Names(beam.pipeline.PipelineVisitor):
        """Notes the steps in the order of the graph."""

        def visit_transform(self, node: Any) -> None:
            steps.append(node.full_label)

    pipeline.visit(Names())
    names = list(dict.fromkeys(step.split("/")[0] for step in steps))
    assert names[-2:] == ["DecodeMedia", "WriteShards"]
    assert names.index("ProbeMedia") < names.index("TokenizeDocuments")
    decode = next(i for i, step in enumerate(steps) if step.startswith("DecodeMedia"))
    behind = steps[decode:]
    assert not [step for step in behind if "Group" in step or "Shuffle" in step]
    before = [step for step in steps[:decode] if step.startswith("SpreadShards")]
    assert before


_WITHOUT = """
import sys
sys.modules["av"] = sys.modules["PIL"] = None
from pipelines.run import run_stream
from zephon_beam.errors import RecipeError
folder = sys.argv[1]
assert run_stream(f"{folder}/text.yaml", f"{folder}/text")["finished"]
try:
    run_stream(f"{folder}/recipe.yaml", f"{folder}/media")
except RecipeError as error:
    print(error)
"""


def test_text_needs_no_decoders_and_media_say_what_they_need(tmp_path: Path) -> None:
    """The extra `video` is for recipes with media alone."""
    recipe = small(tmp_path, [document(0)])
    (tmp_path / "lines" / "0.txt").write_text("Some text.")
    text = recipe.read_text().replace("lines/*.jsonl, content: parts", "lines/*.txt, format: text")
    text = "".join(line for line in text.splitlines(keepends=True) if line[:6] != "media:")
    (tmp_path / "text.yaml").write_text(text)
    command = [sys.executable, "-c", _WITHOUT, str(tmp_path)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "media must be decoded by PyAV and Pillow, which are not installed" in found.stdout
    assert "extra `video`" in found.stdout


def test_text_streams_have_neither_stage(tmp_path: Path, corpus: Path) -> None:
    """What has no media pays nothing, and its shards have no media columns."""
    folder = corpus.parent
    text = RECIPE[: RECIPE.index("  lines")] + "  plain: {files: plain/*.jsonl, passes: 1}\n"
    (folder / "text.yaml").write_text(text)
    run_stream(folder / "text.yaml", tmp_path / "stream")
    assert all(samples.media is None for samples in shards(tmp_path / "stream"))
    with pytest.raises(RecipeError, match="fields must be of a stream with media"):
        StreamReader(
            str(tmp_path / "stream"),
            global_batch_size=1,
            micro_batch_size=1,
            fields=["pixel_values"],
        )


# ------------------------------------------------------------------------------------------ faults


def small(folder: Path, documents: Sequence[Any], *changes: tuple[str, str]) -> Path:
    """Write a recipe over one file of documents."""
    (folder / "lines").mkdir()
    write_media(folder / "lines" / "media")
    lines = [json.dumps({"parts": parts}) + "\n" for parts in documents]
    (folder / "lines" / "0.jsonl").write_text("".join(lines))
    media_tokenizer(folder / "tokenizer.json")
    rest = [
        (line + "\n", "")
        for line in RECIPE.splitlines()
        if line.startswith(("  rows", "  p", "  lists"))
    ]
    return write_recipe(folder, *rest, ("lanes: 2", "lanes: 1"), *changes)


QUARANTINE = ("packing:", "bad_records: {action: quarantine, max_fraction: 1}\npacking:")


def bad_documents(folder: Path) -> dict[str, list[Any]]:
    """Return documents that can never be used, by the reason."""
    (folder / "secret.png").write_bytes(image_bytes())
    inner = folder / "lines" / "media"
    (inner / "link.png").symlink_to(folder / "secret.png")
    (inner / "junk.mp4").write_bytes(bytes(9000))
    (inner / "empty.mp4").write_bytes(b"")
    return {
        "outside": [file_part("image", "media/link.png")],
        "missing": [file_part("image", "media/none.png")],
        "video": [file_part("video", "media/junk.mp4")],
        "image": [file_part("image", "media/empty.mp4")],
        "shape": [data_part("image", image_bytes(1, 300))],
        "content": [{"type": "audio", "path": "media/a.png"}],
    }


def test_bad_items_are_set_aside_and_move_nothing_else(tmp_path: Path) -> None:
    """The stream is that of empty documents in their place; each is listed with its reason."""
    good = [document(number) for number in range(20)]
    recipe = small(tmp_path, good, QUARANTINE)
    bad = bad_documents(tmp_path)
    mixed = [*good[:10], *bad.values(), *good[10:]]
    lines = [json.dumps({"parts": parts}) + "\n" for parts in mixed]
    (tmp_path / "lines" / "0.jsonl").write_text("".join(lines))
    run_stream(recipe, tmp_path / "stream")
    found = [
        json.loads(line)
        for path in sorted((tmp_path / "stream" / "quarantine").rglob("*.probe.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert sorted(entry["reason"] for entry in found) == sorted(bad)
    facts = inspect_stream(str(tmp_path / "stream"))
    assert facts["datasets"]["lines"]["quarantined"] == len(bad)
    assert sum(int(s.media.offsets[-1]) for s in shards(tmp_path / "stream") if s.media) == 25
    assert verify_stream(str(tmp_path / "stream")).faults == ()


def test_the_first_bad_item_ends_a_run_that_sets_none_aside(tmp_path: Path) -> None:
    """And is named with its document and file."""
    recipe = small(tmp_path, [document(0), [file_part("image", "media/none.png")]])
    with pytest.raises(BadRecordError, match=r"0\.jsonl', document at \d+: part 0 \(media/none"):
        run_stream(recipe, tmp_path / "stream")


def late_damage(path: Path) -> None:
    """Spoil the last key frame of a clip, which probing does not look at."""
    write_clip(path, frames=18, key_frames=6, b_frames=0)
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        last = [p for p in container.demux(video=0) if p.size and p.is_keyframe][-1]
        data[last.pos : last.pos + last.size] = bytes(last.size)
    path.write_bytes(data)


def test_a_clip_that_fails_late_is_masked_and_shifts_nothing(tmp_path: Path) -> None:
    """Tokens, order and all other pixels are those of the stream with the whole clip."""
    documents = [document(number) for number in range(16)]
    recipe = small(tmp_path, documents, QUARANTINE)
    clip = tmp_path / "lines" / "media" / "0.mp4"
    write_clip(clip, frames=18, key_frames=6, b_frames=0)
    run_stream(recipe, tmp_path / "whole")
    late_damage(clip)
    run_stream(recipe, tmp_path / "damaged")
    entries = [
        json.loads(line)
        for path in sorted((tmp_path / "damaged" / "quarantine" / "decode").iterdir())
        for line in path.read_text().splitlines()
    ]
    # Documents 0 and 12 show the clip.
    assert len(entries) == 2
    assert {entry["file"] for entry in entries} == {"0.jsonl"}
    assert {entry["reason"] for entry in entries} <= {"decode", "video"}
    failed = 0
    for old, new in zip(shards(tmp_path / "whole"), shards(tmp_path / "damaged"), strict=True):
        assert np.array_equal(old.tokens, new.tokens)
        assert old.media is not None
        assert new.media is not None
        assert old.loss_mask is not None
        assert new.loss_mask is not None
        masked = np.zeros(new.tokens.shape, bool)
        rows = np.repeat(np.arange(len(new)), np.diff(new.segment_offsets))
        for item, bad in enumerate(new.media.items["media_failed"].tolist()):
            frames = [m.frames(item, m.pixel_offsets) for m in (old.media, new.media)]
            assert not frames[1].any() if bad else np.array_equal(*frames)
            failed += bad
            row = int(np.searchsorted(new.media.offsets, item, side="right")) - 1
            for segment in np.flatnonzero(rows == row).tolist() if bad else ():
                start = int(new.segments["segment_starts"][segment])
                stop = start + int(new.segments["segment_lengths"][segment])
                masked[row, start:stop] |= start <= new.media.items["media_starts"][item] < stop
        assert np.array_equal(new.loss_mask, np.where(masked, 0, old.loss_mask))
    assert failed == 2
    assert verify_stream(str(tmp_path / "damaged")).faults == ()


def test_a_clip_that_fails_late_ends_a_run_that_sets_none_aside(tmp_path: Path) -> None:
    """Nothing is trained on black frames unasked."""
    recipe = small(tmp_path, [document(0)])
    late_damage(tmp_path / "lines" / "media" / "0.mp4")
    with pytest.raises(BadRecordError, match="passed probing and cannot be decoded"):
        run_stream(recipe, tmp_path / "stream")


def test_documents_longer_than_a_row_are_dropped_whole(tmp_path: Path) -> None:
    """Whatever `packing.overlong` says: a cut could fall among placeholders."""
    long = [text_part("word " * 200), file_part("image", "media/a.png")]
    for overlong in ("split", "truncate"):
        folder = tmp_path / overlong
        folder.mkdir()
        change = ("open_bins: 4", f"open_bins: 4, overlong: {overlong}")
        recipe = small(folder, [document(0), long, document(1)], change)
        run_stream(recipe, folder / "stream")
        facts = inspect_stream(str(folder / "stream"))["datasets"]["lines"]
        assert facts["dropped_tokens"] > 200
        assert facts["truncated_tokens"] == 0
        assert sum(int(s.media.offsets[-1]) for s in shards(folder / "stream") if s.media) == 4


def test_text_that_the_tokenizer_takes_for_a_placeholder_is_a_fault(tmp_path: Path) -> None:
    """A placeholder must stand for pixels; text of a special token stays text."""
    recipe = small(tmp_path, [[text_part("An <|image_pad|> in text"), *document(0)]])
    run_stream(recipe, tmp_path / "stream")
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    for token in content["added_tokens"]:
        token["special"] = token["special"] and token["content"] != "<|image_pad|>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(BadRecordError, match="text must hold no placeholder"):
        run_stream(recipe, tmp_path / "other")


def test_other_libraries_are_refused(
    tmp_path: Path, whole: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By who opens the stream, with the version that it was created with."""
    del tmp_path
    monkeypatch.setattr(av, "__version__", "18.0.0")
    with pytest.raises(DriftError, match=r"media libraries: expected av 17.*found av 18"):
        run_stream(corpus, whole)


@pytest.mark.parametrize("stage", [probe_media._ProbeParts, decode_media._DecodeShards])
def test_a_worker_with_other_libraries_does_not_start(
    stage: Any, corpus: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines of a cluster may differ from the one that launches."""
    job = StreamJob(stream=str(whole), advance=0, recipe=load_recipe(corpus), roots=("",) * 5)
    stage(job).setup()
    monkeypatch.setattr(av, "__version__", "18.0.0")
    with pytest.raises(DriftError, match="media libraries: expected av 17"):
        stage(job).setup()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([("open_bins: 4", "method: concat")], "packing.method must be best_fit or first_fit"),
        ([("open_bins: 4", "method: best_fit_split")], "packing.method must be best_fit or"),
        ([("path: tokenizer.json", "path: tokenizer.json, allow_special: true")], "allow_special"),
        (
            [("per_shard: 4", "per_shard: 892")],
            "samples_per_shard must be small .*at most 891",
        ),
        ([("media: {preset: qwen2_vl", "media: {preset: qwen3")], "media.preset must be one of"),
        ([("num_frames: 4", "num_frames: 3")], "media.num_frames must be a multiple of the 2"),
        ([("num_frames: 4", "num_frames: 4, fps: 2")], "media.fps must be left out"),
        ([("num_frames: 4", "image_token: <|none|>")], "media.image_token must be a token of"),
        (
            [("content: parts, weight: 0.5", "content: part, weight: 0.5")],
            "content must be a field",
        ),
        ([("content: parts, weight: 0.5", "content: id, weight: 0.5")], "content must be a field"),
    ],
)
def test_recipes_that_cannot_be_kept_are_refused(
    changes: list[tuple[str, str]], text: str, corpus: Path, tmp_path: Path
) -> None:
    """By name, before anything is written."""
    recipe = write_recipe(corpus.parent, *changes, name="refused.yaml")
    with pytest.raises(RecipeError, match=text):
        run_stream(recipe, tmp_path / "stream")
    assert not (tmp_path / "stream" / "stream.json").exists()


def test_media_that_were_replaced_after_probing_are_drift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another number of placeholders, or a file that is gone, is noticed when it is decoded."""
    recipe = small(tmp_path, [document(0)], QUARANTINE)
    image = tmp_path / "lines" / "media" / "a.png"
    decode = media_documents.decode_document
    for change, text in (
        (lambda: image.write_bytes(image_bytes(200, 200)), "media were replaced after"),
        (image.unlink, "expected media as they were probed, found: part 1"),
    ):
        image.write_bytes(image_bytes())

        def replaced(*args: Any, act: Any = change) -> Any:
            act()
            return decode(*args)

        monkeypatch.setattr(media_documents, "decode_document", replaced)
        with pytest.raises(DriftError, match=text):
            run_stream(recipe, tmp_path / text[:5])


def test_chance_differs_by_pass_and_not_by_run(tmp_path: Path) -> None:
    """Each document's items, in each of three passes; workers and cuts do not move a byte."""
    changes = (
        ("passes: 1", "passes: 3"),
        ("num_frames: 4", "num_frames: 4, flip: 0.5, jitter: true"),
    )
    recipe = small(tmp_path, [document(number) for number in range(12)], *changes)
    run_stream(recipe, tmp_path / "one")
    for until in (1, 5, 9):
        run_stream(recipe, tmp_path / "two", until_samples=until, advance_bytes=1024)
    options = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]
    run_stream(recipe, tmp_path / "two", options=options)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    passes: dict[int, set[tuple[int, bytes]]] = {}
    for samples in shards(tmp_path / "one"):
        media = samples.media
        assert media is not None
        rows = np.repeat(np.arange(len(samples)), np.diff(samples.segment_offsets))
        for segment, row in enumerate(rows.tolist()):
            start = samples.segments["segment_starts"][segment]
            stop = start + samples.segments["segment_lengths"][segment]
            for item in range(*media.offsets[row : row + 2].tolist()):
                if start <= media.items["media_starts"][item] < stop:
                    pixels = media.frames(item, media.pixel_offsets).tobytes()
                    source = int(samples.segments["source_document"][segment])
                    number = int(samples.segments["source_pass"][segment])
                    passes.setdefault(number, set()).add((source, pixels))
    assert set(passes) == {0, 1, 2}
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert len(passes[0]) == len(passes[1]) == len(passes[2]) == 15
