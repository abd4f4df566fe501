"""Faults of files and records, over all formats: a clear error, or all the rest delivered."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data_sets import COMPRESS, open_catalog, tar_entries, write_files
from zephon_beam.errors import BadRecordError, SourceError
from zephon_beam.sources.documents import Content, Quarantined
from zephon_beam.sources.read_part import read_part

Texts = Sequence[str]
Write = Callable[[Texts], bytes]
_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "row",
    "fields": [{"name": "text", "type": ["null", "long", "string"]}],
}


def jsonl(texts: Texts) -> bytes:
    """Return lines."""
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def archive(texts: Texts) -> bytes:
    """Return a tar archive of texts beside images."""
    members = [
        (f"{number:05d}.{field}", body)
        for number, text in enumerate(texts)
        for field, body in (("jpg", b"x" * 700), ("txt", text.encode()))
    ]
    return tar_entries(members)


def table(texts: Sequence[Any], kind: Any = None) -> pa.Table:
    """Return a table of texts."""
    return pa.table({"text": pa.array(texts, kind or pa.string())})


def parquet(texts: Texts) -> bytes:
    """Return a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table(texts), buffer, row_group_size=7)
    return buffer.getvalue()


def arrow(texts: Texts) -> bytes:
    """Return an Arrow IPC file."""
    return arrow_table(table(texts))


def arrow_table(rows: pa.Table) -> bytes:
    """Return an Arrow IPC file of a table."""
    buffer = io.BytesIO()
    with pa.ipc.new_file(buffer, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=7)
    return buffer.getvalue()


def avro(texts: Sequence[Any]) -> bytes:
    """Return an Avro object container file."""
    buffer = io.BytesIO()
    records = [{"text": text} for text in texts]
    fastavro.writer(buffer, _SCHEMA, records, sync_interval=100, sync_marker=b"s" * 16)
    return buffer.getvalue()


FORMATS: dict[str, tuple[str, str, Write]] = {
    "jsonl": ("jsonl", "", jsonl),
    "webdataset": ("webdataset", ".tar", archive),
    "parquet": ("parquet", "", parquet),
    "arrow": ("arrow", "", arrow),
    "avro": ("avro", "", avro),
    **{f"jsonl{end}": ("jsonl", end, lambda t, c=c: c(jsonl(t))) for end, c in COMPRESS.items()},
    "webdataset.gz": ("webdataset", ".tar.gz", lambda t: COMPRESS[".gz"](archive(t))),
}
"""(format, ending of its files, what writes texts) by a name for people."""
ALL = pytest.mark.parametrize("name", list(FORMATS))
GOOD = [f"document {number}" for number in range(20)]


def content_of(format_name: str, field: str = "") -> Content:
    """Return where the writers above put texts."""
    return Content(field=field or ("txt" if format_name == "webdataset" else "text"))


def read_folder(
    folder: Path, format_name: str, *, content: Content | None = None, quarantine: bool = True
) -> tuple[list[tuple[str, str]], list[Quarantined]]:
    """Return ((file, text) of all documents, the bad records) of the files below a folder."""
    catalog, root = open_catalog(folder, format_name, chunk_bytes=4096)
    found: list[tuple[str, str]] = []
    faults: list[Quarantined] = []
    for chunk in range(catalog.chunk_count):
        part, last = 0, False
        while not last:
            documents = read_part(
                catalog,
                root,
                chunk,
                part,
                content=content or content_of(format_name),
                quarantine=quarantine,
            )
            names = [catalog.file_name(file) for file in documents.files.tolist()]
            texts = documents.texts
            assert all(not texts[entry.place] for entry in documents.quarantined)
            assert all(names[entry.place] == entry.file for entry in documents.quarantined)
            assert [entry.locator for entry in documents.quarantined] == [
                documents.locators[entry.place] for entry in documents.quarantined
            ]
            found += zip(names, texts, strict=True)
            faults += documents.quarantined
            part, last = part + 1, documents.last
    return found, faults


@ALL
def test_two_files_of_one_name_in_two_folders_are_two(tmp_path: Path, name: str) -> None:
    """Names are relative to the data set's root; equal texts are not merged."""
    format_name, ending, write = FORMATS[name]
    write_files(tmp_path, {f"{folder}/x{ending}": write(GOOD) for folder in "ab"})
    found, faults = read_folder(tmp_path, format_name)
    expected = [(f"{folder}/x{ending}", text) for folder in "ab" for text in GOOD]
    assert (found, faults) == (expected, [])


@ALL
def test_unusual_texts_are_what_they_are(tmp_path: Path, name: str) -> None:
    """NUL, a mark inside, every kind of line end, none, and characters beyond the first plane."""
    format_name, ending, write = FORMATS[name]
    texts = ["a\0b\0", "in\ufeffside", "\r", "a\rb\r\nc\u2028d\n", "", " ", "\U0001f600\u0301"]
    write_files(tmp_path, {f"x{ending}": write(texts)})
    found, faults = read_folder(tmp_path, format_name)
    assert ([text for _, text in found], faults) == (texts, [])


@ALL
def test_a_file_without_documents_is_no_fault(tmp_path: Path, name: str) -> None:
    """Written as such a file is."""
    format_name, ending, write = FORMATS[name]
    write_files(tmp_path, {f"a{ending}": write([]), f"b{ending}": write(GOOD)})
    found, faults = read_folder(tmp_path, format_name)
    assert ([text for _, text in found], faults) == (GOOD, [])


@ALL
def test_a_file_without_bytes_is_damaged_if_its_format_has_an_end(
    tmp_path: Path, name: str
) -> None:
    """No program writes such a file for no documents, so it is what a failed copy left behind."""
    format_name, ending, write = FORMATS[name]
    write_files(tmp_path, {f"a{ending}": b"", f"b{ending}": write(GOOD)})
    if name == "parquet":
        with pytest.raises(SourceError, match=rf"a{ending}: "):
            read_folder(tmp_path, format_name, quarantine=False)
        return
    found, faults = read_folder(tmp_path, format_name)
    if name in ("jsonl", "arrow", "avro"):
        assert ([text for _, text in found], faults) == (GOOD, [])
        return
    assert [text for _, text in found] == ["", *GOOD]
    assert [(entry.file, entry.reason) for entry in faults] == [(f"a{ending}", "damaged")]
    with pytest.raises(BadRecordError, match=rf"^a{ending}, .*file must be whole, got an e"):
        read_folder(tmp_path, format_name, quarantine=False)


@ALL
@pytest.mark.parametrize("share", [0.11, 0.33, 0.52, 0.81, 0.999])
def test_a_file_that_was_cut_off_stops_or_is_one_bad_record(
    tmp_path: Path, name: str, share: float
) -> None:
    """It never passes for a shorter one, and hides nothing of the files beside it."""
    format_name, ending, write = FORMATS[name]
    texts = GOOD * 10
    whole = write(texts)
    if format_name == "webdataset" and share == 0.999:
        share = 0.95  # of the zeros at its end it may lack some
    write_files(tmp_path, {f"a{ending}": whole[: int(len(whole) * share)], f"b{ending}": whole})
    with pytest.raises(SourceError, match=rf"(^|/)a{ending}[:, ]"):
        read_folder(tmp_path, format_name, quarantine=False)
    if name in ("parquet", "arrow", "avro"):
        return
    found, faults = read_folder(tmp_path, format_name)
    assert [text for file, text in found if file[0] == "b"] == texts
    assert [entry.file for entry in faults] == [f"a{ending}"]
    of_cut = [text for file, text in found if file[0] == "a"]
    assert of_cut == [*texts[: len(of_cut) - 1], ""]


@pytest.mark.parametrize("ending", ["", *COMPRESS])
def test_a_mark_at_the_start_of_lines_is_no_part_of_them(tmp_path: Path, ending: str) -> None:
    """Of the file, not of every part of it."""
    data = COMPRESS.get(ending, bytes)(b"\xef\xbb\xbf" + jsonl(GOOD))
    write_files(tmp_path, {f"x{ending}": data})
    found, faults = read_folder(tmp_path, "jsonl")
    assert ([text for _, text in found], faults) == (GOOD, [])


LINES = {
    "null": (b'{"text": null}', "not_text"),
    "number": (b'{"text": 5}', "not_text"),
    "missing": (b'{"id": 1}', "missing_field"),
    "no object": (b"[]", "not_object"),
    "cut off": (b'{"text": "a', "json"),
    "line ends CR": (b'{"text": "a"}\r{"text": "b"}', "json"),
    "not UTF-8": (b'{"text": "\xff"}', "utf8"),
    "lone surrogate": (b'{"text": "\\ud800"}', "surrogate"),
    "deep": (b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "json"),
    "just too deep": (b'{"text": "a", "x": ' + b"[" * 256 + b"]" * 256 + b"}", "json"),
    "NUL": (b"\0\0\0", "json"),
    "UTF-16": ('{"text": "a"}'.encode("utf-16"), "utf8"),
}


@pytest.mark.parametrize("case", list(LINES))
@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_bad_line_is_one_bad_record(tmp_path: Path, ending: str, case: str) -> None:
    """Between good ones, which are all delivered."""
    line, reason = LINES[case]
    data = jsonl(GOOD) + line + b"\n" + jsonl(GOOD)
    write_files(tmp_path, {f"x{ending}": COMPRESS.get(ending, bytes)(data)})
    found, faults = read_folder(tmp_path, "jsonl")
    assert [text for _, text in found] == [*GOOD, "", *GOOD]
    assert [(entry.locator, entry.reason) for entry in faults] == [(len(jsonl(GOOD)), reason)]
    with pytest.raises(BadRecordError, match=rf"^x{ending}, byte {len(jsonl(GOOD))}, "):
        read_folder(tmp_path, "jsonl", quarantine=False)


@pytest.mark.parametrize("case", list(LINES))
def test_a_bad_member_is_one_bad_record(tmp_path: Path, case: str) -> None:
    """The same faults in the objects of an archive."""
    body, reason = LINES[case]
    bodies = [b'{"text": "a"}', body, b'{"text": "c"}']
    members = [(f"{number}.json", content) for number, content in enumerate(bodies)]
    write_files(tmp_path, {"x.tar": tar_entries(members)})
    content = content_of("webdataset", "json.text")
    found, faults = read_folder(tmp_path, "webdataset", content=content)
    assert [text for _, text in found] == ["a", "", "c"]
    assert [entry.reason for entry in faults] == [reason]
    with pytest.raises(BadRecordError, match=r"^x\.tar, member 1\.json: "):
        read_folder(tmp_path, "webdataset", content=content, quarantine=False)


@pytest.mark.parametrize(
    ("format_name", "data", "reason"),
    [
        ("parquet", lambda: parquet([*GOOD, None, *GOOD]), "not_text"),  # type: ignore[list-item]
        ("arrow", lambda: arrow([*GOOD, None, *GOOD]), "not_text"),  # type: ignore[list-item]
        ("avro", lambda: avro([*GOOD, None, *GOOD]), "not_text"),
        ("avro", lambda: avro([*GOOD, 5, *GOOD]), "not_text"),
        (
            "arrow",
            lambda: arrow_table(
                table([text.encode() for text in [*GOOD, "é", *GOOD]], pa.binary())
            ).replace("é".encode(), b"\xff\xff"),
            "utf8",
        ),
    ],
)
def test_a_bad_row_is_one_bad_record(
    tmp_path: Path, format_name: str, data: Callable[[], bytes], reason: str
) -> None:
    """Null, of another type, or no text at all."""
    write_files(tmp_path, {"x": data()})
    found, faults = read_folder(tmp_path, format_name)
    assert [text for _, text in found] == [*GOOD, "", *GOOD]
    assert [entry.reason for entry in faults] == [reason]
    with pytest.raises(BadRecordError, match=r"^x, "):
        read_folder(tmp_path, format_name, quarantine=False)


# bzip2 compresses repetitions a hundred times slower than all others.
ALL_QUICK = pytest.mark.parametrize("name", [name for name in FORMATS if name != "jsonl.bz2"])


def test_a_document_of_1_mb_is_one_document_of_bzip2(tmp_path: Path) -> None:
    """Like the longer ones of the other formats."""
    _read_long_document(tmp_path, "jsonl.bz2", 1_000_000)


@ALL_QUICK
def test_a_document_of_20_mb_is_one_document(tmp_path: Path, name: str) -> None:
    """However small the parts are; none is lost behind it."""
    _read_long_document(tmp_path, name, 20_000_000)


@pytest.mark.long
@ALL_QUICK
def test_a_document_of_200_mb_is_one_document(tmp_path: Path, name: str) -> None:
    """As it happens in crawls."""
    _read_long_document(tmp_path, name, 200_000_000)


def _read_long_document(folder: Path, name: str, length: int) -> None:
    format_name, ending, write = FORMATS[name]
    write_files(folder, {f"x{ending}": write(["a", "x" * length, "b"])})
    found, faults = read_folder(folder, format_name)
    assert [len(text) for _, text in found] == [1, length, 1]
    assert not faults


@pytest.mark.long
@pytest.mark.parametrize("format_name", ["parquet", "arrow"])
def test_a_column_of_more_than_2_gib_is_read_whole(tmp_path: Path, format_name: str) -> None:
    """In one row group or batch, with 64-bit offsets."""
    count, length = 1100, 2_000_000
    body = pa.py_buffer(b"x" * (count * length))
    offsets = pa.py_buffer(b"".join((n * length).to_bytes(8, "little") for n in range(count + 1)))
    array = pa.Array.from_buffers(pa.large_string(), count, [None, offsets, body])
    rows = pa.table({"text": array})
    path = tmp_path / "x"
    if format_name == "parquet":
        pq.write_table(rows, path, row_group_size=count, compression="zstd", use_dictionary=False)
    else:
        with pa.ipc.new_file(path, rows.schema) as writer:
            writer.write_table(rows)
    catalog, root = open_catalog(tmp_path, format_name, chunk_bytes=1 << 20)
    lengths: list[int] = []
    for chunk in range(catalog.chunk_count):
        for part in range(catalog.part_count(chunk) or 0):
            lengths += map(len, read_part(catalog, root, chunk, part).texts)
    assert lengths == [length] * count
