"""JSON Lines: each document once whatever the ranges, and faults that name their place."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_sets import Found, open_catalog, read_all, write_files
from zephon_beam.catalog.scan import check_columns
from zephon_beam.errors import BadRecordError, RecipeError, SourceError
from zephon_beam.sources.documents import Content
from zephon_beam.sources.faults import RecordFaults
from zephon_beam.sources.jsonl import parse_lines
from zephon_beam.sources.read_part import read_part

BOM = b"\xef\xbb\xbf"

TEXTS = st.text(max_size=40)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """Draw one line: a document in any spelling, or a blank one."""
    kind = draw(st.sampled_from(["plain", "plain", "ascii", "spaced", "long", "blank", "other"]))
    if kind == "blank":
        return draw(st.sampled_from([b"", b" ", b"\t \t", b"\x0b"]))
    text = draw(TEXTS)
    if kind == "long":
        text *= draw(st.integers(1, 50))
    body = json.dumps({"text": text, "n": 1}, ensure_ascii=kind == "ascii").encode()
    if kind == "other":
        body = body.replace(b'"n"', b'"text": null, "text": "last wins", "n"')
    return b"\t " + body + b"  " if kind == "spaced" else body


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Draw a file: some lines, either line end, with or without a mark and a last line end."""
    content = b""
    for line in draw(st.lists(lines(), max_size=12)):
        content += line + draw(st.sampled_from([b"\n", b"\n", b"\r\n"]))
    if draw(st.booleans()):
        content = content.removesuffix(b"\n").removesuffix(b"\r")
    return BOM + content if draw(st.booleans()) else content


def read_naively(name: str, content: bytes) -> list[Found]:
    """Read a whole file line by line."""
    found = []
    offset = 0
    for line in content.split(b"\n"):
        body = line.removeprefix(BOM) if offset == 0 else line
        if body.strip():
            found.append((name, offset, json.loads(body)["text"]))
        offset += len(line) + 1
    return found


@given(st.lists(files(), min_size=1, max_size=3), st.integers(1, 300))
def test_every_document_is_in_exactly_one_chunk(contents: list[bytes], chunk_bytes: int) -> None:
    """Whatever the ranges, line lengths, line ends and blank lines."""
    named = {f"{place}.jsonl": content for place, content in enumerate(contents)}
    if not any(contents):
        named["9.jsonl"] = b'{"text": ""}'
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), named)
        catalog, root = open_catalog(Path(folder), "jsonl", chunk_bytes=chunk_bytes)
        expected = [document for name in named for document in read_naively(name, named[name])]
        assert read_all(catalog, root) == expected


ODD_LINES = [
    b'{"text": "plain"}',
    b'{"text": "\\ud83d\\ude00", "n": {"text": [1]}}',
    b'{"text":\n"in two lines"}',
    b'{"text": "\\ud800"}',
    b'{"text": "cut',
    b'{"text": "a\ttab"}',
    b'{"text": 1}',
    b'{"other": "a"}',
    b'["text"]',
    b'"text"',
    b'{"text": "a"} b',
    b'{"text": "a"} ',
    b' {"text": "a"}\r',
    b'{"deep": ' + b"[" * 300 + b"]" * 300 + b', "text": "a"}',
    b"",
]


@given(st.lists(st.sampled_from(ODD_LINES), max_size=6))
def test_a_line_is_judged_alike_whatever_stands_beside_it(lines: list[bytes]) -> None:
    """Lines of ASCII are parsed in place, those beside others one at a time."""
    found = []
    for last in (b'{"text": "e"}', '{"text": "\u00e9"}'.encode()):
        faults = RecordFaults(quarantine=True)
        parsed = parse_lines(
            b"\n".join([*lines, last]), 5, Content(), faults, file="f", where="chunk 0"
        )
        found.append((parsed.texts[:-1], parsed.locators.tolist(), faults.found))
        assert len(parsed.texts) == len(parsed.locators)
    assert found[0] == found[1]


@pytest.mark.parametrize("chunk_bytes", [1 << 16, 1 << 20, 1 << 26])
def test_a_line_longer_than_any_step_is_read_whole(tmp_path: Path, chunk_bytes: int) -> None:
    """A document of 20 MB spans many ranges; only the first of them delivers it."""
    texts = ["before", "x" * 20_000_000, "after"]
    body = "\n".join(json.dumps({"text": text}) for text in texts)
    write_files(tmp_path, {"a.jsonl": body.encode()})
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=chunk_bytes)
    assert [text for _, _, text in read_all(catalog, root)] == texts


def test_lines_end_with_a_line_feed_alone(tmp_path: Path) -> None:
    """Other characters that Unicode counts as line ends belong to the text."""
    text = "a\u2028b\u2029c\u0085d"
    spelt = json.dumps({"text": text}, ensure_ascii=False)
    write_files(tmp_path, {"a.jsonl": f'{{"text":\r"one"}}\r\r\n{spelt}'.encode()})
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=1000)
    assert [found for _, _, found in read_all(catalog, root)] == ["one", text]


def test_nul_and_paired_surrogates_are_text(tmp_path: Path) -> None:
    """Escapes that spell valid Unicode are kept."""
    write_files(tmp_path, {"a.jsonl": rb'{"text": "a\u0000b \ud83d\ude00 \\ud800"}'})
    catalog, root = open_catalog(tmp_path, "jsonl")
    assert [text for _, _, text in read_all(catalog, root)] == ["a\0b \U0001f600 \\ud800"]


@pytest.mark.parametrize(
    ("field", "line", "expected"),
    [
        ("a.b", {"a": {"b": "nested"}}, "nested"),
        ("a.b", {"a.b": "exact", "a": {"b": "nested"}}, "exact"),
        ("a.b.c", {"a": {"b": {"c": "deep"}}}, "deep"),
        ("größe", {"größe": "unicode"}, "unicode"),
    ],
)
def test_a_dotted_field_leads_into_objects(
    tmp_path: Path, field: str, line: dict[str, object], expected: str
) -> None:
    """An exact name comes first."""
    write_files(tmp_path, {"a.jsonl": json.dumps(line).encode()})
    catalog, root = open_catalog(tmp_path, "jsonl")
    assert [text for _, _, text in read_all(catalog, root, field)] == [expected]


DEEP = b"[" * 100_000
FAULTS = [
    (b'{"text": "\xff"}', "utf8", r"document must be valid UTF-8, got byte 0xff at byte 10 of"),
    (b'{"text": "\xed\xa0\x80"}', "utf8", "document must be valid UTF-8, got byte 0xed"),
    (b'{"text": "a', "json", r"document must be valid JSON, got .*Unterminated string"),
    (b'{"text": "a"} {"text": "b"}', "json", "document must be valid JSON, got .*Extra data"),
    (b'{"text": "a\tb"}', "json", "document must be valid JSON, got .*Invalid control character"),
    (b'{"text": "a"}\xc2\xa0', "json", "document must be valid JSON, got .*Extra data"),
    (b'\xef\xbb\xbf{"text": "a"}', "json", "document must be valid JSON"),
    (DEEP, "json", r"document must be nested at most 256 levels deep, got b'\[+…"),
    (b'["text"]', "not_object", r"document must be a JSON object, got an array: \['text'\]"),
    (b'"text"', "not_object", "document must be a JSON object, got a text: 'text'"),
    (b"null", "not_object", "document must be a JSON object, got null"),
    (b"17", "not_object", "document must be a JSON object, got a number: 17"),
    (
        b'{"body": "a", "test": 1}',
        "missing_field",
        "must have the field 'text', got none .its fields are 'body', 'test'; did you mean 'test'",
    ),
    (b"{}", "missing_field", "document must have the field 'text', got none .its fields are none"),
    (b'{"text": null}', "not_text", "field 'text' must be a text, got null"),
    (b'{"text": true}', "not_text", "field 'text' must be a text, got a boolean: True"),
    (b'{"text": ["a"]}', "not_text", r"field 'text' must be a text, got an array: \['a'\]"),
    (
        rb'{"text": "ab\ud800"}',
        "surrogate",
        r"must be encodable as UTF-8, got the lone surrogate U\+D800 at character 2",
    ),
    (rb'{"text": "\uDEAD"}', "surrogate", r"got the lone surrogate U\+DEAD at character 0"),
]


@pytest.mark.parametrize(("line", "reason", "message"), FAULTS)
def test_a_fault_names_file_place_consequence_and_repair(
    tmp_path: Path, line: bytes, reason: str, message: str
) -> None:
    """The place is the line's byte offset, counted from the start of the file."""
    good = b'{"text": "good"}\n'
    write_files(tmp_path, {"sub/a.jsonl": good * 3 + b"\n" + line + b"\n" + good})
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=len(good))
    with pytest.raises(BadRecordError, match=message) as caught:
        read_all(catalog, root)
    text = str(caught.value)
    assert text.startswith("sub/a.jsonl, byte 52, line 2 of chunk 3: ")
    assert "every run would stop here" in text
    assert text.endswith("then run the recipe into a new place")
    assert (caught.value.file, caught.value.locator) == ("sub/a.jsonl", 52)
    assert caught.value.reason == reason


def test_a_fault_is_raised_by_the_chunk_that_holds_it_alone(tmp_path: Path) -> None:
    """Neighbours can still be read."""
    write_files(tmp_path, {"a.jsonl": b'{"text": "1"}\n\xff\xff\xff\n{"text": "3"}\n'})
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=14)
    with pytest.raises(BadRecordError):
        read_part(catalog, root, 1, 0)
    assert read_part(catalog, root, 0, 0).texts == ["1"]
    assert read_part(catalog, root, 2, 0).texts == []


def test_a_wrong_field_is_found_before_any_work(tmp_path: Path) -> None:
    """By the first document, naming the fields it has."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(BOM + b'\n\n{"content": "a", "meta": {"txt": "b"}, "id": 7}\n')
    message = "text must be a field .* got 'contents', .*fields are 'content', .*mean 'content'"
    with pytest.raises(RecipeError, match=message):
        check_columns("jsonl", str(path), Content(field="contents"))
    with pytest.raises(RecipeError, match=r"fields are .*'meta\.txt'.*did you mean 'meta\.txt'"):
        check_columns("jsonl", str(path), Content(field="meta.text"))
    with pytest.raises(RecipeError, match="field that holds text, got 'id', which holds a number"):
        check_columns("jsonl", str(path), Content(field="id"))
    check_columns("jsonl", str(path), Content(field="content"))
    check_columns("jsonl", str(path), Content(field="meta.txt"))


@pytest.mark.parametrize(
    "content",
    [b"", b"\n \n", b'{"text": null}', b'{"other": "' + b"x" * 70_000 + b'"}\n{"other": 1}'],
)
def test_what_the_first_document_cannot_tell_is_not_checked(tmp_path: Path, content: bytes) -> None:
    """No document, a null, or a first line of more than 64 KiB."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    check_columns("jsonl", str(path), Content(field="text"))


def test_a_first_line_that_is_no_json_is_found_before_any_work(tmp_path: Path) -> None:
    """And a file whose name does not say that it is compressed."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xff\x8b\x08\n")
    with pytest.raises(BadRecordError, match="line 1: document must be valid UTF-8"):
        check_columns("jsonl", str(path), Content(field="text"))
    path.write_bytes(b"\x1f\x8b\x08\n")
    message = "not compressed, as its name says, found gzip data; .* so that it ends in .gz"
    with pytest.raises(SourceError, match=message):
        check_columns("jsonl", str(path), Content(field="text"))


def test_one_range_is_read_for_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The range, the byte before it and one step for the last line; nothing more."""
    from zephon_beam.sources import places

    write_files(tmp_path, {"a.jsonl": b'{"text": "0123456789"}\n' * 10_000})
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=100_000)
    read_part(catalog, root, 1, 0)
    reads: list[tuple[int, int]] = []
    pread = places.os.pread

    def counted(descriptor: int, length: int, start: int) -> bytes:
        reads.append((start, length))
        return pread(descriptor, length, start)

    monkeypatch.setattr(places.os, "pread", counted)
    read_part(catalog, root, 1, 0)
    assert reads == [(99_999, 100_001), (200_000, 8192)]


@pytest.mark.parametrize(("depth", "is_deep"), [(254, False), (255, False), (256, True)])
@pytest.mark.parametrize("form", ['{{"x": {0}, "text": "a"}}', '{{"text": {0}, "text": "a"}}'])
def test_depth_counts_wherever_it_is_and_brackets_in_texts_do_not(
    tmp_path: Path, form: str, depth: int, is_deep: bool
) -> None:
    """Also below a key whose value a later one replaces; Python's own limit varies."""
    inner = "[" * depth + json.dumps("[" * 999 + '\\"{"' * 99) + "]" * depth
    write_files(tmp_path, {"a.jsonl": form.format(inner).encode()})
    catalog, root = open_catalog(tmp_path, "jsonl")
    if is_deep:
        with pytest.raises(BadRecordError, match="nested at most 256 levels deep"):
            read_all(catalog, root)
    else:
        assert [text for _, _, text in read_all(catalog, root)] == ["a"]
