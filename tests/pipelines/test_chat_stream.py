"""Whole runs over conversations: from messages in files to the labels that a trainer takes."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.run import run_stream
from tests.chat_folders import CHATML, GENERATION, write_folder
from tests.chat_reference import TOKENIZER, Message, by_hand, chatml_pieces, plain_encode
from zephon_beam.errors import BadRecordError, DriftError, RecipeError
from zephon_beam.inspection import inspect_stream
from zephon_beam.manifest import read_manifest
from zephon_beam.reader.stream_reader import StreamReader
from zephon_beam.recipe import Recipe
from zephon_beam.recipe_mapping import recipe_from_mapping
from zephon_beam.shard import decode_shard
from zephon_beam.store.base import open_store
from zephon_beam.verification import verify_stream

SEQ_LEN = 48
IGNORED = -100
EOS = TOKENIZER.token_to_id("<|endoftext|>")
WORDS = (
    *("Hello", " world", " the answer", " is 42", "\n\n", " café", " 🙂", "<|im_end|>", "<think>"),
)
Sequence = tuple[list[int], list[int]]
"""Tokens and loss mask of a document."""


def content(seed: int, count: int) -> str:
    """Make a text of some words."""
    return "".join(WORDS[(seed * 7 + place * place) % len(WORDS)] for place in range(count))


def conversation(number: int) -> list[Message]:
    """Make one of the corpus: most fit a row, some are longer, some teach nothing."""
    messages = []
    if number % 3 == 0:
        messages.append({"role": "system", "content": content(number, 3)})
    for turn in range(1 + number % 4):
        messages.append({"role": "user", "content": content(number + turn, number % 7)})
        if number % 11 != 5:
            answer = 60 if number % 13 == 4 else turn + number % 5
            messages.append({"role": "assistant", "content": content(number * turn, answer)})
    return messages


CONVERSATIONS = [conversation(number) for number in range(90)]
TEXTS = [content(number, number % 9 * 3) for number in range(40)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the corpus and a tokenizer's folder."""
    folder = tmp_path_factory.mktemp("chat")
    write_lines(folder / "talk.jsonl", [{"messages": messages} for messages in CONVERSATIONS])
    write_lines(folder / "text.jsonl", [{"text": text} for text in TEXTS])
    write_folder(folder / "model", CHATML)
    return folder


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def make_recipe(corpus: Path, **changes: Any) -> Recipe:
    """Make a recipe of both data sets, one pass of each."""
    mapping: dict[str, Any] = {
        "name": "chat",
        "lanes": 2,
        "seq_len": SEQ_LEN,
        "samples_per_shard": 5,
        "chunk_bytes": "16KiB",
        "tokenizer": {"path": str(corpus / "model")},
        "datasets": {
            "talk": {"files": str(corpus / "talk.jsonl"), "messages": "messages", "passes": 1},
            "text": {"files": str(corpus / "text.jsonl"), "passes": 1},
        },
        "packing": {"open_bins": 4},
        **changes,
    }
    return recipe_from_mapping(mapping, base=str(corpus))


@pytest.mark.parametrize(("role", "warns"), [("bot", True), ("assistant", False)])
def test_conversations_that_teach_nothing_are_warned_of(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, role: str, warns: bool
) -> None:
    """Once a data set, however many parts it has; the run goes on."""
    turns = [{"role": "user", "content": "Hello"}, {"role": role, "content": "the answer"}]
    write_lines(tmp_path / "talk.jsonl", [{"messages": turns} for _ in range(400)])
    dataset = {"files": str(tmp_path / "talk.jsonl"), "messages": "messages", "passes": 1}
    run_stream(make_recipe(corpus, datasets={"talk": dataset}), tmp_path / "stream")
    found = [entry.message for entry in caplog.records if "is learned" in entry.message]
    assert len(found) == warns
    assert all("datasets.talk: none of" in message for message in found)


def expected_documents(corpus: Path) -> dict[tuple[int, int], Sequence]:
    """Return what each document must be, by data set and locator: the byte that it begins at."""
    documents = {}
    for dataset, name in enumerate(("talk", "text")):
        lines = (corpus / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
        starts = np.concatenate(([0], np.cumsum([len(line) for line in lines]))).tolist()
        for start, line in zip(starts, lines, strict=False):
            record = json.loads(line)
            if dataset == 0:
                messages = record["messages"]
                places = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
                pieces = chatml_pieces(messages, newline_learned=True, places=places)
                tokens, mask = by_hand(pieces)
                documents[dataset, start] = ([*tokens, EOS], [*mask, 0])
            else:
                tokens = [*plain_encode(record["text"]), EOS]
                documents[dataset, start] = (tokens, [1] * (len(tokens) - 1) + [0])
    return documents


def shards_of(stream: Path, lane: int) -> list[Path]:
    """Return the shards of a lane in order."""
    return sorted((stream / "shards" / f"lane-{lane:05d}").iterdir())


def check_stream(stream: Path, corpus: Path) -> dict[tuple[int, int], int]:
    """Check every label of every row against the documents; return how often each was learned.

    What the reader gives is compared with what the shards say about where a segment came from.
    """
    documents = expected_documents(corpus)
    given = []
    with StreamReader(
        str(stream), global_batch_size=4, micro_batch_size=2, dp_rank=0, dp_world_size=1
    ) as reader:
        for batch in reader:
            assert int((batch["labels"] != IGNORED).sum()) == batch["num_valid_tokens"]
            assert ((batch["labels"] != IGNORED) == (batch["loss_mask"] != 0)).all()
            places = np.flatnonzero(batch["sample_ids"] >= 0).tolist()
            given += [(batch["input_ids"][n].tolist(), batch["labels"][n].tolist()) for n in places]
    learned: dict[tuple[int, int], int] = dict.fromkeys(documents, 0)
    expected = []
    for path in (path for lane in range(2) for path in shards_of(stream, lane)):
        _, samples = decode_shard(path.read_bytes(), path.name)
        for row, (first, last) in enumerate(pairwise(samples.segment_offsets.tolist())):
            labels = np.full(SEQ_LEN, IGNORED, np.int64)
            for place in range(first, last):
                found = {name: int(samples.segments[name][place]) for name in samples.segments}
                document = found["source_dataset"], found["source_document"]
                tokens, mask = documents[document]
                start, offset = found["segment_starts"], found["source_offset"]
                for step in range(found["segment_lengths"]):
                    here = offset + step
                    assert samples.tokens[row, start + step] == tokens[here]
                    is_last = step + 1 == found["segment_lengths"]
                    if mask[here] and not (is_last and found["segment_next"] < 0):
                        labels[start + step] = tokens[here + 1]
                        learned[document] += 1
            expected.append((samples.tokens[row].tolist(), labels.tolist()))
    assert sorted(given) == sorted(expected)
    assert len(given) == inspect_stream(str(stream))["samples"]
    return learned


def learnable(corpus: Path, dataset: int, length: int | None = None) -> dict[tuple[int, int], int]:
    """Count the labels of a data set's documents that lie in their first `length` tokens."""
    return {
        document: sum(mask[: len(mask) if length is None else length - 1])
        for document, (_, mask) in expected_documents(corpus).items()
        if document[0] == dataset
    }


@pytest.mark.parametrize(
    ("method", "overlong"),
    [
        *(("best_fit", "truncate"), ("best_fit", "split"), ("best_fit", "drop")),
        *(("first_fit", "split"), ("concat", "truncate"), ("concat", "split")),
        *(("best_fit_split", "truncate"), ("best_fit_split", "split")),
    ],
)
def test_labels_are_exactly_the_assistants_tokens(
    corpus: Path, tmp_path: Path, method: str, overlong: str
) -> None:
    """Whatever packs and cuts: no label crosses a document, none is lost but by the policy."""
    changes = {"packing": {"method": method, "open_bins": 4}, "chat": {"overlong": overlong}}
    stream = tmp_path / "stream"
    run_stream(make_recipe(corpus, **changes), stream)
    learned = check_stream(stream, corpus)
    assert verify_stream(str(stream)).faults == ()
    texts = {document: count for document, count in learned.items() if document[0] == 1}
    assert texts == learnable(corpus, 1)
    expected = learnable(corpus, 0)
    lengths = {d: len(tokens) for d, (tokens, _) in expected_documents(corpus).items()}
    overlong_talks = [document for document in expected if lengths[document] > SEQ_LEN]
    assert 5 < len(overlong_talks) < 60
    shortened = learnable(corpus, 0, SEQ_LEN) if overlong == "truncate" else {}
    if overlong != "split":
        expected |= {document: shortened.get(document, 0) for document in overlong_talks}
    assert {document: learned[document] for document in expected} == expected


def test_conversations_are_not_cut_unless_the_recipe_says_so(reference: Path) -> None:
    """Long texts are split all the same: each kind has a policy of its own."""
    offsets: dict[int, list[int]] = {0: [], 1: []}
    for path in (path for lane in range(2) for path in shards_of(reference, lane)):
        _, samples = decode_shard(path.read_bytes(), path.name)
        datasets = samples.segments["source_dataset"]
        for dataset, found in offsets.items():
            found += samples.segments["source_offset"][datasets == dataset].tolist()
    assert set(offsets[0]) == {0}
    assert set(offsets[1]) > {0}


@pytest.fixture(scope="module")
def reference(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the stream of the plain recipe."""
    stream = tmp_path_factory.mktemp("reference") / "stream"
    run_stream(make_recipe(corpus), stream)
    return stream


@pytest.mark.parametrize("mode", ["multi_threading", "multi_processing"])
def test_streams_are_equal_whoever_tokenizes(
    corpus: Path, tmp_path: Path, reference: Path, mode: str
) -> None:
    """Two threads and two processes give what one worker gives."""
    stream = tmp_path / "stream"
    flags = [f"--direct_running_mode={mode}", "--direct_num_workers=2"]
    run_stream(make_recipe(corpus), stream, options=flags)
    expected, found = verify_stream(str(reference)), verify_stream(str(stream))
    assert found.faults == ()
    assert (found.samples, found.stream_digest) == (expected.samples, expected.stream_digest)


def test_messages_in_parquet_give_the_same_stream_as_in_json_lines(
    corpus: Path, tmp_path: Path
) -> None:
    """Columns of structs fill missing fields with null, which no template sees."""
    rows = [
        [{**message, "tool_calls": None, "name": None} for message in messages]
        for messages in CONVERSATIONS
    ]
    pq.write_table(pa.table({"talk": rows}), tmp_path / "talk.parquet")
    talk = {"files": str(tmp_path / "talk.parquet"), "messages": "talk", "passes": 1}
    only = {"talk": {"files": str(corpus / "talk.jsonl"), "messages": "messages", "passes": 1}}
    rules = {"lanes": 1, "shuffle": {"chunks": False, "documents": False, "interleave": 1}}
    changes = {**rules, "chunk_bytes": "1MiB"}
    tokens = []
    for name, datasets in (("lines", only), ("parquet", {"talk": talk})):
        stream = tmp_path / name
        run_stream(make_recipe(corpus, datasets=datasets, **changes), stream)
        loaded = [decode_shard(p.read_bytes(), p.name)[1] for p in shards_of(stream, 0)]
        masks = [samples.loss_mask for samples in loaded]
        tokens.append([[s.tokens.tolist() for s in loaded], [m.tolist() for m in masks]])
    assert tokens[0] == tokens[1]


def test_the_template_is_part_of_the_fingerprint_and_may_not_drift(tmp_path: Path) -> None:
    """A run that finds another one stops and names it; a new stream is another stream."""
    write_lines(tmp_path / "talk.jsonl", [{"messages": messages} for messages in CONVERSATIONS])
    write_lines(tmp_path / "text.jsonl", [{"text": text} for text in TEXTS])
    folder = write_folder(tmp_path / "model", CHATML)
    first = tmp_path / "first"
    run_stream(make_recipe(tmp_path), first)
    manifest = read_manifest(open_store(str(first)))
    assert list(manifest.code_versions) == ["chat_template"]
    assert manifest.has_loss_mask
    (folder / "chat_template.jinja").write_text(GENERATION)
    with pytest.raises(DriftError, match=r"^chat template: expected .*, found .*another one"):
        run_stream(make_recipe(tmp_path), first)
    second = tmp_path / "second"
    run_stream(make_recipe(tmp_path), second)
    assert read_manifest(open_store(str(second))).fingerprint != manifest.fingerprint
    (folder / "chat_template.jinja").write_text(CHATML)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    changed = json.dumps({**config, "eos_token": "<|eot_id|>"})
    (folder / "tokenizer_config.json").write_text(changed)
    with pytest.raises(DriftError, match=r"^chat template: expected"):
        run_stream(make_recipe(tmp_path), first)


def test_a_recipe_without_template_is_refused_before_anything_is_written(
    corpus: Path, tmp_path: Path
) -> None:
    """With the repair."""
    write_folder(tmp_path / "model", None)
    recipe = make_recipe(corpus, tokenizer={"path": str(tmp_path / "model")})
    with pytest.raises(RecipeError, match=r"add the model's chat_template\.jinja"):
        run_stream(recipe, tmp_path / "stream")
    assert not (tmp_path / "stream").exists() or not any((tmp_path / "stream").rglob("*.arrow"))


def test_streams_without_conversations_need_no_template_and_have_no_mask(
    corpus: Path, tmp_path: Path
) -> None:
    """Nothing changes for them."""
    write_folder(tmp_path / "model", None)
    text = {"text": {"files": str(corpus / "text.jsonl"), "passes": 1}}
    recipe = make_recipe(corpus, datasets=text, tokenizer={"path": str(tmp_path / "model")})
    run_stream(recipe, tmp_path / "stream")
    manifest = read_manifest(open_store(str(tmp_path / "stream")))
    assert (manifest.has_loss_mask, manifest.code_versions) == (False, {})


BAD_TALK = {"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]}


@pytest.fixture
def with_bad_record(tmp_path: Path) -> tuple[Path, int]:
    """Write a corpus with one conversation that the template refuses; return where it is."""
    records: list[dict[str, Any]] = [{"messages": messages} for messages in CONVERSATIONS]
    records.insert(40, BAD_TALK)
    write_lines(tmp_path / "talk.jsonl", records)
    write_lines(tmp_path / "text.jsonl", [{"text": text} for text in TEXTS])
    write_folder(tmp_path / "model", CHATML)
    return tmp_path, sum(len(json.dumps(record)) + 1 for record in records[:40])


def test_a_conversation_that_the_template_refuses_stops_the_run(
    with_bad_record: tuple[Path, int],
) -> None:
    """And the message says where it is."""
    folder, locator = with_bad_record
    pattern = rf"datasets\.talk: 'talk\.jsonl', document at {locator}: the chat template refuses it"
    with pytest.raises(BadRecordError, match=pattern):
        run_stream(make_recipe(folder), folder / "stream")


def test_a_conversation_that_the_template_refuses_can_be_set_aside(
    with_bad_record: tuple[Path, int],
) -> None:
    """It is counted and written down, and the others are as they would be."""
    folder, locator = with_bad_record
    recipe = make_recipe(folder, bad_records={"action": "quarantine", "max_fraction": 0.1})
    run_stream(recipe, folder / "stream")
    (path,) = (folder / "stream" / "quarantine" / "talk").iterdir()
    assert path.name.endswith(".tokenize.jsonl")
    (entry,) = map(json.loads, path.read_text().splitlines())
    assert (entry["file"], entry["locator"], entry["reason"]) == ("talk.jsonl", locator, "template")
    assert "has no attribute 'content'" in entry["message"]
    facts = inspect_stream(str(folder / "stream"))
    assert facts["datasets"]["talk"]["quarantined"] == 1
    assert facts["datasets"]["talk"]["documents"] == len(CONVERSATIONS) + 1
    assert verify_stream(str(folder / "stream")).faults == ()
