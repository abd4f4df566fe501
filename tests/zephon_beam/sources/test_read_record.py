"""Documents read again by their places, against the parts that they were read from first."""

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon_beam.catalog.scan import scan_file
from zephon_beam.catalog.table import Catalog, build_catalog
from zephon_beam.errors import DriftError, RecipeError, SourceError
from zephon_beam.sources import compressed_jsonl, read_record
from zephon_beam.sources.documents import Content
from zephon_beam.sources.open_readers import OpenReaders
from zephon_beam.sources.read_part import read_part
from zephon_beam.sources.read_record import RecordReader, refuse_unseekable

CONTENT = Content(field="parts", kind="content")


def parts(number: int) -> list[dict[str, Any]]:
    """Return the content of a document."""
    return [{"type": "text", "text": f"ü {number}" * (number % 7)}]


def catalog_of(folder: Path, format: str, chunk_bytes: int) -> Catalog:
    """Build the catalog of all files of a folder."""
    paths = sorted(str(path) for path in folder.iterdir())
    scans = [scan_file(path, format) for path in paths]
    data = build_catalog("d", format, str(folder), scans, chunk_bytes=chunk_bytes)
    return Catalog.from_buffer(data, "d")


def write_lines(folder: Path) -> Catalog:
    """Write two files of lines, with blank lines, CRLF and no end of the last line."""
    folder.mkdir()
    for file in range(2):
        lines = [json.dumps({"parts": parts(n)}, ensure_ascii=False) for n in range(40)]
        text = "\n\n".join(lines[:20]) + "\r\n" + "\n".join(lines[20:])
        (folder / f"{file}.jsonl").write_bytes(text.encode())
    return catalog_of(folder, "jsonl", 256)


def write_rows(folder: Path) -> Catalog:
    """Write two files of rows in several row groups, which are read in several parts."""
    folder.mkdir()
    kind = pa.list_(pa.struct([("type", pa.string()), ("text", pa.string())]))
    for file in range(2):
        table = pa.table({"parts": pa.array([parts(n) for n in range(50)], kind)})
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=17)
    return catalog_of(folder, "parquet", 64)


def write_batches(folder: Path) -> Catalog:
    """Write an Arrow file and a stream of several record batches."""
    folder.mkdir()
    kind = pa.list_(pa.struct([("type", pa.string()), ("text", pa.string())]))
    table = pa.table({"parts": pa.array([parts(n) for n in range(50)], kind)})
    for name, opened in (("0.arrow", pa.ipc.new_file), ("1.arrow", pa.ipc.new_stream)):
        with opened(str(folder / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=17)
    return catalog_of(folder, "arrow", 64)


def write_avro(folder: Path) -> Catalog:
    """Write two files of small blocks."""
    folder.mkdir()
    fields = [{"name": name, "type": "string"} for name in ("type", "text")]
    part = {"type": "record", "name": "Part", "fields": fields}
    field = {"name": "parts", "type": {"type": "array", "items": part}}
    schema = {"type": "record", "name": "Row", "fields": [field]}
    for file in range(2):
        with (folder / f"{file}.avro").open("wb") as opened:
            rows = [{"parts": parts(n)} for n in range(50)]
            fastavro.writer(opened, schema, rows, sync_interval=100)
    return catalog_of(folder, "avro", 256)


def write_packed(folder: Path) -> Catalog:
    """Write compressed files of lines, some of them longer than a part."""
    folder.mkdir()
    for name, pack in (("0.jsonl.gz", gzip.compress), ("1.jsonl.bz2", bz2.compress)):
        lines = [json.dumps({"parts": parts(n * 7 + n)}) + "\n\n" for n in range(50)]
        (folder / name).write_bytes(pack("".join(lines).encode()))
    return catalog_of(folder, "jsonl", 96)


@pytest.mark.parametrize("write", [write_lines, write_rows, write_batches, write_avro])
def test_every_document_is_found_again_by_its_place(write: Any, tmp_path: Path) -> None:
    """Forwards and backwards."""
    folder = tmp_path / "d"
    catalog = write(folder)
    expected = {}
    for chunk in range(catalog.chunk_count):
        for part in range(catalog.part_count(chunk) or 0):
            expected |= read_places(catalog, folder, chunk, part)[0]
    assert len(expected) in (80, 100)
    check_places(catalog, folder, expected)


def test_every_document_of_a_compressed_file_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose parts nobody knows before its end; who reads it in order does not lose its place."""
    pool = OpenReaders[compressed_jsonl.LineReader]()
    monkeypatch.setattr(compressed_jsonl, "_readers", pool)
    folder = tmp_path / "d"
    catalog = write_packed(folder)
    expected: dict[tuple[int, int], str] = {}
    opened = 0
    for chunk in range(catalog.chunk_count):
        last, part = False, 0
        while not last:
            found, last = read_places(catalog, folder, chunk, part)
            expected |= found
            kept = list(pool._readers.values())
            reached = [reader.reached for reader in kept]
            opened += len(kept)
            check_places(catalog, folder, found)
            assert list(pool._readers.values()) == kept
            assert [reader.reached for reader in kept] == reached
            part += 1
    assert len(expected) == 100
    assert opened > 50
    check_places(catalog, folder, expected)


def read_places(
    catalog: Catalog, folder: Path, chunk: int, part: int
) -> tuple[dict[tuple[int, int], str], bool]:
    """Return the documents of a part by their places, and whether it is the last one."""
    found = read_part(catalog, str(folder), chunk, part, content=CONTENT)
    places = zip(found.files.tolist(), found.locators.tolist(), strict=True)
    return dict(zip(places, found.texts, strict=True)), found.last


def check_places(catalog: Catalog, folder: Path, expected: dict[tuple[int, int], str]) -> None:
    """Read documents again, forwards and backwards."""
    reader = RecordReader(catalog, str(folder), CONTENT)
    for order in (sorted(expected), sorted(expected, reverse=True)):
        assert {place: reader.read(*place) for place in order} == expected


def test_what_was_read_is_kept_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the size of texts; the last part is kept in any case."""
    folder = tmp_path / "d"
    catalog = write_rows(folder)
    expected, _ = read_places(catalog, folder, 0, 0)
    monkeypatch.setattr(read_record, "_KEPT_CHARACTERS", 40)
    reader = RecordReader(catalog, str(folder), CONTENT)
    for file in range(2):
        for row in range(50):
            reader.read(file, row)
            assert len(reader._kept) == 1 or reader._kept_characters <= 40
            assert reader._kept_characters == sum(
                len(text) for texts in reader._kept.values() for text in texts.values()
            )
    assert reader.read(0, 0) == expected[0, 0]


def test_a_bad_neighbour_does_not_keep_a_row_from_being_read(tmp_path: Path) -> None:
    """It was set aside when it was read first."""
    folder = tmp_path / "d"
    folder.mkdir()
    kind = pa.list_(pa.struct([("type", pa.string()), ("text", pa.string())]))
    table = pa.table({"parts": pa.array([parts(0), None, parts(2)], kind)})
    pq.write_table(table, folder / "a.parquet")
    reader = RecordReader(catalog_of(folder, "parquet", 1 << 20), str(folder), CONTENT)
    assert json.loads(reader.read(0, 2)) == parts(2)


def test_a_file_that_changed_or_is_gone_is_drift(tmp_path: Path) -> None:
    """A row is never taken from other content."""
    folder = tmp_path / "d"
    catalog = write_lines(folder)
    path = folder / "0.jsonl"
    data = path.read_bytes()
    path.write_bytes(data + b"\n")
    with pytest.raises(DriftError, match=r"0\.jsonl: expected"):
        RecordReader(catalog, str(folder), CONTENT).read(0, 0)
    path.write_bytes(data.replace(b"parts", b"parst"))
    with pytest.raises(DriftError, match=r"0\.jsonl: expected identity"):
        RecordReader(catalog, str(folder), CONTENT).read(0, 0)
    path.unlink()
    with pytest.raises(SourceError, match="expected a file, found none"):
        RecordReader(catalog, str(folder), CONTENT).read(0, 0)


def test_a_place_without_a_document_is_drift(tmp_path: Path) -> None:
    """In the middle of a line none begins."""
    folder = tmp_path / "d"
    reader = RecordReader(write_lines(folder), str(folder), CONTENT)
    with pytest.raises(DriftError, match="expected a document at 3, found none"):
        reader.read(0, 3)


def test_compressed_archives_are_refused() -> None:
    """Each item would be read from the archive's start; lines are read in parts."""
    refuse_unseekable(["a.jsonl", "b.tar", "c.parquet", "b.jsonl.gz"])
    for name in ("b.tar.zst", "b.tgz", "B.TAR.GZ"):
        with pytest.raises(RecipeError, match=r"archives must not be compressed.*expand it"):
            refuse_unseekable(["a.jsonl", name])
