"""One corpus in every block format: the streams are the same, or hold the same documents."""

import json
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipelines.test_token_streams import EOS, TEXTS, TOKENS, digest, rows_of, run
from tests.zephon_beam.sources.test_megatron import write_pair

FILES = 4
BY_FILE = [TEXTS[place::FILES] for place in range(FILES)]
TOKENS_BY_FILE = [TOKENS[place::FILES] for place in range(FILES)]
SCHEMA = {"type": "record", "name": "row", "fields": [{"name": "text", "type": "string"}]}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the corpus in every format, each file in one row group, batch or chunk."""
    folder = tmp_path_factory.mktemp("formats")
    for name in ("parquet", "arrow", "arrows", "avro", "jsonl", "ids", "megatron"):
        (folder / name).mkdir()
    for place, texts in enumerate(BY_FILE):
        table = pa.table({"text": texts})
        pq.write_table(table, folder / "parquet" / f"{place}.x")
        for name, make in (("arrow", pa.ipc.new_file), ("arrows", pa.ipc.new_stream)):
            with make(folder / name / f"{place}.x", table.schema) as writer:
                writer.write_table(table)
        with (folder / "avro" / f"{place}.x").open("wb") as file:
            records = [{"text": text} for text in texts]
            fastavro.writer(
                file, SCHEMA, records, codec="deflate", sync_interval=200, sync_marker=b"s" * 16
            )
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (folder / "jsonl" / f"{place}.x").write_text("".join(lines))
        ids = TOKENS_BY_FILE[place]
        pq.write_table(pa.table({"ids": ids}), folder / "ids" / f"{place}.x")
        write_pair(folder / "megatron" / f"{place}.bin", [[row[:3], row[3:]] for row in ids])
    return folder


def run_format(corpus: Path, name: str, format_name: str, **entry: Any) -> Path:
    """Run the files of one folder."""
    files = {"files": f"{name}/*.x", "format": format_name, **entry}
    return run(corpus, name, {"d": files})


@pytest.mark.parametrize("name", ["arrow", "arrows"])
def test_arrow_gives_the_stream_of_parquet(corpus: Path, name: str) -> None:
    """Byte for byte: batches are row groups, rows are rows."""
    of_arrow = digest(run_format(corpus, name, "arrow"))
    assert of_arrow == digest(run_format(corpus, "parquet", "parquet"))


def test_avro_gives_the_rows_of_json_lines(corpus: Path) -> None:
    """Only the places of the records differ, which are what fastavro says."""
    of_avro = rows_of(run_format(corpus, "avro", "avro"))
    of_lines = rows_of(run_format(corpus, "jsonl", "jsonl"))
    places = []
    for place in range(FILES):
        with (corpus / "avro" / f"{place}.x").open("rb") as file:
            blocks = [(block.offset, block.num_records) for block in fastavro.block_reader(file)]
        assert len(blocks) > 5
        places.append([(offset << 24) + n for offset, records in blocks for n in range(records)])
    order = [dict(zip(entry, count(), strict=False)) for entry in places]
    lines = []
    for place in range(FILES):
        content = (corpus / "jsonl" / f"{place}.x").read_bytes()
        lengths = [len(line) for line in content.splitlines(keepends=True)]
        lines.append(dict(zip(np.cumsum([0, *lengths]).tolist(), count(), strict=False)))
    for rows, numbers in ((of_avro, order), (of_lines, lines)):
        for row in rows:
            pairs = zip(row["source_file"], row["source_document"], strict=True)
            row["source_document"] = [numbers[file][locator] for file, locator in pairs]
    assert of_avro == of_lines


def test_megatron_gives_the_stream_of_parquet(corpus: Path) -> None:
    """Byte for byte: a document is its sequences joined, its number that of a row."""
    of_ids = digest(run_format(corpus, "ids", "parquet", tokens="ids"))
    entry = {"files": "megatron/*.bin", "format": "megatron"}
    assert digest(run(corpus, "megatron", {"d": entry})) == of_ids


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("avro", {"files": "avro/*.x", "format": "avro"}),
        ("arrow", {"files": "arrow/*.x", "format": "arrow"}),
        ("megatron", {"files": "megatron/*.bin", "format": "megatron"}),
    ],
)
def test_small_chunks_and_advances_deliver_every_document_once(
    corpus: Path, name: str, entry: dict[str, Any]
) -> None:
    """Whole, in its file, whatever the ranges and parts are."""
    stream = run(corpus, f"small-{name}", {"d": entry}, chunk_bytes="300B")
    assert digest(stream) is not None
    found: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(dict)
    for row in rows_of(stream):
        for segment, start in enumerate(row["segment_starts"]):
            document = (row["source_file"][segment], row["source_document"][segment])
            tokens = row["tokens"][start : start + row["segment_lengths"][segment]]
            assert row["source_offset"][segment] not in found[document]
            found[document][row["source_offset"][segment]] = tokens
    whole = defaultdict(list)
    for (file, _locator), pieces in sorted(found.items()):
        whole[file].append([token for _, piece in sorted(pieces.items()) for token in piece])
    expected = [[[*row, EOS] for row in rows] for rows in TOKENS_BY_FILE]
    assert [whole[file] for file in range(FILES)] == expected
