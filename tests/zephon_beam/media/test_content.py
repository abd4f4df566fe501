"""Interleaved content, and that no path leads out of the data set's root."""

import base64
import json
import pickle
from pathlib import Path

import pytest

from zephon_beam.media.content import (
    MediaFault,
    MediaPart,
    TextPart,
    parse_content,
    resolve_path,
)


def parse(*parts: object, root: str = "/data") -> list[object]:
    """Read parts as a document has them."""
    return list(parse_content(json.dumps(parts), root))


def test_parts_are_texts_and_items_in_their_order() -> None:
    """With each of the sources that an item may have; null fields are absent, others ignored."""
    data = base64.b64encode(b"\x00\xff").decode()
    assert parse(
        {"type": "text", "text": "a"},
        {"type": "image", "path": "x/1.jpg", "base64": None, "width": 5},
        {"type": "video", "base64": data},
        {"type": "image", "bytes": data},
    ) == [
        TextPart(text="a"),
        MediaPart(is_video=False, path="x/1.jpg"),
        MediaPart(is_video=True, data=b"\x00\xff"),
        MediaPart(is_video=False, data=b"\x00\xff"),
    ]


def test_members_of_an_archive_are_stretches_of_it() -> None:
    """Only where the document's own file is one."""
    part = json.dumps([{"type": "video", "range": [512, 9]}])
    expected = [MediaPart(is_video=True, path="a.tar", range=(512, 9))]
    assert list(parse_content(part, "/data", "a.tar")) == expected
    with pytest.raises(MediaFault, match="part 0 must have no `range`"):
        parse_content(part, "/data")


def test_an_address_below_the_root_is_a_path() -> None:
    """Only in the bucket of the data set."""
    part = {"type": "image", "url": "gs://b/data/x/1.jpg"}
    assert parse(part, root="gs://b/data") == [MediaPart(is_video=False, path="x/1.jpg")]
    for root in ("gs://b/dat", "gs://c/data", "/data"):
        with pytest.raises(MediaFault, match="part 0 must have a `url` below") as fault:
            parse(part, root=root)
        assert fault.value.reason == "outside"


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"text": "a"}, "part 1 must have a `type` of text, image or video, got None"),
        ({"type": "audio", "path": "a"}, "got 'audio'"),
        ({"type": "text"}, "must have a text in `text`, got NoneType"),
        ({"type": "image"}, r"must have one of path, url, base64, bytes, got \[\]"),
        ({"type": "image", "path": "a", "url": "b"}, r"got \['path', 'url'\]"),
        ({"type": "image", "path": 5}, "must have a text in `path`, got 5"),
        ({"type": "image", "base64": "a b"}, "must have base64 in `base64`"),
        ({"type": "image", "range": [1]}, "must have no `range`"),
    ],
)
def test_wrong_parts_are_named(part: object, text: str) -> None:
    """By their number in the document."""
    with pytest.raises(MediaFault, match=text) as fault:
        parse({"type": "text", "text": ""}, part)
    assert fault.value.reason == "content"


def test_a_document_without_parts_is_refused() -> None:
    """It would be an empty sequence."""
    with pytest.raises(MediaFault, match="must have at least one part"):
        parse()


@pytest.mark.parametrize("value", [[1], [-1, 4], [1, 2, 3], "12", [True, 4]])
def test_a_stretch_is_two_numbers(value: object) -> None:
    """Of bytes."""
    with pytest.raises(MediaFault, match="must have two numbers in `range`"):
        parse_content(json.dumps([{"type": "image", "range": value}]), "/data", "a.tar")


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../a", "a/../../b", "a/..", "a//b", "..", "s3://b/a", "a\\..\\b", "a\0b"],
)
@pytest.mark.parametrize("root", ["/data", "gs://b/data"])
def test_paths_that_could_lead_out_are_refused(path: str, root: str) -> None:
    """In folders and in buckets."""
    with pytest.raises(MediaFault, match="path must") as fault:
        resolve_path(root, path)
    assert fault.value.reason == "outside"


def test_a_link_that_leads_out_of_the_root_is_refused(tmp_path: Path) -> None:
    """As a file, as a folder, and through a second link; links within the root are files."""
    root, secret = tmp_path / "data", tmp_path / "secret"
    (root / "inner").mkdir(parents=True)
    secret.mkdir()
    (secret / "a").write_bytes(b"x")
    (root / "file").symlink_to(secret / "a")
    (root / "folder").symlink_to(secret)
    (root / "chain").symlink_to("file")
    (root / "inner" / "b").write_bytes(b"y")
    (root / "good").symlink_to(root / "inner" / "b")
    for path in ("file", "folder/a", "chain"):
        with pytest.raises(MediaFault, match="got the link"):
            resolve_path(str(root), path)
    assert resolve_path(str(root), "good") == str(root / "good")
    assert resolve_path(str(root), "inner/b") == str(root / "inner" / "b")


def test_a_root_may_itself_be_a_link(tmp_path: Path) -> None:
    """Data sets are often mounted so."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_bytes(b"x")
    (tmp_path / "root").symlink_to("real")
    assert resolve_path(str(tmp_path / "root"), "a") == str(tmp_path / "root" / "a")


def test_a_neighbour_whose_name_begins_alike_is_outside(tmp_path: Path) -> None:
    """`/data` and `/data-secret` share a beginning, not a folder."""
    for name in ("data", "data-secret"):
        (tmp_path / name).mkdir()
    (tmp_path / "data-secret" / "a").write_bytes(b"x")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "data-secret" / "a")
    with pytest.raises(MediaFault, match="got the link"):
        resolve_path(str(tmp_path / "data"), "link")


def test_a_fault_keeps_its_reason_between_processes() -> None:
    """Workers send errors to their parent."""
    fault = pickle.loads(pickle.dumps(MediaFault("missing", "no such file")))  # noqa: S301
    assert (fault.reason, str(fault)) == ("missing", "no such file")
