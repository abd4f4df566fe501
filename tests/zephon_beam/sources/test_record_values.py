"""Lines of token ids: what JSON says of them, and what is no document."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_sets import open_catalog
from zephon_beam.catalog.scan import check_columns
from zephon_beam.errors import BadRecordError, RecipeError
from zephon_beam.sources.documents import Content, FileDocuments
from zephon_beam.sources.faults import RecordFaults
from zephon_beam.sources.jsonl import parse_lines
from zephon_beam.sources.read_part import read_part

IDS = Content(field="ids", kind="tokens", id_limit=100)
MASKED = Content(field="a.ids", kind="tokens", loss_mask="a.learned", id_limit=100)


def parse(data: bytes, content: Content = IDS) -> tuple[FileDocuments, RecordFaults]:
    """Parse lines and set faults aside."""
    faults = RecordFaults(quarantine=True)
    found = parse_lines(data, 0, content, faults, file="f", where="chunk 0")
    assert found.tokens is not None
    assert len(found.tokens.offsets) == len(found.locators) + 1 == len(found.texts) + 1
    return found, faults


def line(value: Any) -> bytes:
    """Return a line with a list of ids."""
    return json.dumps({"ids": value}).encode() + b"\n"


@given(st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=10))
def test_lists_are_those_that_were_written(rows: list[list[int]]) -> None:
    """At the places of their lines, blank ones left out."""
    lines = [line(row) for row in rows]
    found, faults = parse(b"\n \r\n".join(lines))
    assert not faults.found
    assert found.tokens is not None
    assert found.tokens.tokens.tolist() == [token for row in rows for token in row]
    lengths = (found.tokens.offsets[1:] - found.tokens.offsets[:-1]).tolist()
    assert lengths == [len(row) for row in rows]
    starts = [sum(len(before) + 4 for before in lines[:place]) for place in range(len(lines))]
    assert found.locators.tolist() == starts
    assert found.tokens.learned is None


@pytest.mark.parametrize(
    ("bad", "reason", "message"),
    [
        (b"[1, 2]", "not_object", "document must be a JSON object, got [1, 2]"),
        (b"{", "json", "document must be valid JSON"),
        (b'{"ids": "\xff"}', "utf8", "document must be valid UTF-8"),
        (b'{"id": [1]}', "missing_field", "must have the field 'ids', got none (its fields"),
        (line(None), "not_tokens", "must be a list of token ids, got null;"),
        (line("1 2"), "not_tokens", "must be a list of token ids, got '1 2';"),
        (line({"0": 1}), "not_tokens", "must be a list of token ids, got {"),
        (line([1, None]), "not_tokens", "must be a list of token ids, got null in it;"),
        (line([1, 2.0]), "not_tokens", "must be a list of token ids, got 2.0 in it;"),
        (line([1, True]), "not_tokens", "must be a list of token ids, got True in it;"),
        (line([1, "2"]), "not_tokens", "must be a list of token ids, got '2' in it;"),
        (line([[1]]), "not_tokens", "must be a list of token ids, got [1] in it;"),
        (line([1, -2]), "token_range", "must be from 0 to 99, those of the tokenizer's vocabulary"),
        (line([1, 100]), "token_range", "vocabulary, got 100;"),
        (line([1, 10**30]), "token_range", f"vocabulary, got {10**30};"),
    ],
)
def test_what_is_no_list_of_ids_is_a_fault_of_its_line(
    bad: bytes, reason: str, message: str
) -> None:
    """The lines around it stay."""
    data = line([1]) + bad.strip() + b"\n" + line([2, 3])
    found, faults = parse(data)
    assert found.tokens is not None
    assert found.tokens.tokens.tolist() == [1, 2, 3]
    assert found.tokens.offsets.tolist() == [0, 1, 1, 3]
    (entry,) = faults.found
    assert (entry.place, entry.locator, entry.reason) == (1, len(line([1])), reason)
    assert message in entry.message
    assert entry.message.startswith(f"f, byte {entry.locator}, line 2 of chunk 0: ")
    with pytest.raises(BadRecordError):
        parse_lines(data, 0, IDS, RecordFaults(quarantine=False), file="f", where="chunk 0")


def test_masks_stand_beside_their_tokens() -> None:
    """Of 0 and 1 or booleans, as long as the document, by dotted names."""
    rows = [
        {"ids": [1, 2], "learned": [1, 0]},
        {"ids": [3], "learned": [True]},
        {"ids": [4], "learned": []},
        {"ids": [5], "learned": [2]},
        {"ids": [6], "learned": None},
        {"ids": [7], "learned": [0.0]},
        {"ids": [8]},
        {"ids": [], "learned": []},
    ]
    found, faults = parse(b"".join(json.dumps({"a": r}).encode() + b"\n" for r in rows), MASKED)
    assert found.tokens is not None
    assert found.tokens.tokens.tolist() == [1, 2, 3]
    assert found.tokens.learned is not None
    assert found.tokens.learned.tolist() == [1, 0, 1]
    reasons = {entry.place: entry.reason for entry in faults.found}
    assert reasons == {
        2: "loss_mask",
        3: "loss_mask",
        4: "loss_mask",
        5: "loss_mask",
        6: "missing_field",
    }


def test_a_wrong_field_is_found_before_any_work(tmp_path: Path) -> None:
    """By the first line, naming the key of the recipe; null there may do."""
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"ids": [1], "words": ["a"], "text": "b", "none": null}\n')
    check_columns("jsonl", str(path), IDS)
    check_columns("jsonl", str(path), Content(field="none", kind="tokens"))
    with pytest.raises(RecipeError, match=r"^tokens must be a field .*'id', .*did you mean 'ids'"):
        check_columns("jsonl", str(path), Content(field="id", kind="tokens"))
    for field in ("words", "text"):
        message = f"^tokens must be a field that holds a list of integers, got '{field}'"
        with pytest.raises(RecipeError, match=message):
            check_columns("jsonl", str(path), Content(field=field, kind="tokens"))
    with pytest.raises(RecipeError, match=r"^loss_mask must be a field of the documents"):
        check_columns("jsonl", str(path), Content(field="ids", kind="tokens", loss_mask="mask"))


def test_text_files_and_archives_hold_no_tokens(tmp_path: Path) -> None:
    """They would be taken for text."""
    (tmp_path / "a.txt").write_text("a")
    for name in ("text", "webdataset"):
        with pytest.raises(RecipeError, match=f"tokens must name a field .* read as {name}"):
            check_columns(name, str(tmp_path / "a.txt"), IDS)


def test_compressed_lines_hold_tokens_too(tmp_path: Path) -> None:
    """Part by part."""
    rows = [[n, n + 1] for n in range(50)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(map(line, rows))))
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=200)
    found: list[int] = []
    part = 0
    while True:
        documents = read_part(catalog, root, 0, part, content=IDS)
        assert documents.tokens is not None
        found += documents.tokens.tokens.tolist()
        if documents.last:
            break
        part += 1
    assert found == [token for row in rows for token in row]
    assert part > 2


def test_a_compressed_file_that_ends_early_keeps_its_tokens(tmp_path: Path) -> None:
    """The line that is cut off is an empty document."""
    data = gzip.compress(b"".join(line([n]) for n in range(100)), mtime=0)
    (tmp_path / "a.jsonl.gz").write_bytes(data[: len(data) // 2])
    catalog, root = open_catalog(tmp_path, "jsonl", chunk_bytes=1 << 20)
    found = read_part(catalog, root, 0, 0, content=IDS, quarantine=True)
    assert found.tokens is not None
    assert found.quarantined
    count = len(found) - 1
    assert found.tokens.tokens.tolist() == list(range(count))
    assert found.tokens.offsets.tolist() == [*range(count + 1), count]
