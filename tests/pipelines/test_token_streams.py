"""Sources that are tokens already: their streams are those of the texts they were made from."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.run import run_stream
from zephon_beam.errors import BadRecordError
from zephon_beam.inspection import inspect_stream
from zephon_beam.manifest import read_manifest
from zephon_beam.recipe_mapping import recipe_from_mapping
from zephon_beam.store.base import open_store
from zephon_beam.verification import verify_stream

TEXTS = [f"Document {n} says {'many words ' * (n % 23)}and ends." for n in range(120)] + [""]
BACKEND = Tokenizer.from_file(str(TOKENIZER_FILE))
TOKENS: list[list[int]] = [BACKEND.encode(text, add_special_tokens=False).ids for text in TEXTS]
EOS: int = BACKEND.token_to_id("<|endoftext|>")
GROUP = 20
SEQ_LEN = 32
Row = dict[str, Any]


def run(folder: Path, stream: str, datasets: dict[str, Any], **changes: Any) -> Path:
    """Run a small recipe over data sets below a folder, one pass of each."""
    recipe = {
        "name": stream,
        "lanes": 2,
        "seq_len": SEQ_LEN,
        "samples_per_shard": 4,
        "chunk_bytes": "1MiB",
        "shuffle": {"interleave": 2},
        "packing": {"open_bins": 4},
        "tokenizer": {"path": str(TOKENIZER_FILE)},
        "datasets": {name: {**entry, "passes": 1} for name, entry in datasets.items()},
        **changes,
    }
    place = folder / "streams" / stream
    run_stream(recipe_from_mapping(recipe, base=str(folder)), place)
    return place


def digest(stream: Path) -> str | None:
    """Verify a stream and return the digest of its samples."""
    report = verify_stream(str(stream))
    assert report.faults == ()
    return report.stream_digest


def rows_of(stream: Path) -> list[Row]:
    """Read all rows of all shards, lane after lane, with PyArrow alone."""
    rows: list[Row] = []
    for path in sorted((stream / "shards").rglob("*.arrow")):
        with pa.ipc.open_file(path) as reader:
            rows += reader.read_all().to_pylist()
    return rows


def write_rows(path: Path, columns: dict[str, Any]) -> None:
    """Write Parquet with small row groups."""
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=GROUP)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int32()),
        pa.large_list(pa.int64()),
        pa.list_(pa.uint16()),
    ],
)
def test_a_stream_of_tokens_is_that_of_their_texts(tmp_path: Path, kind: Any) -> None:
    """Byte for byte, whatever type the ids have."""
    write_rows(tmp_path / "text" / "a.parquet", {"text": TEXTS})
    write_rows(tmp_path / "ids" / "a.parquet", {"input_ids": pa.array(TOKENS, kind)})
    of_text = run(tmp_path, "text", {"d": {"files": "text/*"}})
    of_ids = run(tmp_path, "ids", {"d": {"files": "ids/*", "tokens": "input_ids"}})
    assert digest(of_ids) == digest(of_text)
    assert len(rows_of(of_ids)) > 40


def test_lines_of_tokens_give_the_rows_of_lines_of_text(tmp_path: Path) -> None:
    """Only the places of the lines differ."""
    for name, key, values in (("text", "text", TEXTS), ("ids", "ids", TOKENS)):
        lines = "".join(json.dumps({key: value}) + "\n" for value in values)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    of_text = rows_of(run(tmp_path, "text", {"d": {"files": "text.jsonl"}}))
    of_ids = rows_of(run(tmp_path, "ids", {"d": {"files": "ids.jsonl", "tokens": "ids"}}))
    for row in [*of_text, *of_ids]:
        del row["source_document"]
    assert of_ids == of_text


def test_documents_that_are_framed_already_stay_as_they_are(tmp_path: Path) -> None:
    """Some of them: a second `eos` or `bos` would be a token that nobody wrote."""
    framed = [[EOS, *ids, EOS] if n % 2 else ids for n, ids in enumerate(TOKENS)]
    framed[-1] = [EOS, EOS]
    write_rows(tmp_path / "text" / "a.parquet", {"text": TEXTS})
    write_rows(tmp_path / "ids" / "a.parquet", {"ids": framed})
    both = {"path": str(TOKENIZER_FILE), "bos": EOS, "eos": EOS}
    of_text = run(tmp_path, "text", {"d": {"files": "text/*"}}, tokenizer=both)
    entry = {"files": "ids/*", "tokens": "ids"}
    of_ids = run(tmp_path, "ids", {"d": entry}, tokenizer=both)
    assert digest(of_ids) == digest(of_text)


def test_a_loss_mask_belongs_to_the_label_before_its_token(tmp_path: Path) -> None:
    """Followed from the sources to the rows, beside a data set of plain text."""
    masks = [[(n + place) % 3 % 2 for place in range(len(ids))] for n, ids in enumerate(TOKENS)]
    columns = {"ids": TOKENS, "learned": pa.array(masks, pa.list_(pa.int8()))}
    write_rows(tmp_path / "ids" / "a.parquet", columns)
    write_rows(tmp_path / "text" / "a.parquet", {"text": TEXTS})
    datasets = {
        "ids": {"files": "ids/*", "tokens": "ids", "loss_mask": "learned"},
        "text": {"files": "text/*"},
    }
    stream = run(tmp_path, "masked", datasets)
    assert digest(stream) is not None
    assert read_manifest(open_store(str(stream))).has_loss_mask
    seen = cuts = 0
    for row in rows_of(stream):
        expected = [0] * SEQ_LEN
        for segment, start in enumerate(row["segment_starts"]):
            document, offset = row["source_document"][segment], row["source_offset"][segment]
            is_text = row["source_dataset"][segment] == 1
            learned = [1] * len(TOKENS[document]) if is_text else masks[document]
            after = [*learned, 1, 0][1:]
            length = row["segment_lengths"][segment]
            assert (
                row["tokens"][start : start + length] == [*TOKENS[document], EOS][offset:][:length]
            )
            expected[start : start + length] = after[offset : offset + length]
            seen += length
            cuts += row["segment_next"][segment] >= 0
        assert row["loss_mask"] == expected
        ends = zip(row["segment_starts"], row["segment_lengths"], row["segment_next"], strict=True)
        unlabelled = [s + n - 1 for s, n, following in ends if following < 0]
        assert row["valid_tokens"] == sum(expected) - sum(expected[place] for place in unlabelled)
    assert seen == 2 * sum(len(ids) + 1 for ids in TOKENS)
    assert cuts > 10


@pytest.mark.parametrize("wrong", [1 << 31, -1])
def test_an_id_that_the_vocabulary_does_not_have_stops_the_run(tmp_path: Path, wrong: int) -> None:
    """By file and row; or the document is set aside and counted, and all others are there."""
    ids = [*TOKENS[:33], [5, wrong, 6], *TOKENS[34:]]
    write_rows(tmp_path / "ids" / "a.parquet", {"ids": pa.array(ids, pa.list_(pa.int64()))})
    datasets = {"d": {"files": "ids/*", "tokens": "ids"}}
    with pytest.raises(BadRecordError, match=rf"datasets\.d: a\.parquet, row 33: ids in .*{wrong}"):
        run(tmp_path, "failing", datasets)
    bad_records = {"action": "quarantine", "max_fraction": "0.5"}
    stream = run(tmp_path, "quarantined", datasets, bad_records=bad_records)
    assert digest(stream) is not None
    facts = inspect_stream(str(stream))["datasets"]["d"]
    assert facts["quarantined"] == 1
    assert facts["tokens"] == sum(len(t) + 1 for n, t in enumerate(TOKENS) if n != 33)


def test_the_largest_id_is_read(tmp_path: Path) -> None:
    """The limit itself is the first one that is refused."""
    size = BACKEND.get_vocab_size()
    write_rows(tmp_path / "ids" / "a.parquet", {"ids": [[size - 1]]})
    write_rows(tmp_path / "beyond" / "a.parquet", {"ids": [[size]]})
    (row,) = rows_of(run(tmp_path, "largest", {"d": {"files": "ids/*", "tokens": "ids"}}, lanes=1))
    assert row["tokens"][:2] == [size - 1, EOS]
    with pytest.raises(BadRecordError, match=f"from 0 to {size - 1}, .*got {size};"):
        run(tmp_path, "beyond", {"d": {"files": "beyond/*", "tokens": "ids"}}, lanes=1)
