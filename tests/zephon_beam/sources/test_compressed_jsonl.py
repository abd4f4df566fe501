"""Compressed JSON Lines: parts cut the lines like ranges do, in whatever order they are read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data_sets import COMPRESS, open_catalog, parts, read_all, write_files
from zephon_beam.catalog.scan import check_columns
from zephon_beam.errors import BadRecordError, DriftError, RecipeError
from zephon_beam.sources import compressed_jsonl
from zephon_beam.sources.documents import Content
from zephon_beam.sources.read_part import read_part

lines = st.lists(
    st.one_of(
        st.just(b"\n"),
        st.integers(0, 200).map(lambda size: b'{"text": "%s"}\n' % (b"x" * size)),
        st.just(b'{"text": "\\u00e4"}\r\n'),
    ),
    max_size=30,
)


def write_lines(path: Path, texts: list[str]) -> bytes:
    """Write a file of texts and return what it expands to."""
    data = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
    path.write_bytes(COMPRESS[path.suffix](data))
    return data


@settings(max_examples=60)
@given(lines, st.booleans(), st.integers(1, 400), st.sampled_from(list(COMPRESS)))
def test_a_line_is_in_the_part_that_holds_its_first_byte(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: list[bytes],
    ends: bool,
    part_bytes: int,
    ending: str,
) -> None:
    """Whatever the parts, and also if they are read in another order than the file's."""
    folder = tmp_path_factory.mktemp("lines")
    data = b"".join(pieces) if ends else b"".join(pieces).removesuffix(b"\n")
    expected = []
    offset = 0
    for line in data.split(b"\n"):
        if line.strip():
            expected.append((offset, json.loads(line)["text"]))
        offset += len(line) + 1
    write_files(folder, {f"a{ending}": COMPRESS[ending](data)})
    catalog, root = open_catalog(folder, "jsonl", chunk_bytes=part_bytes)
    assert (catalog.chunk_count, catalog.part_count(0)) == (1, None)
    found = list(parts(catalog, root))
    count = len(found)
    assert sum(part.source_bytes for part in found) == len(data)
    assert {part.source_bytes for part in found[:-1]} <= {part_bytes}
    for part in [*reversed(range(count + 1)), *range(0, count, 2)]:
        again = read_part(catalog, root, 0, part)
        share = range(part * part_bytes, (part + 1) * part_bytes)
        own = [entry for entry in expected if entry[0] in share]
        assert list(zip(again.locators.tolist(), again.texts, strict=True)) == own
        assert again.last == (part >= count - 1)
    assert sum(map(len, found)) == len(expected)


def test_lines_longer_than_a_step_are_found_from_the_start(tmp_path: Path) -> None:
    """By readers that begin anew for each part, and have to pass over what is before it."""
    texts = ["x" * (length * 1000) for length in (1, 150, 3, 200, 65, 64, 2, 130)]
    write_lines(tmp_path / "a.jsonl.gz", texts)
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=16 * 1024)
    forward = [(part.locators.tolist(), part.texts) for part in parts(catalog, root)]
    assert [text for _, part_texts in forward for text in part_texts] == texts
    assert forward.count(([], [])) > 20
    for part in reversed(range(len(forward))):
        again = read_part(catalog, root, 0, part)
        assert (again.locators.tolist(), again.texts) == forward[part]
        assert again.last == (part == len(forward) - 1)


@pytest.mark.parametrize("part_bytes", [14, 28, 42, 70, 1000])
def test_damage_belongs_to_the_part_in_which_its_line_begins(
    tmp_path: Path, part_bytes: int
) -> None:
    """Also where that is the first byte of a part; a part before it is not the last one."""
    data = write_lines(tmp_path / "a.jsonl.gz", ["1", "2", "3", "4", "5"])
    with (tmp_path / "a.jsonl.gz").open("ab") as file:
        file.write(b"garbage")
    assert len(data) == 5 * 14
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=part_bytes)
    last = len(data) // part_bytes
    for part in [*range(last + 1), *reversed(range(last + 1))]:
        found = read_part(catalog, root, 0, part, quarantine=True)
        share = range(part * part_bytes, (part + 1) * part_bytes)
        assert found.locators.tolist() == [n for n in range(0, 84, 14) if n in share]
        assert [entry.locator for entry in found.quarantined] == [70] * (part == last)
        assert found.last == (part == last)


def test_plain_and_compressed_files_of_one_data_set_give_the_same(tmp_path: Path) -> None:
    """Each is cut as its name says."""
    texts = [f"text {number} " * (number % 7) for number in range(50)]
    data = write_lines(tmp_path / "b.jsonl.gz", texts)
    write_files(tmp_path, {"a.jsonl": data, "c.jsonl.xz": COMPRESS[".xz"](data), "d.jsonl": b""})
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=500)
    ranges = -(-len(data) // 500)
    assert catalog.chunk_count == ranges + 2
    assert [catalog.part_count(chunk) for chunk in range(ranges + 2)] == [1] * ranges + [None] * 2
    found = read_all(catalog, root)
    by_file = [
        [entry[1:] for entry in found if entry[0] == name]
        for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.xz")
    ]
    assert by_file[0] == by_file[1] == by_file[2]
    assert len(by_file[0]) == 50


def test_consecutive_parts_cost_one_expansion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader stays where it is; only a part behind it begins anew."""
    write_lines(tmp_path / "a.gz", ["text"] * 500)
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=100)
    opened = []
    real = compressed_jsonl.open_bytes
    monkeypatch.setattr(
        compressed_jsonl, "open_bytes", lambda source: opened.append(source.name) or real(source)
    )
    assert len(list(parts(catalog, root))) > 50
    assert len(opened) == 1
    for part in (3, 4, 7, 7, 2):
        read_part(catalog, root, 0, part)
    assert len(opened) == 4


def test_a_file_that_changes_between_two_parts_is_refused(tmp_path: Path) -> None:
    """An open reader is not asked for what is no longer there."""
    path = tmp_path / "a.gz"
    write_lines(path, ["text"] * 500)
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=100)
    read_part(catalog, root, 0, 0)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(DriftError, match=r"^a\.gz: expected identity"):
        read_part(catalog, root, 0, 1)


def test_the_field_is_looked_for_in_the_first_line(tmp_path: Path) -> None:
    """Without expanding more than the beginning."""
    path = tmp_path / "a.jsonl.gz"
    write_lines(path, ["text"] * 100_000)
    check_columns("jsonl", str(path), Content(field="text"))
    with pytest.raises(RecipeError, match=r"^text must be a field .*'txet'.*did you mean 'text'"):
        check_columns("jsonl", str(path), Content(field="txet"))
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(BadRecordError, match="file must be whole, got an end of the file inside"):
        check_columns("jsonl", str(path), Content(field="text"))


def test_conversations_are_read_as_canonical_json(tmp_path: Path) -> None:
    """The same from plain and compressed files."""
    turns = [{"role": "user", "content": 'ä "quoted"\n'}, {"role": "assistant", "content": None}]
    line = json.dumps({"id": 1, "chat": {"turns": turns}}).encode() + b"\n"
    write_files(tmp_path, {"a.jsonl": line, "b.jsonl.zst": COMPRESS[".zst"](line)})
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=1000)
    content = Content(field="chat.turns", kind="messages")
    expected = '[{"role":"user","content":"ä \\"quoted\\"\\n"},{"role":"assistant","content":null}]'
    for chunk in (0, 1):
        assert read_part(catalog, root, chunk, 0, content=content).texts == [expected]
    for wrong in ("id", "chat"):
        with pytest.raises(BadRecordError, match=f"field '{wrong}' must be a list of messages"):
            read_part(catalog, root, 0, 0, content=Content(field=wrong, kind="messages"))
        with pytest.raises(RecipeError, match="messages must be a field that holds a list of mess"):
            check_columns("jsonl", str(tmp_path / "a.jsonl"), Content(field=wrong, kind="messages"))


READ_ALL = """
import resource, sys
from pathlib import Path
from tests.data_sets import open_catalog, parts
catalog, root = open_catalog(Path(sys.argv[1]), "jsonl", chunk_bytes=1 << 18)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
largest = documents = 0
for part in parts(catalog, root):
    largest = max(largest, sum(map(len, part.texts)))
    documents += len(part)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(documents, largest, (after - before) * 1024)
"""


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("megabytes", [48, pytest.param(1024, marks=pytest.mark.long)])
def test_a_large_file_lies_neither_in_a_part_nor_in_memory(
    tmp_path: Path, megabytes: int, ending: str
) -> None:
    """A part of 256 KiB at a time, in a process of its own."""
    member = COMPRESS[ending](b'{"text": "%s"}\n' % (b"0123456789" * 1598) * 64)
    with (tmp_path / f"a{ending}").open("wb") as file:
        for _ in range(megabytes):
            file.write(member)
    found = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    documents, largest, grown = map(int, found.stdout.split())
    assert documents == 64 * megabytes
    assert largest < 300_000
    assert grown < 24 * 2**20
