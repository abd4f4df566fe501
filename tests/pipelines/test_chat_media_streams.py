"""Whole streams of conversations with images and videos, mixed with others."""

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from tokenizers import Tokenizer

from pipelines.fork import fork_stream
from pipelines.run import run_stream
from tests.clips import file_part, text_part, write_clip
from tests.media_sources import MIXED, talk, write_documents, write_mixed
from tests.pipelines.small_streams import tree
from tests.pipelines.test_media_sources import samples_of
from zephon_beam.errors import BadRecordError
from zephon_beam.inspection import inspect_stream
from zephon_beam.reader.stream_reader import StreamReader
from zephon_beam.samples import Samples
from zephon_beam.verification import verify_stream

MEDIA_IDS = (8192, 8193, 8194, 8195)
IMAGE, VIDEO = MEDIA_IDS[:2]
IGNORED = -100
TALKS = 1
Segments = dict[tuple[int, int, int, int], tuple[list[int], list[int], list[tuple[int, bytes]]]]
"""Tokens, mask and items (place, pixels) by data set, pass, file and locator."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the recipe of the mixed corpus; tests must not change it."""
    return write_mixed(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the stream of the corpus, computed in one advance."""
    stream = tmp_path_factory.mktemp("mixed_stream") / "stream"
    assert run_stream(recipe, stream)["finished"]
    return stream


@pytest.mark.parametrize(
    "options",
    [
        ["--direct_runner_bundle_repeat=1"],
        ["--direct_running_mode=multi_threading", "--direct_num_workers=2"],
        ["--direct_running_mode=multi_processing", "--direct_num_workers=3"],
        ["--runner=PortableRunner", "--job_endpoint=embed"],
    ],
    ids=["replayed", "threads", "processes", "portable"],
)
def test_engines_and_workers_do_not_move_a_byte(
    options: list[str], recipe: Path, whole: Path, tmp_path: Path
) -> None:
    """Pixels, crops and masks included."""
    run_stream(recipe, tmp_path / "stream", options=options)
    assert tree(tmp_path / "stream") == tree(whole)


def test_cuts_into_runs_and_advances_do_not_move_a_byte(
    recipe: Path, whole: Path, tmp_path: Path
) -> None:
    """Runs that stop early, and advances of few bytes."""
    for until in (1, 9, 17):
        run_stream(recipe, tmp_path / "stream", until_samples=until, advance_bytes=1024)
    facts = run_stream(recipe, tmp_path / "stream", advance_bytes=1024, drain_bytes=1)
    assert facts["finished"]
    assert len(list((tmp_path / "stream" / "advances").iterdir())) > 2
    assert tree(tmp_path / "stream") == tree(whole)


def test_the_stream_verifies(whole: Path) -> None:
    """Its digest is that of its rows with their pixels."""
    assert verify_stream(str(whole)).faults == ()


def segments_of(stream: Path) -> Segments:
    """Return what each document became; cut documents have one segment here."""
    found: Segments = {}
    for samples in samples_of(str(stream)):
        rows = np.repeat(np.arange(len(samples)), np.diff(samples.segment_offsets))
        for segment, row in enumerate(rows.tolist()):
            fields = {name: int(samples.segments[name][segment]) for name in samples.segments}
            key = tuple(
                fields[f"source_{name}"] for name in ("dataset", "pass", "file", "document")
            )
            if fields["source_offset"] == 0:
                found[key] = segment_of(samples, row, fields)
    return found


def segment_of(samples: Samples, row: int, fields: dict[str, int]) -> Any:
    """Return tokens, mask and items of a segment."""
    start, length = fields["segment_starts"], fields["segment_lengths"]
    place = slice(start, start + length)
    assert samples.loss_mask is not None
    assert samples.media is not None
    media, items = samples.media, []
    for item in range(*media.offsets[row : row + 2].tolist()):
        first = int(media.items["media_starts"][item])
        if start <= first < start + length:
            last = first + int(media.items["media_lengths"][item])
            assert last <= start + length
            kind = VIDEO if media.items["media_kinds"][item] else IMAGE
            assert set(samples.tokens[row, first:last].tolist()) == {kind}
            items.append((first - start, media.frames(item, media.pixel_offsets).tobytes()))
            assert any(items[-1][1])
    tokens = samples.tokens[row, place].tolist()
    return tokens, samples.loss_mask[row, place].tolist(), items


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Segments:
    """Return all documents of the corpus as they are in rows that hold each."""
    folder = tmp_path_factory.mktemp("mixed_full")
    recipe = write_mixed(folder, ("seq_len: 40", "seq_len: 512"))
    run_stream(recipe, folder / "stream")
    found = segments_of(folder / "stream")
    assert len(found) == 2 * (16 + 24 + 20)
    return found


def in_run(tokens: list[int], place: int) -> bool:
    """Say whether a cut before a place would fall among tokens of items."""
    return tokens[place] in MEDIA_IDS and tokens[place - 1] in MEDIA_IDS


def test_long_conversations_end_before_an_item_that_would_be_cut(
    whole: Path, full: Segments
) -> None:
    """What is kept is the beginning, with the same pixels; nothing else is shorter."""
    found = segments_of(whole)
    cut = moved = 0
    for key, (tokens, mask, items) in full.items():
        if key[0] == 0 and len(tokens) > 40:
            assert key not in found
            continue
        length = min(40, len(tokens))
        while 0 < length < len(tokens) and in_run(tokens, length):
            length -= 1
        if not length:
            assert key not in found
            continue
        kept, kept_mask, kept_items = found[key]
        assert kept == tokens[:length]
        # The last token of what is kept has no label.
        assert kept_mask[:-1] == mask[: length - 1]
        assert kept_items == [item for item in items if item[0] < length]
        cut += length < len(tokens)
        moved += length < min(40, len(tokens))
    assert cut > moved > 2
    lost = sum(len(t) for t, _, _ in full.values()) - sum(len(t) for t, _, _ in found.values())
    facts = inspect_stream(str(whole))["datasets"].values()
    assert lost == sum(fact["truncated_tokens"] + fact["dropped_tokens"] for fact in facts)


def test_only_conversations_without_items_are_split(full: Segments, tmp_path: Path) -> None:
    """Those with items are dropped and counted, whichever was asked for."""
    change = ("packing:", "chat: {overlong: split}\npacking:")
    recipe = write_mixed(tmp_path, change)
    run_stream(recipe, tmp_path / "stream")
    found = segments_of(tmp_path / "stream")
    for key, (tokens, _, items) in full.items():
        assert (key in found) == (len(tokens) <= 40 or (not items and key[0] > 0))
    assert verify_stream(str(tmp_path / "stream")).faults == ()
    facts = inspect_stream(str(tmp_path / "stream"))["datasets"]
    dropped = [len(t) for key, (t, _, _) in full.items() if key[0] == TALKS and key not in found]
    assert facts["talks"]["dropped_tokens"] == sum(dropped) > 0
    assert facts["words"]["dropped_tokens"] == 0


def test_only_the_assistants_words_are_labels(whole: Path) -> None:
    """As a reader gives them, with the pixels of all items beside."""
    taught, count = set(), 0
    with StreamReader(
        str(whole),
        global_batch_size=4,
        micro_batch_size=2,
        fields=("input_ids", "labels", "dataset_ids", "pixel_values", "media_positions"),
    ) as reader:
        for batch in reader:
            labels, datasets = batch["labels"], batch["dataset_ids"]
            assert not np.isin(labels, MEDIA_IDS).any()
            count += len(batch["pixel_values"])
            positions = batch["input_ids"].reshape(-1)[batch["media_positions"]]
            assert set(positions.tolist()) <= {IMAGE, VIDEO}
            taught |= set(labels[datasets == TALKS].tolist())
    expected = {IGNORED, *answer_ids(whole)}
    assert taught <= expected
    assert len(taught) > 4
    assert count > 50


def answer_ids(stream: Path) -> set[int]:
    """Return the ids of all tokens that the assistants' answers are made of."""
    model = json.loads((stream / "stream.json").read_text())["recipe"]["tokenizer"]["path"]
    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
    ids: set[int] = set()
    for number in range(24):
        for message in talk(number):
            if message["role"] == "assistant":
                for ending in ("", "\n"):
                    written = f" {message['content'][0]['text']}{ending}"
                    ids |= set(tokenizer.encode(written, add_special_tokens=False).ids)
    return ids


def test_a_clip_that_fails_late_masks_its_conversation_alone(tmp_path: Path) -> None:
    """Tokens and all other rows are those of the stream with the whole clip."""
    changes = (("packing:", "bad_records: {action: quarantine, max_fraction: 1}\npacking:"),)
    recipe = write_mixed(tmp_path, *changes)
    clip = tmp_path / "data" / "talks" / "media" / "c.mp4"
    write_clip(clip, frames=18, key_frames=6, b_frames=0, height=60, width=90)
    run_stream(recipe, tmp_path / "whole")
    data = bytearray(clip.read_bytes())
    with av.open(str(clip)) as container:
        last = [p for p in container.demux(video=0) if p.size and p.is_keyframe][-1]
        data[last.pos : last.pos + last.size] = bytes(last.size)
    clip.write_bytes(data)
    run_stream(recipe, tmp_path / "damaged")
    listed = [
        json.loads(line)
        for path in sorted((tmp_path / "damaged" / "quarantine" / "decode").iterdir())
        for line in path.read_text().splitlines()
    ]
    assert len(listed) > 2
    assert all("part 2 of message 0 (media/c.mp4)" in entry["message"] for entry in listed)
    masked = 0
    pairs = zip(
        samples_of(str(tmp_path / "whole")), samples_of(str(tmp_path / "damaged")), strict=True
    )
    for old, new in pairs:
        assert np.array_equal(old.tokens, new.tokens)
        assert old.loss_mask is not None
        assert new.loss_mask is not None
        changed = (old.loss_mask != new.loss_mask).any(axis=1)
        masked += int(changed.sum())
        assert not (new.loss_mask > old.loss_mask).any()
    assert 0 < masked <= len(listed)


def test_items_behind_a_transform_are_refused(tmp_path: Path) -> None:
    """They are read again from the source, which a function may have changed."""
    call = "messages: doc, transforms: [{call: 'pick:same'}], passes: 2, weight: 0.4"
    recipe = write_mixed(tmp_path, ("messages: doc, passes: 2, weight: 0.4", call))
    (tmp_path / "pick.py").write_text("def same(messages):\n    return messages\n")
    with pytest.raises(BadRecordError, match="items must be in data sets without `transforms`"):
        run_stream(recipe, tmp_path / "stream")


def test_a_recipe_without_media_refuses_items_in_conversations(tmp_path: Path) -> None:
    """By what it lacks; conversations in parts of text need none."""
    write_mixed(tmp_path)
    text = MIXED[: MIXED.index("  parts:")] + MIXED[MIXED.index("  words:") : MIXED.index("media:")]
    (tmp_path / "words.yaml").write_text(text)
    assert run_stream(tmp_path / "words.yaml", tmp_path / "words")["finished"]
    assert all(samples.media is None for samples in samples_of(str(tmp_path / "words")))
    shown = [[{"role": "user", "content": [text_part("x"), file_part("image", "media/a.png")]}]]
    write_documents(tmp_path / "data" / "words.parquet", "messages", shown)
    with pytest.raises(BadRecordError, match="of text where the recipe has no `media`"):
        run_stream(tmp_path / "words.yaml", tmp_path / "other")


@pytest.mark.parametrize("seq_len", [24, 120])
@pytest.mark.parametrize("overlong", ["truncate", "split"])
def test_a_fork_with_rows_of_another_length_cuts_no_item(
    seq_len: int, overlong: str, recipe: Path, whole: Path, full: Segments, tmp_path: Path
) -> None:
    """Pieces that wait in open rows re-enter whole, or up to an item; pixels are their own."""
    older = inspect_stream(str(whole))["samples"]
    text = recipe.read_text().replace("seq_len: 40", f"seq_len: {seq_len}")
    text = text.replace("packing:", f"chat: {{overlong: {overlong}}}\npacking:")
    forked = recipe.parent / "fork.yaml"
    forked.write_text(text)
    fork_stream(whole, forked, tmp_path / "fork", at_sample=older // 2 // 8 * 8)
    assert run_stream(forked, tmp_path / "fork")["finished"]
    assert verify_stream(str(tmp_path / "fork")).faults == ()
    found = segments_of(tmp_path / "fork")
    shown = 0
    for key, (tokens, _, items) in found.items():
        expected, _, expected_items = full[key]
        assert tokens == expected[: len(tokens)]
        assert items == [item for item in expected_items if item[0] < len(tokens)]
        assert len(tokens) == len(expected) or not in_run(expected, len(tokens))
        shown += len(items)
    assert shown > 1
