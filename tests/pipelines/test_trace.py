"""`trace`: what it says of a sample leads back to the text that its tokens were made of."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.main import main
from tests.pipelines.small_streams import SEQ_LEN, SmallStream
from zephon_beam.errors import CorruptObjectError, RecipeError
from zephon_beam.layout import catalog_name, shard_name
from zephon_beam.manifest import read_manifest
from zephon_beam.reader import StreamReader
from zephon_beam.store.base import open_store
from zephon_beam.tracing import SampleTracer

Capture = pytest.CaptureFixture[str]
BATCH = 25


def trace(capsys: Capture, stream: Path, *words: str) -> list[dict[str, Any]]:
    """Trace by the command line."""
    assert main(["trace", str(stream), *words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["fingerprint"] == read_manifest(open_store(str(stream))).fingerprint
    samples: list[dict[str, Any]] = facts["samples"]
    return samples


def source_text(document: dict[str, Any]) -> str:
    """Read a document where it is said to be, by means of its own."""
    path = Path(document["path"])
    locator = document["locator"]
    if document["dataset"] == "code":
        assert locator == {}
        return path.read_text()
    if document["dataset"] == "prose":
        line = path.read_bytes()[locator["byte"] :].partition(b"\n")[0]
        return str(json.loads(line)["text"])
    return str(pq.read_table(path)["body"][locator["row"]].as_py())


def test_the_documents_of_a_step_are_where_they_are_said_to_be(
    endless: SmallStream, capsys: Capture
) -> None:
    """Every token of every sample of a step that a trainer reads, from the source's text."""
    samples = trace(capsys, endless.folder, "--step", "7", "--batch", str(BATCH))
    tokenizer = Tokenizer.from_file(str(TOKENIZER_FILE))
    reader = StreamReader(str(endless.folder), global_batch_size=BATCH, micro_batch_size=BATCH)
    reader.load_state_dict({**reader.state_dict(), "next_sample": 7 * BATCH})
    batch = next(reader)
    rows = dict(zip(batch["sample_ids"].tolist(), batch["input_ids"].tolist(), strict=True))
    assert sorted(rows) == [sample["sample"] for sample in samples]
    seen = set()
    for sample in samples:
        held = 0
        for document in sample["documents"]:
            ids = [*tokenizer.encode(source_text(document)).ids, 0]
            first, last = document["tokens"]
            start = document["start"]
            assert rows[sample["sample"]][start : start + last - first] == ids[first:last]
            assert document["ends"] == (last == len(ids))
            held += last - first
            seen.add((document["dataset"], document["ends"]))
        assert (sample["tokens"], sample["padding"]) == (held, SEQ_LEN - held)
    assert len(seen) == 6


def test_a_sample_alone_is_that_of_its_step_and_text_says_the_same(
    endless: SmallStream, capsys: Capture
) -> None:
    """Data set, file, place and tokens of each document, in a line each."""
    step = trace(capsys, endless.folder, "--step", "1", "--batch", "8", "--start-sample", "3")
    assert [sample["sample"] for sample in step] == list(range(11, 19))
    sample = max(step, key=lambda one: len(one["documents"]))
    assert trace(capsys, endless.folder, "--sample", str(sample["sample"])) == [sample]
    assert main(["trace", str(endless.folder), "--sample", str(sample["sample"])]) == 0
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith(f"sample {sample['sample']}: {sample['shard']} row {sample['row']}, ")
    for line, document in zip(lines, sample["documents"], strict=True):
        assert line.split()[:2] == [document["dataset"], document["file"]]
        assert f"{document['tokens'][0]}-{document['tokens'][1]}" in line
        assert ("…" in line) != document["ends"]
        assert all(
            str(number) in line.split() or f"{number}," in line
            for number in document["locator"].values()
        )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "exactly one of --sample and --step"),
        (["--sample", "1", "--step", "1"], "exactly one of --sample and --step"),
        (["--sample", "1", "--batch", "1"], "--batch must come with --step"),
        (["--step", "1"], "--step must be at least 0 and come with a --batch"),
        (["--step", "-1", "--batch", "4"], "--step must be at least 0"),
        (["--sample", "-1"], "samples must be in [0, "),
        (["--sample", "1000000"], "run the recipe to have more"),
    ],
)
def test_what_cannot_be_traced_is_one_line(
    endless: SmallStream, capsys: Capture, words: list[str], text: str
) -> None:
    """Status 2."""
    assert main(["trace", str(endless.folder), *words]) == 2
    assert text in capsys.readouterr().err


def test_what_is_gone_is_named(endless: SmallStream, tmp_path: Path) -> None:
    """A shard, and a catalog."""
    stream = tmp_path / "s"
    stream.mkdir()
    for path in endless.folder.rglob("*"):
        if path.is_file():
            (stream / path.relative_to(endless.folder)).parent.mkdir(parents=True, exist_ok=True)
            (stream / path.relative_to(endless.folder)).hardlink_to(path)
    store = open_store(str(stream))
    tracer = SampleTracer(store, read_manifest(store))
    (stream / catalog_name("code")).unlink()
    with pytest.raises(CorruptObjectError, match=catalog_name("code")):
        tracer.trace(0, 60)
    (stream / shard_name(1, 0)).unlink()
    with pytest.raises(CorruptObjectError, match=shard_name(1, 0)):
        tracer.trace(1, 2)
    with pytest.raises(RecipeError, match=r"samples must be in \[0, 1\)"):
        SampleTracer(store, read_manifest(store)).trace(1, 2)
