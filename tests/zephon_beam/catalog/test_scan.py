"""Finding files: every pattern must mean something, and order depends on names alone."""

import os
from pathlib import Path

import pytest

from tests.data_sets import write_files
from zephon_beam.catalog.scan import (
    check_columns,
    data_root,
    list_files,
    resolve_format,
    scan_file,
)
from zephon_beam.errors import RecipeError, SourceError
from zephon_beam.sources.documents import Content


def names(folder: Path, *patterns: str) -> list[str]:
    """List files by patterns below a folder, as names relative to it."""
    found = list_files([str(folder / pattern) for pattern in patterns])
    return [Path(path).relative_to(folder).as_posix() for path in found]


def test_files_are_listed_once_in_code_point_order_of_their_names(tmp_path: Path) -> None:
    """Across folders and overlapping patterns; folders and hidden files are left out."""
    listed = ["B.txt", "a-b/x.txt", "a.txt", "a/b/c.txt", "a/é.txt", "a/z.txt", "z/1.txt"]
    write_files(tmp_path, dict.fromkeys([*listed, "other.md", ".hidden.txt", "a/.h/x.txt"], b""))
    (tmp_path / "folder.txt").mkdir()
    assert names(tmp_path, "**/*.txt") == sorted(listed)
    assert names(tmp_path, "z/*.txt", "*.txt", "**/*.txt", "a.txt") == sorted(listed)
    assert names(tmp_path, "?.txt", "[ab]/*.txt") == ["B.txt", "a.txt", "a/z.txt", "a/é.txt"]
    assert names(tmp_path, ".hidden.txt") == [".hidden.txt"]


def test_a_name_that_looks_like_a_pattern_is_taken_as_it_is(tmp_path: Path) -> None:
    """If there is such a file."""
    write_files(tmp_path, {"a[1].txt": b"", "a1.txt": b""})
    assert names(tmp_path, "a[1].txt") == ["a[1].txt"]
    assert names(tmp_path, "a[0-9].txt") == ["a1.txt"]


@pytest.mark.parametrize(
    ("patterns", "root"),
    [
        (["/d/web/*.jsonl"], "/d/web"),
        (["/d/web/a.jsonl"], "/d/web"),
        (["/d/web/**/*.jsonl"], "/d/web"),
        (["/d/web-*/x/a.jsonl"], "/d"),
        (["/d/web/*.jsonl", "/d/web/more/*.jsonl"], "/d/web"),
        (["/d/web/*.jsonl", "/d/webber/*.jsonl"], "/d"),
        (["/d/[12]/a", "/d/1/a"], "/d"),
        (["/d/../e/*"], "/e"),
        (["file:///d/web/*"], "/d/web"),
        (["/*"], "/"),
        (["/a/x", "/b/y"], "/"),
    ],
)
def test_the_root_is_told_from_the_patterns_alone(patterns: list[str], root: str) -> None:
    """So that files which come or go rename no others."""
    assert data_root(patterns) == root


def test_relative_patterns_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the working directory."""
    write_files(tmp_path, {"d/a.txt": b""})
    monkeypatch.chdir(tmp_path)
    assert data_root(["d/*"]) == str(tmp_path / "d")
    assert list_files(["d/*"]) == [str(tmp_path / "d/a.txt")]


def test_a_pattern_without_files_says_what_is_wrong(tmp_path: Path) -> None:
    """The folder, the name or the kind."""
    write_files(tmp_path, {"web/train.jsonl": b"", "web/b": b"", "empty/x/y": b""})
    (tmp_path / "empty/x/y").unlink()
    message = r"files must match at least one file, got '.*/wbe/\*.jsonl', whose folder .*/wbe' d"
    with pytest.raises(SourceError, match=message):
        names(tmp_path, "web/b", "wbe/*.jsonl")
    with pytest.raises(SourceError, match=r"holds 2 other names; did you mean 'train\.jsonl'\?"):
        names(tmp_path, "web/trains.jsonl")
    with pytest.raises(SourceError, match="holds nothing; correct the pattern"):
        names(tmp_path, "empty/x/*")
    with pytest.raises(SourceError, match=r"which matches only folders; write e\.g\. '.*/web/\*\*"):
        names(tmp_path, "web")


def test_patterns_of_several_places_are_refused(tmp_path: Path) -> None:
    """With what to do instead; so is an address of no known kind."""
    for function in (data_root, list_files):
        for patterns in ([str(tmp_path), "gs://b/x"], ["gs://a/x", "gs://b/x"]):
            with pytest.raises(RecipeError, match=r"must all be in one bucket.*'gs://b/x'.*make"):
                function(patterns)
        with pytest.raises(RecipeError, match=r"files must be a local path .*'gcs://b/x'; did you"):
            function(["gcs://b/x"])


def test_files_that_cannot_be_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken link, a forbidden file, a name that is not UTF-8: none is left out silently."""
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(
        SourceError, match=r"files must be regular files, got .*/link', which is a b"
    ):
        names(tmp_path, "*")
    (tmp_path / "link").unlink()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).touch()
    with pytest.raises(SourceError, match=r"files must have names in UTF-8"):
        names(tmp_path, "*")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SourceError, match=r"files must be readable, got .*permissions"):
        names(tmp_path, "*")


@pytest.mark.parametrize(
    ("declared", "paths", "resolved"),
    [
        ("auto", ["a.jsonl", "b.ndjson", "c.JSON"], "jsonl"),
        ("auto", ["a.parquet", "b.pq"], "parquet"),
        ("auto", ["a.avro"], "avro"),
        ("auto", ["a.arrow", "b.arrows", "c.feather", "d.ipc"], "arrow"),
        ("jsonl", ["a.txt", "b"], "jsonl"),
        ("text", ["a.py", "b.md", "c.jsonl"], "text"),
        ("auto", ["a.jsonl.GZ", "b.json", "c.ndjson.bz2", "d.jsonl.zst", "e.json.xz"], "jsonl"),
        ("jsonl", ["a.gz", "b"], "jsonl"),
        ("auto", ["a.tar", "b.tar.gz", "c.tgz"], "webdataset"),
    ],
)
def test_formats_are_told_by_endings_unless_declared(
    declared: str, paths: list[str], resolved: str
) -> None:
    """Any file may be text, so that is only ever declared."""
    assert resolve_format(declared, paths) == resolved


@pytest.mark.parametrize(
    ("declared", "paths", "message"),
    [
        ("auto", ["a.jsonl", "b.parquet"], r"one for all .*'a.jsonl' \(jsonl\), 'b.parquet' \(p"),
        ("auto", ["a.txt"], "declared for files with the ending '.txt', got .*'a.txt'; .*text"),
        ("auto", ["a"], "declared for files with the ending ''"),
        ("auto", [], "one for all files of a data set, got no files"),
        ("auto", ["a.parquet.gz"], r"parquet and not compressed.*, got .*'\.gz': .*`gzip -d`"),
        ("text", ["a.txt", "b.txt.zst"], "text and not compressed.* 'b.txt.zst'; .* `zstd -d`"),
        ("text", ["a.tgz"], r"text and not compressed.*'\.tgz': .*`gzip -d`"),
        (
            "text",
            ["a.tar"],
            "that of the files, got 'text' and 'a.tar', .*format: webdataset",
        ),
        ("jsonl", ["a.jsonl", "b.pq"], "got 'jsonl' and 'b.pq', .*write format: parquet"),
        ("auto", ["a.gz"], r"declared for files with the ending '\.gz'"),
        ("auto", ["a.jsonl.gz", "b.tar"], r"one for all .*'a.jsonl.gz' \(jsonl\), 'b.tar' \(webd"),
        ("jsnl", ["a"], "one of auto, jsonl, .*got 'jsnl'; did you mean 'jsonl'"),
    ],
)
def test_unclear_formats_are_refused(declared: str, paths: list[str], message: str) -> None:
    """The error names the file and the field."""
    with pytest.raises(RecipeError, match=f"^format must be .*{message}"):
        resolve_format(declared, paths)


@pytest.mark.parametrize("format_name", ["jsonl", "text", "parquet"])
def test_a_file_that_is_gone_is_a_source_error(tmp_path: Path, format_name: str) -> None:
    """It names the file; a folder in its place is no better."""
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(SourceError, match=rf"^{path}: expected a readable file, found none"):
            scan_file(str(path), format_name)
    if format_name != "text":
        with pytest.raises(SourceError, match=r"gone: expected a (readable|Parquet) file"):
            check_columns(format_name, str(tmp_path / "gone"), Content(field="text"))


def test_identities_are_pinned_and_see_both_ends_and_the_size(tmp_path: Path) -> None:
    """They are stored in catalogs, so every later version must find the same."""
    base = bytes(range(256)) * 1024
    write_files(tmp_path, {"empty": b"", "small": b"abc", "large": base})

    def identity(name: str) -> str:
        return scan_file(str(tmp_path / name), "text").identity

    assert identity("empty") == "c804ce198ec337e3dc762bdd1a09aece"
    assert identity("small") == "9a791a7659bce30b546fdb25ab0febef"
    assert identity("large") == "3d32edaebe3a2d4f3daa289afccbbdf6"
    for place, seen in ((0, True), (65_535, True), (65_536, False), (196_607, False)):
        changed = bytearray(base)
        changed[place] ^= 1
        write_files(tmp_path, {"changed": bytes(changed)})
        assert (identity("changed") != identity("large")) == seen
    write_files(tmp_path, {"longer": base + base[-256:]})
    assert identity("longer") != identity("large")
