"""Samples of archives that are documents with images and videos."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from zephon_beam.errors import BadRecordError, RecipeError
from zephon_beam.sources import webdataset
from zephon_beam.sources.documents import Content
from zephon_beam.sources.open_source import unchecked_source

PAIR = Content(field="jpg+txt", kind="content")
LIST = Content(field="json.parts", kind="content")


def write(path: Path, members: dict[str, bytes]) -> Path:
    """Write an archive of members in their order."""
    with tarfile.open(path, "w") as archive:
        for name, body in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return path


def documents(path: Path, content: Content) -> list[tuple[int, list[dict[str, object]]]]:
    """Read each sample by its place; ask for the places from a walk over the headers."""
    found = []
    places: dict[str, int] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            places.setdefault(member.name.split(".")[0], member.offset)
    with unchecked_source(str(path)) as source:
        for place in places.values():
            text = webdataset.read_at(source, content, place)
            assert text is not None
            found.append((place, json.loads(text)))
    return found


def test_a_joined_sample_is_its_members_in_the_order_of_the_recipe(tmp_path: Path) -> None:
    """Media as places in the archive, whatever the order of its members."""
    members = {"a.txt": b"first", "a.jpg": b"JPEG one", "b.jpg": b"2", "b.json": b"{}"}
    members |= {"b.txt": "zweité".encode()}
    path = write(tmp_path / "a.tar", members)
    data = path.read_bytes()
    texts = []
    for _, (image, text) in documents(path, PAIR):
        assert image["type"] == "image"
        start, size = image["range"]  # type: ignore[misc]
        texts.append((data[start : start + size], text["text"]))
    assert texts == [(b"JPEG one", "first"), (b"2", "zweité")]


def test_a_list_of_parts_names_members(tmp_path: Path) -> None:
    """Other sources stay as they are."""
    parts = [
        {"type": "text", "text": "x"},
        {"type": "video", "member": "clip.MP4"},
        {"type": "image", "path": "b"},
    ]
    body = json.dumps({"parts": parts}).encode()
    path = write(tmp_path / "a.tar", {"a.clip.mp4": b"frames", "a.json": body})
    ((_, found),) = documents(path, LIST)
    assert found[0] == parts[0]
    assert found[2] == parts[2]
    start, size = found[1]["range"]  # type: ignore[misc]
    assert path.read_bytes()[start : start + size] == b"frames"


@pytest.mark.parametrize(
    ("content", "members", "field"),
    [
        (PAIR, {"a.txt": b"x"}, "jpg"),
        (PAIR, {"a.jpg": b"x"}, "txt"),
        (LIST, {"a.json": b'{"parts": [{"type": "image", "member": "png"}]}'}, "png"),
    ],
)
def test_a_member_that_is_missing_is_named(
    content: Content, members: dict[str, bytes], field: str, tmp_path: Path
) -> None:
    """As a bad record of its sample."""
    path = write(tmp_path / "a.tar", members)
    with pytest.raises(BadRecordError, match=f"'a' must have the field '{field}'") as fault:
        documents(path, content)
    assert fault.value.reason == "missing_field"


def test_the_first_sample_shows_whether_the_recipe_fits(tmp_path: Path) -> None:
    """Before any work."""
    path = write(tmp_path / "a.tar", {"a.png": b"x", "a.txt": b"x"})
    with pytest.raises(RecipeError, match="got 'jpg'"):
        webdataset.check_field(str(path), PAIR)
    webdataset.check_field(str(path), Content(field="png+txt", kind="content"))
    with pytest.raises(RecipeError, match="got 'caption'"):
        webdataset.check_field(str(path), Content(field="png+caption", kind="content"))


@pytest.mark.parametrize("field", ["jpg+png", "txt+json", "jpg+", "+"])
def test_exactly_one_text_is_joined(field: str, tmp_path: Path) -> None:
    """Two would be read in one pass only by holding both."""
    path = write(tmp_path / "a.tar", {"a.jpg": b"x", "a.txt": b"x"})
    with pytest.raises(RecipeError, match="with exactly one text"):
        webdataset.check_field(str(path), Content(field=field, kind="content"))
