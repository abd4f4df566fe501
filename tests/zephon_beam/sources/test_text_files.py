"""Text files: one document a file, in runs of consecutive files."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_sets import open_catalog, parts, read_all, write_files
from zephon_beam.errors import BadRecordError


@given(
    st.lists(st.text(max_size=30), min_size=1),
    st.integers(1, 100),
)
def test_every_file_is_one_document_in_one_run(texts: list[str], chunk_bytes: int) -> None:
    """Whatever the sizes; runs close once they hold enough."""
    if not any(texts):
        texts[0] = "x"
    texts = [text.removeprefix("\ufeff") for text in texts] + ["x"]
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{place:03d}.txt" for place in range(len(texts))]
        contents = [text.encode() for text in texts]
        write_files(Path(folder), dict(zip(names, contents, strict=True)))
        catalog, root = open_catalog(Path(folder), "text", chunk_bytes=chunk_bytes)
        expected = [(name, 0, text) for name, text in zip(names, texts, strict=True)]
        assert read_all(catalog, root) == expected
        runs = [[len(text.encode()) for text in part.texts] for part in parts(catalog, root)]
        assert all(sum(run) >= chunk_bytes for run in runs[:-1])
        assert all(sum(run[:-1]) < chunk_bytes for run in runs)
        assert [part.source_bytes for part in parts(catalog, root)] == [sum(run) for run in runs]


def test_content_is_kept_but_for_a_byte_order_mark(tmp_path: Path) -> None:
    """Line ends, spaces and an empty file stay as they are."""
    contents = {"a": b"\xef\xbb\xbfone\r\n two \r\n", "b": b"", "c": b"\xef\xbb\xbf", "d": b"\0\n"}
    write_files(tmp_path, contents)
    catalog, root = open_catalog(tmp_path, "text")
    assert [text for _, _, text in read_all(catalog, root)] == ["one\r\n two \r\n", "", "", "\0\n"]


def test_invalid_utf8_names_file_byte_and_repair(tmp_path: Path) -> None:
    """The byte is counted within the file, mark included."""
    write_files(tmp_path, {"a.txt": b"fine", "sub/b.txt": b"\xef\xbb\xbfab\xff"})
    catalog, root = open_catalog(tmp_path, "text")
    message = (
        r"^sub/b\.txt, byte 5: document must be valid UTF-8, got byte 0xff; every run .*place$"
    )
    with pytest.raises(BadRecordError, match=message) as caught:
        read_all(catalog, root)
    assert (caught.value.file, caught.value.reason) == ("sub/b.txt", "utf8")
