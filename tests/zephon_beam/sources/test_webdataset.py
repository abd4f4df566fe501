"""WebDataset: samples by key, whatever else an archive holds, and nothing lost in silence."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.data_sets import COMPRESS, open_catalog, read_all, tar_archive, tar_entries
from zephon_beam.catalog.scan import check_columns
from zephon_beam.catalog.table import Catalog
from zephon_beam.errors import BadRecordError, RecipeError
from zephon_beam.sources.documents import Content, Quarantined
from zephon_beam.sources.read_part import read_part

FORMATS = pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
TXT = Content(field="txt")


def sample_members(count: int) -> dict[str, bytes]:
    """Return the members of samples with an image, a text and an object each."""
    members = {}
    for number in range(count):
        key = f"dir.x/{number:03d}"
        members[f"{key}.jpg"] = bytes([number]) * 3000
        members[f"{key}.txt"] = f"text {number}".encode()
        members[f"{key}.json"] = json.dumps({"meta": {"caption": f"caption {number}"}}).encode()
    return members


def write_archive(folder: Path, data: bytes, name: str = "a.tar") -> tuple[Catalog, str]:
    """Write an archive and return its catalog, with parts of 4000 bytes."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return open_catalog(folder, "webdataset", chunk_bytes=4000)


def read_parts(
    catalog: Catalog, root: str, content: Content = TXT
) -> tuple[list[tuple[int, str]], list[Quarantined]]:
    """Read all parts of the first file and set bad records aside."""
    found: list[tuple[int, str]] = []
    faults: list[Quarantined] = []
    part, last = 0, False
    while not last:
        documents = read_part(catalog, root, 0, part, content=content, quarantine=True)
        share = range(part * catalog.chunk_bytes, (part + 1) * catalog.chunk_bytes)
        assert all(locator in share for locator in documents.locators.tolist())
        found += zip(documents.locators.tolist(), documents.texts, strict=True)
        faults += documents.quarantined
        part, last = part + 1, documents.last
    return found, faults


@FORMATS
@pytest.mark.parametrize("ending", ["", *COMPRESS])
def test_samples_are_found_in_any_archive(tmp_path: Path, format: int, ending: str) -> None:
    """In the order of the file; a sample's locator is where its first header begins."""
    members = sample_members(12) | {"x" * 300 + "/" + "y" * 150 + ".txt": "long näme".encode()}
    data = tar_archive(members, format)
    catalog, root = write_archive(tmp_path, COMPRESS.get(ending, bytes)(data), f"a.tar{ending}")
    found, faults = read_parts(catalog, root)
    assert [text for _, text in found] == [f"text {i}" for i in range(12)] + ["long näme"]
    assert not faults
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        firsts = [member.offset for member in archive if member.name.endswith(("jpg", "y.txt"))]
    assert [locator for locator, _ in found[:-1]] == firsts[:-1]
    captions = read_parts(catalog, root, Content(field="json.meta.caption"))[0][:-1]
    assert [text for _, text in captions] == [f"caption {i}" for i in range(12)]
    for part in (5, 2, 9, 0):
        again = read_part(catalog, root, 0, part, content=TXT, quarantine=True)
        share = range(part * 4000, (part + 1) * 4000)
        own = [entry for entry in found if entry[0] in share]
        assert list(zip(again.locators.tolist(), again.texts, strict=True)) == own


def test_keys_end_at_the_first_dot_of_the_last_component(tmp_path: Path) -> None:
    """The rest is the field, compared in lower case."""
    members = {
        "v1.0/a.en.TXT": b"english",
        "v1.0/a.txt": b"plain",
        "./b.txt": b"other",
        "README": b"no field",
        ".hidden.txt": b"no key",
        "dir/._c.txt": b"no key either",
        "./c.txt": "\ufeffmark and \0".encode(),
    }
    catalog, root = write_archive(tmp_path, tar_archive(members))
    assert [text for _, _, text in read_all(catalog, root, "txt")] == [
        "plain",
        "other",
        "mark and \0",
    ]
    found, faults = read_parts(catalog, root, Content(field="en.txt"))
    assert [text for _, text in found] == ["english", "", ""]
    assert [entry.reason for entry in faults] == ["missing_field"] * 2
    assert "sample './b' must have the field 'en.txt', got none (its fields are 'txt'" in (
        faults[0].message
    )


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    """Folders, links and devices: a link is not followed, and does not count as the text."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (
            ("a", tarfile.DIRTYPE),
            ("a/0.txt", tarfile.SYMTYPE),
            ("a/0.json", tarfile.LNKTYPE),
            ("a/1.fifo", tarfile.FIFOTYPE),
            ("a/2.dev", tarfile.CHRTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        for name, body in (("a/0.jpg", b"x"), ("a/1.txt", b"one")):
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    catalog, root = write_archive(tmp_path, buffer.getvalue())
    found, faults = read_parts(catalog, root)
    assert [text for _, text in found] == ["", "one"]
    assert [entry.reason for entry in faults] == ["missing_field"]


def test_a_sparse_member_is_no_text(tmp_path: Path) -> None:
    """It is passed over right where it is an image, and refused where it is the text."""
    block = bytearray(tar_archive({"a.img": b"x" * 700})[:512])
    block[156:157] = tarfile.GNUTYPE_SPARSE
    block[257:265] = b"ustar  \0"
    block[482] = 1
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    body = bytes(512) + b"x" * 700 + bytes(1024 - 700)
    data = bytes(block) + body + tar_archive({"a.txt": b"text", "b.txt": b"more"})
    catalog, root = write_archive(tmp_path, data)
    assert [text for _, text in read_parts(catalog, root)[0]] == ["text", "more"]
    found, faults = read_parts(catalog, root, Content(field="img"))
    assert [text for _, text in found] == ["", ""]
    assert [entry.reason for entry in faults] == ["sparse", "missing_field"]


def test_a_key_that_comes_again_is_a_bad_record(tmp_path: Path) -> None:
    """Never two samples of one key, nor one without its text, in silence."""
    members = {"a.txt": b"a", "b.txt": b"b", "a.json": b"{}", "b.json": b"{}", "c.txt": b"c"}
    catalog, root = write_archive(tmp_path, tar_archive(members))
    found, faults = read_parts(catalog, root)
    assert [text for _, text in found] == ["a", "b", "", "", "c"]
    assert [entry.reason for entry in faults] == ["interleaved"] * 2
    with pytest.raises(BadRecordError, match="members of the sample 'a' must stand together, got"):
        read_part(catalog, root, 0, 0, content=TXT)
    twice = tar_entries([("a.txt", b"1"), ("a.txt", b"2"), ("b.txt", b"b")])
    catalog, root = write_archive(tmp_path / "2", twice)
    found, faults = read_parts(catalog, root)
    assert [text for _, text in found] == ["", "b"]
    assert [entry.reason for entry in faults] == ["repeated_field"]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_an_archive_that_was_cut_off_anywhere_gives_what_is_whole(
    tmp_path: Path, ending: str
) -> None:
    """One bad record more, whatever the parts; only zero blocks end an archive."""
    data = tar_archive(sample_members(4))
    texts = [f"text {number}" for number in range(4)]
    end = 4 * 6 * 512 + 4 * 5 * 512
    for length in (1, 511, 512, 3583, 4096, 4097, 5633, 11000, 16900, end):
        cut = COMPRESS.get(ending, bytes)(data[:length])
        catalog, root = write_archive(tmp_path / str(length), cut, f"a.tar{ending}")
        found, faults = read_parts(catalog, root)
        assert [entry.reason for entry in faults] == ["damaged"], length
        assert [text for _, text in found[:-1]] == texts[: len(found) - 1]
        assert found[-1] == (faults[0].locator, "")
        assert "an end of the file" in faults[0].message
        whole = [text for _, text in found[:-1]]
        ends = [number * 5632 + 4096 + len("text 0") for number in range(4)]
        assert len(whole) == sum(length >= end for end in ends)
        with pytest.raises(BadRecordError, match="file must be whole, got"):
            read_all(catalog, root, "txt")


def test_a_damaged_header_does_not_end_an_archive(tmp_path: Path) -> None:
    """Nor do two archives that were joined, or a size below 0."""
    data = bytearray(tar_archive(sample_members(2)))
    data[5632 + 100] ^= 1
    catalog, root = write_archive(tmp_path / "1", bytes(data))
    found, faults = read_parts(catalog, root)
    assert [text for _, text in found] == ["text 0", ""]
    assert "got a damaged header at expanded byte 5632" in faults[0].message
    joined = tar_archive({"a.txt": b"a"}) + tar_archive({"b.txt": b"b"})
    catalog, root = write_archive(tmp_path / "2", joined)
    found, faults = read_parts(catalog, root)
    assert [text for _, text in found] == ["a", ""]
    assert "got data behind the archive's end" in faults[0].message
    block = bytearray(tar_archive({"a.txt": b"a"})[:512])
    block[124:136] = b"\xff" * 12
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    catalog, root = write_archive(tmp_path / "3", bytes(block) + bytes(1024))
    assert "a header with a negative size" in read_parts(catalog, root)[1][0].message


def test_an_empty_archive_has_no_samples(tmp_path: Path) -> None:
    """And is whole."""
    catalog, root = write_archive(tmp_path, tar_archive({}))
    assert read_parts(catalog, root) == ([], [])


def test_conversations_are_members_or_fields_of_them(tmp_path: Path) -> None:
    """As canonical JSON."""
    members = {"a.json": b'[{"role": "user"}]', "b.json": b'{"turns": [{"role": "user"}]}'}
    catalog, root = write_archive(tmp_path, tar_archive(members))
    text = '[{"role":"user"}]'
    for field, expected, reason in (
        ("json", [text, ""], "not_messages"),
        ("json.turns", ["", text], "not_object"),
    ):
        found, faults = read_parts(catalog, root, Content(field=field, kind="messages"))
        assert [text for _, text in found] == expected
        assert [entry.reason for entry in faults] == [reason]


def test_the_field_is_looked_for_in_the_first_sample(tmp_path: Path) -> None:
    """Before any work."""
    path = tmp_path / "a.tar"
    path.write_bytes(tar_archive(sample_members(2)))
    for field in ("txt", "json.meta.caption", "json"):
        check_columns("webdataset", str(path), Content(field=field))
    message = "^text must be a field .*, got 'text', .* its fields are 'jpg', 'txt', 'json'; did"
    with pytest.raises(RecipeError, match=message):
        check_columns("webdataset", str(path), Content(field="text"))
    with pytest.raises(RecipeError, match=r"got 'meta.captoin', .*did you mean 'meta.caption'"):
        check_columns("webdataset", str(path), Content(field="json.meta.captoin"))
    with pytest.raises(RecipeError, match="holds an object in"):
        check_columns("webdataset", str(path), Content(field="json.meta"))
    path.write_bytes(tar_archive({"a.txt": b"\xff"}))
    with pytest.raises(BadRecordError, match="must be valid UTF-8, got byte 0xff"):
        check_columns("webdataset", str(path), Content(field="txt"))
