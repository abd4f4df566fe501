"""Sources in buckets: found by the same patterns, read by ranges, and the same documents."""

import gzip
import json
import os
from collections.abc import Callable
from glob import glob
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_sets import read_all
from tests.object_stores import proxy_before
from zephon_beam.catalog.scan import data_root, file_sizes, list_files, scan_file
from zephon_beam.catalog.table import Catalog, build_catalog
from zephon_beam.errors import DriftError, SourceError
from zephon_beam.sources.object_listing import matches
from zephon_beam.sources.read_part import read_part
from zephon_beam.store import bucket as limits
from zephon_beam.store.base import open_store

# The client of Google leaves the connections of answers that it does not read to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NAMES = st.sampled_from(["a", "b", "ab", ".a", "a.x", ".x", "[a]"])
PARTS = st.sampled_from(["a", "*", "?", "**", "a*", "*.x", ".*", "[ab]", "[!a]", "[[]a]", "b"])


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a folder with files at all depths up to 3, and their names."""
    root = tmp_path_factory.mktemp("tree")
    folders = ["", "a/", "b/", ".a/", "a/b/", "a/.a/", "a/b/ab/", "b/[a]/"]
    names = [f"{folder}{name}" for folder in folders for name in ("f", "ff.x", ".f", "b.x", "[f]")]
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root, names


@given(parts=st.lists(PARTS, min_size=1, max_size=4))
def test_patterns_mean_what_they_mean_for_files(
    tree: tuple[Path, list[str]], parts: list[str]
) -> None:
    """Compared with the standard library's `glob` on a real folder."""
    root, names = tree
    pattern = "/".join(parts)
    found = glob(str(root / pattern), recursive=True)
    expected = {os.path.relpath(path, root) for path in found if os.path.isfile(path)}
    assert {name for name in names if matches(name, pattern)} == expected


def put(address: str, contents: dict[str, bytes]) -> None:
    """Write objects below an address."""
    store = open_store(address)
    for name, content in contents.items():
        store.replace(name, content)


def test_objects_are_found_in_the_order_of_their_names(gcs: str) -> None:
    """Each once, with names relative to the folder that all patterns share; folders are none."""
    put(gcs, {f"data/{name}": b"x" for name in ("b.x", "a/c.x", "a-b/c.x", "B.x", "d.y", ".e.x")})
    patterns = [f"{gcs}/data/**/*.x", f"{gcs}/data/*.y", f"{gcs}/data/b.x"]
    root = data_root(patterns)
    assert root == f"{gcs}/data"
    found = list_files(patterns)
    assert [path[len(root) + 1 :] for path in found] == ["B.x", "a-b/c.x", "a/c.x", "b.x", "d.y"]
    assert data_root([f"{gcs}/data/b.x"]) == f"{gcs}/data"
    assert data_root([f"{gcs}/*.x"]) == gcs
    assert file_sizes(root, found) == dict.fromkeys(found, 1)


def test_what_matches_nothing_is_told_with_a_hint(gcs: str) -> None:
    """What is there instead, and what may have been meant."""
    put(gcs, {"data/web/a.jsonl": b"x", "data/web/b.jsonl": b"x"})
    for pattern, reason in (
        ("data/web", r"which is a folder; write e.g. '.*/data/web/\*\*/\*.jsonl'"),
        ("data/web/c.jsonl", r"there are 2 names; did you mean '[ab].jsonl'\?"),
        ("nothing/*", "below '.*/nothing' there are none; correct the pattern"),
    ):
        with pytest.raises(SourceError, match=f"must match .* one object, got .*{reason}"):
            list_files([f"{gcs}/{pattern}"])


LINES = [json.dumps({"text": f"document {number} {'x' * (number % 97)}"}) for number in range(999)]
BODY = "".join(f"{line}\n" for line in LINES).encode()


def jsonl(path: Path) -> None:
    """Write JSON lines."""
    path.write_bytes(BODY)


def compressed(path: Path) -> None:
    """Write compressed JSON lines."""
    path.write_bytes(gzip.compress(BODY, mtime=0))


def parquet(path: Path) -> None:
    """Write Parquet with several row groups."""
    texts = [json.loads(line)["text"] for line in LINES]
    pq.write_table(pa.table({"n": list(range(999)), "text": texts}), path, row_group_size=100)


def arrow(path: Path) -> None:
    """Write an Arrow file with several batches."""
    table = pa.table({"n": list(range(999)), "text": [json.loads(line)["text"] for line in LINES]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


def text(path: Path) -> None:
    """Write one document."""
    path.write_text("a text of its own: " + path.name)


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "jsonl": ("jsonl", jsonl),
    "jsonl.gz": ("jsonl", compressed),
    "parquet": ("parquet", parquet),
    "arrow": ("arrow", arrow),
    "txt": ("text", text),
}


def catalog_of(pattern: str, format_name: str) -> tuple[Catalog, str]:
    """Return (the catalog of the files that match a pattern, their root)."""
    root = data_root([pattern])
    scans = [scan_file(path, format_name) for path in list_files([pattern])]
    data = build_catalog("data", format_name, root, scans, chunk_bytes=16 * 1024)
    return Catalog.from_buffer(data, "catalog"), root


@pytest.mark.parametrize("kind", ["gcs", "s3"])
@pytest.mark.parametrize("ending", WRITERS)
def test_every_format_gives_the_documents_of_local_files(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, ending: str
) -> None:
    """In the same chunks; only the identities in the catalogs differ."""
    bucket = request.getfixturevalue(kind)
    format_name, write = WRITERS[ending]
    for name in ("a", "b"):
        write(tmp_path / f"{name}.{ending}")
        put(bucket, {f"d/{name}.{ending}": (tmp_path / f"{name}.{ending}").read_bytes()})
    local, local_root = catalog_of(f"{tmp_path}/*.{ending}", format_name)
    remote, remote_root = catalog_of(f"{bucket}/d/*.{ending}", format_name)
    assert remote.chunk_count == local.chunk_count
    assert remote.file_identity(0).startswith("crc32c-" if kind == "gcs" else "etag-")
    found = read_all(remote, remote_root)
    assert len(found) == (2 if ending == "txt" else 2 * len(LINES))
    assert found == read_all(local, local_root)


def test_an_object_is_described_once_and_its_chunks_are_ranges(
    gcs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request for metadata a file and process; one for a chunk, and one for its last line."""
    put(gcs, {"d/a.jsonl": BODY})
    with proxy_before(os.environ["STORAGE_EMULATOR_HOST"]) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.address)
        catalog, root = catalog_of(f"{gcs}/d/*.jsonl", "jsonl")
        # The listing, the metadata, and the first bytes, which tell a compression.
        assert len(proxy.requests) == 3
        assert catalog.chunk_count >= 4
        proxy.requests.clear()
        read_all(catalog, root)
        assert len(proxy.requests) <= 2 * catalog.chunk_count
        assert all("alt=media&generation=" in request for request in proxy.requests)


@pytest.mark.parametrize("kind", ["gcs", "s3"])
def test_an_object_that_is_replaced_is_refused(request: pytest.FixtureRequest, kind: str) -> None:
    """Even in its middle and at the same size; one that is written again as it was is not."""
    address = f"{request.getfixturevalue(kind)}/d"
    put(address, {"a.jsonl": BODY})
    catalog, root = catalog_of(f"{address}/*.jsonl", "jsonl")
    assert len(read_part(catalog, root, 0, 0).texts) > 10
    put(address, {"a.jsonl": BODY})
    assert len(read_part(catalog, root, 1, 0).texts) > 10
    middle = len(BODY) // 2
    put(address, {"a.jsonl": BODY[:middle] + BODY[middle:].replace(b"xxxx", b"yyyy")})
    with pytest.raises(DriftError, match=r"^a.jsonl: expected it, found it replaced or deleted"):
        read_part(catalog, root, 1, 0)
    with pytest.raises(DriftError, match=r"^a.jsonl: expected identity .*, found "):
        read_part(catalog, root, 1, 0)
    open_store(address).delete("a.jsonl")
    with pytest.raises(
        SourceError, match=r"^a.jsonl: expected a file, found none \(.*://.*/d/a.js"
    ):
        read_part(catalog, root, 1, 0)


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "arrow"])
def test_a_store_that_fails_is_no_damage_of_a_file(
    gcs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """It is an error of the system, which a runner tries again."""
    format_name, write = WRITERS[ending]
    write(tmp_path / "a")
    put(gcs, {f"d/a.{ending}": (tmp_path / "a").read_bytes()})
    catalog, root = catalog_of(f"{gcs}/d/*", format_name)
    with proxy_before(os.environ["STORAGE_EMULATOR_HOST"]) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.address)
        monkeypatch.setattr(limits, "DEADLINE_SECS", 0.2)
        proxy.fail("503", for_ever=True)
        with pytest.raises(OSError, match=r"store must be able to read gs://.* check the network"):
            read_part(catalog, root, 1, 0)
        proxy.fail()
        assert len(read_part(catalog, root, 1, 0).texts) > 10
