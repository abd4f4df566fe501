"""A decoded locator leads to the document by other means than ours."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest

from tests.data_sets import COMPRESS, open_catalog, parts, tar_archive, write_files, write_parquet
from zephon_beam.sources.locators import decode_locator, spell_locator

TEXTS = [f"document {number} " + "x" * (number % 7) for number in range(23)]


def write_jsonl(path: Path) -> None:
    """Write lines."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))


def line_at(data: bytes, byte: int) -> str:
    """Return the text of the line that begins at a byte."""
    assert byte == 0 or data[byte - 1 : byte] == b"\n"
    text: str = json.loads(data[byte:].partition(b"\n")[0])["text"]
    return text


def write_avro(path: Path) -> None:
    """Write several blocks of several records."""
    schema = {
        "type": "record",
        "name": "Document",
        "fields": [{"name": "text", "type": "string"}],
    }
    with path.open("wb") as file:
        fastavro.writer(file, schema, [{"text": text} for text in TEXTS], sync_interval=60)


def avro_record(path: Path, block: int, record: int) -> str:
    """Return a record of the block that begins at a byte."""
    with path.open("rb") as file:
        found = {one.offset: list(one) for one in fastavro.block_reader(file)}
    assert len(found) > 3
    text: str = found[block][record]["text"]
    return text


def write_tar(path: Path) -> None:
    """Write an archive of texts."""
    path.write_bytes(tar_archive({f"{n:03}.text": t.encode() for n, t in enumerate(TEXTS)}))


def member_at(data: bytes, byte: int) -> str:
    """Return the member whose header begins at a byte."""
    with tarfile.open(fileobj=io.BytesIO(data[byte:])) as archive:
        first = archive.next()
        assert first is not None
        body = archive.extractfile(first)
        assert body is not None
        return body.read().decode()


def write_rows(path: Path) -> None:
    """Write row groups."""
    write_parquet(path, {"text": TEXTS}, row_group_size=5)


def compressed(write: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return what writes the same file and compresses it."""

    def write_compressed(path: Path) -> None:
        write(path)
        path.write_bytes(COMPRESS[".gz"](path.read_bytes()))

    return write_compressed


Find = Callable[[Path, dict[str, int]], str]
CASES: dict[str, tuple[str, str, Callable[[Path], None], Find]] = {
    "lines": (
        "jsonl",
        "a.jsonl",
        write_jsonl,
        lambda path, at: line_at(path.read_bytes(), at["byte"]),
    ),
    "compressed lines": (
        "jsonl",
        "a.jsonl.gz",
        compressed(write_jsonl),
        lambda path, at: line_at(gzip.decompress(path.read_bytes()), at["expanded_byte"]),
    ),
    "blocks": (
        "avro",
        "a.avro",
        write_avro,
        lambda path, at: avro_record(path, at["block"], at["record"]),
    ),
    "rows": (
        "parquet",
        "a.parquet",
        write_rows,
        lambda path, at: pq.read_table(path)["text"][at["row"]].as_py(),
    ),
    "archive": (
        "webdataset",
        "a.tar",
        write_tar,
        lambda path, at: member_at(path.read_bytes(), at["byte"]),
    ),
    "compressed archive": (
        "webdataset",
        "a.tar.gz",
        compressed(write_tar),
        lambda path, at: member_at(gzip.decompress(path.read_bytes()), at["expanded_byte"]),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_decoded_locator_leads_to_its_document(tmp_path: Path, case: str) -> None:
    """Of every document of a file of each format, in several parts."""
    format_name, name, write, find = CASES[case]
    write(tmp_path / name)
    catalog, root = open_catalog(tmp_path, format_name, chunk_bytes=100)
    found: dict[int, str] = {}
    for documents in parts(catalog, root):
        found |= dict(zip(documents.locators.tolist(), documents.texts, strict=True))
    assert sorted(found.values()) == sorted(TEXTS)
    for locator, text in found.items():
        assert find(tmp_path / name, decode_locator(format_name, name, locator)) == text


def test_whole_files_and_numbered_documents(tmp_path: Path) -> None:
    """A text file is its document; Megatron numbers them."""
    write_files(tmp_path, {"a.txt": b"one", "b.txt": b"two"})
    catalog, root = open_catalog(tmp_path, "text")
    (documents,) = parts(catalog, root)
    for locator in documents.locators.tolist():
        assert decode_locator("text", "a.txt", locator) == {}
    assert decode_locator("megatron", "a.bin", 7) == {"document": 7}


@pytest.mark.parametrize(
    ("decoded", "text"),
    [
        ({}, "whole file"),
        ({"expanded_byte": 9}, "expanded byte 9"),
        ({"block": 5, "record": 3}, "block 5, record 3"),
    ],
)
def test_locators_in_words(decoded: dict[str, Any], text: str) -> None:
    """For people."""
    assert spell_locator(decoded) == text
