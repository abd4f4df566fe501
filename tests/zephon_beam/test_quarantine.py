"""Quarantine files say which documents were set aside, and never differ between twins."""

import json
from pathlib import Path

import pytest

from zephon_beam.errors import DeterminismError
from zephon_beam.quarantine import READ, write_quarantine
from zephon_beam.sources.documents import Quarantined
from zephon_beam.store.local import LocalStore

NAME = "quarantine/web/000001-000000002-000003.read.jsonl"


def entry(locator: int, reason: str = "json", message: str = "m") -> Quarantined:
    """Return an entry of a document."""
    return Quarantined(
        place=0, file="a\udcff\n.jsonl", locator=locator, reason=reason, message=message
    )


def write(store: LocalStore, *entries: Quarantined) -> None:
    """Write what one stage found in one part."""
    write_quarantine(store, entries, dataset="web", pass_=1, chunk=2, part=3, stage=READ)


def test_one_json_object_a_line_in_order(tmp_path: Path) -> None:
    """With everything that a person needs to find the record."""
    store = LocalStore(str(tmp_path))
    write(store, entry(7, message="line\n\u2028 two"), entry(3, "utf8"))
    lines = (tmp_path / NAME).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"file": "a\udcff\n.jsonl", "locator": 7, "reason": "json", "message": "line\n\u2028 two"},
        {"file": "a\udcff\n.jsonl", "locator": 3, "reason": "utf8", "message": "m"},
    ]


def test_nothing_is_written_for_a_part_without_faults(tmp_path: Path) -> None:
    """Not even the folder."""
    write(LocalStore(str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_twin_writes_the_same_file(tmp_path: Path) -> None:
    """The wording of a message is somebody else's: it may hold an address in memory."""
    store = LocalStore(str(tmp_path))
    write(store, entry(7, message="<object at 0x7f01>"))
    write(store, entry(7, message="<object at 0x7f02>"))
    assert "0x7f01" in (tmp_path / NAME).read_text()


@pytest.mark.parametrize("other", [[entry(8)], [entry(7, "utf8")], [entry(7), entry(8)]])
def test_other_documents_or_reasons_are_refused(tmp_path: Path, other: list[Quarantined]) -> None:
    """Two computations of one part must agree on what is bad."""
    store = LocalStore(str(tmp_path))
    write(store, entry(7))
    with pytest.raises(DeterminismError, match="quarantine/web"):
        write(store, *other)
    (tmp_path / NAME).write_text("no JSON\n")
    with pytest.raises(DeterminismError, match="quarantine/web"):
        write(store, entry(7))
