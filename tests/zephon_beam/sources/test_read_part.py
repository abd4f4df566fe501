"""Reading a part: sources that are no longer what the catalog says are refused."""

import errno
import os
from pathlib import Path

import pytest

from tests.data_sets import open_catalog, read_all, write_files, write_parquet
from zephon_beam.errors import DriftError, SourceError
from zephon_beam.sources import open_source, places
from zephon_beam.sources.read_part import read_part

LINE = b'{"text": "0123456789"}\n'


def write_data_set(folder: Path, format_name: str) -> Path:
    """Write a data set of two files and return the second one."""
    if format_name == "parquet":
        for name in ("a", "b"):
            write_parquet(folder / name, {"text": ["0123456789", "x"]})
    else:
        write_files(folder, {"a": LINE * 2, "b": LINE * 2})
    return folder / "b"


FORMATS = pytest.mark.parametrize("format_name", ["jsonl", "parquet", "text"])


@FORMATS
@pytest.mark.parametrize("change", [b"", b"longer"])
def test_a_file_of_another_size_is_refused(tmp_path: Path, format_name: str, change: bytes) -> None:
    """The error names the file, both sizes, the consequence and the repair."""
    path = write_data_set(tmp_path, format_name)
    size = path.stat().st_size
    catalog, root = open_catalog(tmp_path, format_name)
    path.write_bytes(path.read_bytes() + change if change else path.read_bytes()[:-1])
    found = path.stat().st_size
    message = rf"^b: expected {size} bytes, found {found} .*bytes would differ.*restore the file"
    with pytest.raises(DriftError, match=message):
        read_all(catalog, root)


@FORMATS
def test_a_file_of_other_content_is_refused(tmp_path: Path, format_name: str) -> None:
    """Even if it has the same size, also when it was read before in this process."""
    path = write_data_set(tmp_path, format_name)
    catalog, root = open_catalog(tmp_path, format_name)
    read_all(catalog, root)
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b"0123", b"9999"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    message = rf"^b: expected identity {catalog.file_identity(1)}, found [0-9a-f]{{32}} "
    with pytest.raises(DriftError, match=message):
        read_all(catalog, root)


@FORMATS
def test_a_missing_file_is_a_source_error(tmp_path: Path, format_name: str) -> None:
    """It names the file and what to do."""
    path = write_data_set(tmp_path, format_name)
    catalog, root = open_catalog(tmp_path, format_name)
    path.unlink()
    message = r"^b: expected a file, found none .*cannot go on without it; restore it, or"
    with pytest.raises(SourceError, match=message):
        read_all(catalog, root)


@FORMATS
def test_a_moved_data_set_is_the_same(tmp_path: Path, format_name: str) -> None:
    """Only names relative to the root count."""
    (tmp_path / "old").mkdir()
    write_data_set(tmp_path / "old", format_name)
    catalog, root = open_catalog(tmp_path / "old", format_name)
    before = read_all(catalog, root)
    (tmp_path / "old").rename(tmp_path / "new")
    assert read_all(catalog, str(tmp_path / "new")) == before
    assert open_catalog(tmp_path / "new", format_name)[0].digest == catalog.digest


def test_other_faults_of_the_system_come_through_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a runner tries again."""
    write_data_set(tmp_path, "jsonl")
    catalog, root = open_catalog(tmp_path, "jsonl")

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "broken cable")

    monkeypatch.setattr(places.os, "pread", fail)
    with pytest.raises(OSError, match="broken cable") as caught:
        read_part(catalog, root, 0, 0)
    assert not isinstance(caught.value, SourceError)


def test_a_file_that_shrinks_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size was right when it was opened."""
    write_data_set(tmp_path, "jsonl")
    catalog, root = open_catalog(tmp_path, "jsonl")
    read_part(catalog, root, 0, 0)
    monkeypatch.setattr(places.os, "pread", lambda *_: b"")
    with pytest.raises(DriftError, match=r"^a: expected 46 bytes, found an end at 0"):
        read_part(catalog, root, 0, 0)


def test_the_two_ends_of_a_large_file_are_its_identity(tmp_path: Path) -> None:
    """What is said openly: an edit of the middle that keeps the size is not seen."""
    path = tmp_path / "a"
    write_files(tmp_path, {"a": LINE * 10_000})
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=1 << 20)
    content = bytearray(path.read_bytes())
    content[5000 * len(LINE) + 12] = ord("9")
    path.write_bytes(content)
    assert [text for _, _, text in read_all(catalog, root)][5000] == "0193456789"
    content[12] = ord("9")
    path.write_bytes(content)
    os.utime(path, ns=(0, 0))
    with pytest.raises(DriftError, match="expected identity"):
        read_all(catalog, root)


def test_the_identity_is_read_once_for_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk costs the read of its range, not that of the file's ends."""
    write_files(tmp_path, {"a": LINE * 100})
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=100)
    reads = []
    real = open_source.read_identity

    def counted(file: places.OpenFile, size: int) -> str:
        reads.append(size)
        return real(file, size)

    monkeypatch.setattr(open_source, "read_identity", counted)
    read_all(catalog, root)
    assert reads == [len(LINE) * 100]


@pytest.mark.parametrize(("chunk", "part"), [(-1, 0), (2, 0), (0, 1), (0, -1)])
def test_there_is_nothing_outside_the_catalog(tmp_path: Path, chunk: int, part: int) -> None:
    """Numbers are checked, never wrapped around."""
    write_data_set(tmp_path, "jsonl")
    catalog, root = open_catalog(tmp_path, "jsonl")
    assert catalog.chunk_count == 2
    with pytest.raises(IndexError, match=r"(chunk|part) must be in \[0, "):
        read_part(catalog, root, chunk, part)
