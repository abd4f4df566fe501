"""Documents read again by their places, against the parts that they were read from first."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon_beam.catalog.scan import scan_file
from zephon_beam.catalog.table import Catalog, build_catalog
from zephon_beam.errors import DriftError, RecipeError, SourceError
from zephon_beam.sources.documents import Content
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


@pytest.mark.parametrize("write", [write_lines, write_rows])
def test_every_document_is_found_again_by_its_place(write: Any, tmp_path: Path) -> None:
    """Forwards and backwards."""
    folder = tmp_path / "d"
    catalog = write(folder)
    expected = {}
    for chunk in range(catalog.chunk_count):
        for part in range(catalog.part_count(chunk) or 0):
            found = read_part(catalog, str(folder), chunk, part, content=CONTENT)
            places = zip(found.files.tolist(), found.locators.tolist(), strict=True)
            expected |= dict(zip(places, found.texts, strict=True))
    assert len(expected) in (80, 100)
    reader = RecordReader(catalog, str(folder), CONTENT)
    for order in (sorted(expected), sorted(expected, reverse=True)):
        assert {place: reader.read(*place) for place in order} == expected


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


def test_compressed_files_are_refused() -> None:
    """Each document would be read from the file's start."""
    refuse_unseekable(["a.jsonl", "b.tar", "c.parquet"])
    for name in ("b.jsonl.gz", "b.tar.zst", "b.tgz"):
        with pytest.raises(RecipeError, match=r"files must not be compressed.*expand it"):
            refuse_unseekable(["a.jsonl", name])
