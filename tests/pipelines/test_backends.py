"""Backends in whole runs: the bytes are those of the reference, whatever encodes."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiktoken

from pipelines.main import main
from pipelines.run import run_stream
from tests.pipelines.small_streams import tree, write_json_lines
from tests.pipelines.test_golden_stream import RECIPE, TREE
from tests.tokenizer_files import GPT2_PATTERN, encoded, rank_lines, split_layout
from transforms.tokenizers.backends import load_tokenizer
from transforms.tokenizers.rank_files import parse_ranks
from zephon_beam.errors import BadRecordError
from zephon_beam.inspection import inspect_stream
from zephon_beam.reader import StreamReader
from zephon_beam.tokenizer import Tokenizer
from zephon_beam.verification import verify_stream

RANK_RECIPE = """
name: ranks
lanes: 1
seq_len: 32
samples_per_shard: 4
tokenizer: {path: demo.tiktoken, pattern: %s, special: {"<|endoftext|>": 0}}
datasets: {prose: {files: prose/*.jsonl, passes: 1}}
shuffle: {chunks: false, documents: false, interleave: 1}
packing: {method: concat}
"""
TEXTS = [
    "a first document",
    "na\u00efve \u6f22\u5b57",
    "not <|endoftext|> the end",
    "x = 12345\n\n",
]


@pytest.mark.parametrize("backend", ["hf", "fastokens", "auto"])
def test_backends_write_the_golden_bytes(backend: str, tmp_path: Path) -> None:
    """Every stored byte of shards, lane states and ends."""
    run_stream(RECIPE, tmp_path / "s", backend=backend)
    assert tree(tmp_path / "s") == TREE


def test_a_stream_goes_on_with_another_backend(tmp_path: Path) -> None:
    """The backend is no part of the stream, so nothing is refused."""
    for samples, backend in ((1, "fastokens"), (12, "hf"), (None, "fastokens")):
        run_stream(RECIPE, tmp_path / "s", until_samples=samples, advance_bytes=1, backend=backend)
    assert tree(tmp_path / "s") == TREE


def write_rank_recipe(folder: Path, texts: list[str], more: str = "") -> Path:
    """Write documents, the demo's vocabulary as a rank file, and a recipe."""
    write_json_lines(folder / "prose", texts, files=1)
    (folder / "demo.tiktoken").write_bytes(rank_lines())
    path = folder / "recipe.yaml"
    path.write_text(RANK_RECIPE % json.dumps(GPT2_PATTERN) + more)
    return path


def read_documents(stream: Path) -> list[list[int]]:
    """Return the tokens of a stream of whole documents, cut behind each 0."""
    reader = StreamReader(str(stream), global_batch_size=1, micro_batch_size=1)
    found: list[list[int]] = [[]]
    for batch in reader:
        real = batch["segment_ids"] > 0
        for token in batch["input_ids"][real].tolist():
            if token == 0:
                found.append([])
            else:
                found[-1].append(token)
    return found[:-1]


def test_a_rank_file_gives_the_tokens_of_tiktoken(tmp_path: Path) -> None:
    """In order, each document as `encode_ordinary` has it, with its end behind it."""
    recipe = write_rank_recipe(tmp_path, TEXTS * 20)
    run_stream(recipe, tmp_path / "s")
    ranks = parse_ranks(rank_lines(), name="t")
    library = tiktoken.Encoding(
        "t", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 0}
    )
    expected = [library.encode_ordinary(text) for text in TEXTS * 20]
    assert read_documents(tmp_path / "s") == expected
    assert verify_stream(str(tmp_path / "s")).faults == ()


def test_a_document_that_tiktoken_gives_up_ends_the_run_or_is_set_aside(tmp_path: Path) -> None:
    """It is named by file and place, and never encoded otherwise."""
    texts = ["a first document", " " * 1_100_000 + "x", "a last one"] * 20
    (tmp_path / "fail").mkdir()
    recipe = write_rank_recipe(tmp_path / "fail", texts)
    with pytest.raises(BadRecordError, match=r"'part-0.jsonl', document at 29: text must be one"):
        run_stream(recipe, tmp_path / "fail" / "s")
    (tmp_path / "aside").mkdir()
    more = "bad_records: {action: quarantine, max_fraction: 0.5}\n"
    recipe = write_rank_recipe(tmp_path / "aside", texts, more)
    stream = tmp_path / "aside" / "s"
    run_stream(recipe, stream)
    assert len(read_documents(stream)) == 40
    assert inspect_stream(str(stream))["datasets"]["prose"]["quarantined"] == 20
    entries = [
        json.loads(line)
        for path in (stream / "quarantine").rglob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(entries) == 20
    assert {entry["reason"] for entry in entries} == {"unencodable"}
    assert verify_stream(str(stream)).faults == ()


def write_unknown_recipe(folder: Path) -> Path:
    """Write a recipe whose tokenizer fastokens is not admitted for."""
    write_json_lines(folder / "prose", TEXTS * 20, files=1)
    (folder / "tokenizer.json").write_bytes(encoded(split_layout(r"\w+|\s+|[^\w\s]+")))
    text = RANK_RECIPE.splitlines()
    lines = [
        "tokenizer: {path: tokenizer.json}" if line.startswith("tokenizer:") else line
        for line in text
    ]
    path = folder / "recipe.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_backend_that_would_differ_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line and status 2; no stream is created. Without the flag the run is as ever."""
    recipe, stream = write_unknown_recipe(tmp_path), tmp_path / "s"
    words = ["run", str(recipe), "--stream", str(stream)]
    assert main([*words, "--backend", "fastokens"]) == 2
    error = capsys.readouterr().err
    assert "error: --backend must be one that gives the tokens of the tokenizers library" in error
    assert "its split pattern is not a known one" in error
    assert not stream.exists() or not list(stream.iterdir())
    assert main([*words, "--backend", "fast"]) == 2
    assert "--backend must be one of auto, hf, fastokens, tiktoken" in capsys.readouterr().err
    assert main([*words, "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert facts["finished"]


@pytest.mark.parametrize("backend", ["hf", "fastokens"])
def test_workers_get_the_backend(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage that encodes loads what the run was asked for."""
    loaded: list[str] = []

    def note(*args: Any, **options: Any) -> Tokenizer:
        loaded.append(options["backend"])
        return load_tokenizer(*args, **options)

    monkeypatch.setattr("transforms.tokenize_documents.load_tokenizer", note)
    run_stream(RECIPE, tmp_path / "s", backend=backend)
    assert loaded
    assert set(loaded) == {backend}
