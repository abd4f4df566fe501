"""The catalog: the same bytes from the same files, found again by bisection, damage refused."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.catalog import encoding
from zephon_beam.catalog.encoding import decode_table, encode_table, same_catalog
from zephon_beam.catalog.scan import FileScan
from zephon_beam.catalog.table import Catalog, build_catalog, derive_chunk_bytes
from zephon_beam.errors import CorruptObjectError, RecipeError, SourceError
from zephon_beam.recipe import Recipe, ShuffleRecipe, TokenizerRecipe
from zephon_beam.recipe_datasets import DatasetRecipe

GROUPS = ((30, 3000), (0, 0), (7, 900))


def scan(name: str, size: int, row_groups: tuple[tuple[int, int], ...] = ()) -> FileScan:
    """Make up a file."""
    return FileScan(path=f"/data/{name}", size=size, identity=f"{size:032x}", row_groups=row_groups)


def build(scans: Sequence[FileScan], format_name: str = "jsonl", chunk_bytes: int = 10) -> Catalog:
    """Build and open a catalog."""
    data = build_catalog("web", format_name, "/data", scans, chunk_bytes=chunk_bytes)
    return Catalog.from_buffer(data, "catalog/web.arrow")


SCANS = [scan("a", 25), scan("b/é", 0), scan("c", 10), scan("d", 3)]


def test_digests_are_pinned() -> None:
    """Catalogs of today are recognised by every later version; the digest is in the fingerprint."""
    assert build(SCANS).digest == "2cd05b292b2f060aeb60219bd5aeef88"
    assert build(SCANS, "text").digest == "c632fa67f0b8b165ecbcee73476f5845"
    assert (
        build([scan("a", 99, GROUPS), scan("b", 4)], "parquet").digest
        == "0c3a30ab07399f86d1b118d3cbefbae5"
    )


@given(st.permutations(SCANS), st.sampled_from(["jsonl", "text"]))
def test_bytes_do_not_depend_on_the_order_of_scans(scans: list[FileScan], format_name: str) -> None:
    """Nor on a file that is scanned twice."""
    expected = build_catalog("web", format_name, "/data", SCANS, chunk_bytes=10)
    for given_scans in (scans, [*scans, scans[0]]):
        assert build_catalog("web", format_name, "/data", given_scans, chunk_bytes=10) == expected


def test_bytes_do_not_depend_on_where_the_root_is() -> None:
    """Only names relative to it are stored."""
    moved = [replace(item, path=item.path.replace("/data", "/elsewhere")) for item in SCANS]
    data = build_catalog("web", "jsonl", "/elsewhere", moved, chunk_bytes=10)
    assert data == build_catalog("web", "jsonl", "/data", SCANS, chunk_bytes=10)
    assert b"elsewhere" not in data


def test_every_value_enters_the_digest() -> None:
    """Another name, size, identity, row group, cut, data set or format is another catalog."""
    parquet = [scan("a", 99, GROUPS), scan("b", 4)]
    catalogs = [
        build(SCANS),
        build([*SCANS[:3], scan("e", 3)]),
        build([*SCANS[:3], scan("d", 4)]),
        build([*SCANS[:3], replace(SCANS[3], identity="f" * 32)]),
        build(SCANS[:3]),
        build(SCANS, chunk_bytes=11),
        build(SCANS, "text"),
        build(parquet, "parquet"),
        build([scan("a", 99, GROUPS[:2]), scan("b", 4, GROUPS[2:])], "parquet"),
        build([scan("a", 99, (*GROUPS[:2], (7, 901))), scan("b", 4)], "parquet"),
        Catalog.from_buffer(
            build_catalog("web2", "jsonl", "/data", SCANS, chunk_bytes=10), "catalog"
        ),
    ]
    assert len({catalog.digest for catalog in catalogs}) == len(catalogs)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=20), st.integers(1, 15))
def test_ranges_are_found_again(sizes: list[int], chunk_bytes: int) -> None:
    """In file order, with empty files anywhere."""
    sizes[-1] = sizes[-1] or 1
    catalog = build([scan(f"{i:02d}", size) for i, size in enumerate(sizes)], "jsonl", chunk_bytes)
    found = [catalog.chunk(chunk) for chunk in range(catalog.chunk_count)]
    assert [(c.chunk, c.first_file, c.start, c.stop) for c in found] == [
        (chunk, file, start, min(start + chunk_bytes, sizes[file]))
        for chunk, (file, start) in enumerate(
            (file, start)
            for file, size in enumerate(sizes)
            for start in range(0, size, chunk_bytes)
        )
    ]
    assert {(c.file_count, c.row_group) for c in found} == {(1, -1)}
    assert sum(catalog.part_source_bytes(c.chunk, 0) for c in found) == sum(sizes)
    assert catalog.source_bytes == sum(sizes)
    assert {catalog.part_count(c.chunk) for c in found} == {1}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=20), st.integers(1, 60))
def test_runs_are_found_again(sizes: list[int], chunk_bytes: int) -> None:
    """Each file is in exactly one, in order."""
    sizes[-1] = sizes[-1] or 1
    catalog = build([scan(f"{i:02d}", size) for i, size in enumerate(sizes)], "text", chunk_bytes)
    found = [catalog.chunk(chunk) for chunk in range(catalog.chunk_count)]
    files = [f for c in found for f in range(c.first_file, c.first_file + c.file_count)]
    assert files == list(range(len(sizes)))
    assert all(c.file_count > 0 for c in found)
    assert sum(catalog.part_source_bytes(c.chunk, 0) for c in found) == sum(sizes)


ROW_GROUPS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5000)), max_size=5)


@given(st.lists(ROW_GROUPS, min_size=1, max_size=8), st.integers(1, 2000))
def test_row_groups_are_found_again(groups: list[list[tuple[int, int]]], chunk_bytes: int) -> None:
    """With files without row groups and row groups without rows anywhere."""
    groups[-1].append((1, 1))
    scans = [scan(f"{i:02d}", 4, tuple(file)) for i, file in enumerate(groups)]
    catalog = build(scans, "parquet", chunk_bytes)
    chunk = 0
    for file, file_groups in enumerate(groups):
        first_row = 0
        for row_group, (rows, row_bytes) in enumerate(file_groups):
            found = catalog.chunk(chunk)
            assert (found.first_file, found.row_group) == (file, row_group)
            assert (found.start, found.stop) == (first_row, first_row + rows)
            part_count = catalog.part_count(chunk)
            assert part_count == max(1, len(range(0, rows, catalog.part_rows)))
            total = sum(catalog.part_source_bytes(chunk, part) for part in range(part_count))
            assert total == (row_bytes if rows else 0)
            first_row += rows
            chunk += 1
    assert catalog.chunk_count == chunk


def test_files_keep_name_size_and_identity() -> None:
    """As scanned, in name order."""
    catalog = build(SCANS[::-1])
    assert catalog.file_count == 4
    assert [catalog.file_name(file) for file in range(4)] == ["a", "b/é", "c", "d"]
    assert [catalog.file_size(file) for file in range(4)] == [25, 0, 10, 3]
    assert catalog.file_identity(0) == f"{25:032x}"
    assert (catalog.dataset, catalog.format, catalog.chunk_bytes) == ("web", "jsonl", 10)
    assert (catalog.chunk_count, catalog.source_bytes, catalog.part_rows) == (5, 38, 0)


@pytest.mark.parametrize("chunk", [-1, 5])
def test_there_is_no_chunk_outside_the_catalog(chunk: int) -> None:
    """Numbers are checked, never wrapped around."""
    catalog = build(SCANS)
    for look_up in (catalog.chunk, lambda number: catalog.part_source_bytes(number, 0)):
        with pytest.raises(IndexError, match=r"chunk must be in \[0, 5\) of data set 'web', got"):
            look_up(chunk)
    with pytest.raises(IndexError):
        build([scan("a", 9, GROUPS)], "parquet").part_count(3 if chunk > 0 else -1)


@pytest.mark.parametrize(
    ("scans", "format_name", "message"),
    [
        ([scan("a", 0), scan("b", 0)], "jsonl", "must hold documents, got 2 files with no bytes"),
        ([scan("a", 0)], "text", "must hold documents, got 1 files with no bytes"),
        ([], "jsonl", "must hold documents, got 0 files"),
        ([scan("a", 9, ((0, 0),))], "parquet", "must hold documents, got 1 files with no rows"),
        ([scan("a", 9)], "parquet", "must hold documents, got 1 files with no rows"),
    ],
)
def test_an_empty_data_set_is_refused(
    scans: list[FileScan], format_name: str, message: str
) -> None:
    """The error names it and what to do."""
    with pytest.raises(SourceError, match=rf"^datasets\.web {message}.*; correct `files`, or rem"):
        build(scans, format_name)


def test_a_file_that_changes_while_it_is_scanned_is_refused() -> None:
    """Two scans of it differ."""
    with pytest.raises(SourceError, match=r"datasets\.web: a: expected one content, found two"):
        build([scan("a", 1), scan("a", 2)])


def test_damage_is_refused_wherever_it_is() -> None:
    """Every byte that carries a value is covered; none may crash the process."""
    data = build_catalog("web", "parquet", "/data", [scan("a", 9, GROUPS)], chunk_bytes=10)
    expected = Catalog.from_buffer(data, "c").digest
    with pytest.raises(CorruptObjectError, match=r"^c is corrupt: .*; restore it from a copy, or"):
        Catalog.from_buffer(data[:-20], "c")
    refused = 0
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x41
        try:
            catalog = Catalog.from_buffer(bytes(damaged), "c")
        except CorruptObjectError:
            refused += 1
            continue
        # Padding, and what Arrow itself ignores.
        assert catalog.digest == expected
        assert catalog.chunk(2) == Catalog.from_buffer(data, "c").chunk(2)
    assert refused > len(data) // 3
    for size in range(0, len(data), 7):
        with pytest.raises(CorruptObjectError):
            Catalog.from_buffer(data[:size], "c")


def test_other_arrow_files_are_refused() -> None:
    """A file may be whole and still be no catalog."""
    table = pa.table({"name": ["a"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(CorruptObjectError, match=r"^c is corrupt"):
        Catalog.from_buffer(bytes(sink.getvalue()), "c")


def test_an_unknown_version_or_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the advice to read it with the version that wrote it."""
    table, _ = decode_table(build_catalog("web", "jsonl", "/data", SCANS, chunk_bytes=10), "c")
    with pytest.raises(CorruptObjectError, match=r"c: format must be one of .*got 'tar'; read it"):
        Catalog.from_buffer(encode_table(replace(table, format="tar")), "c")
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "FORMAT_VERSION", 2)
        newer = encode_table(table)
    with pytest.raises(
        CorruptObjectError, match="c: format version must be 1, got 2; read it with"
    ):
        Catalog.from_buffer(newer, "c")


def test_catalogs_with_equal_values_are_the_same_whatever_wrote_them() -> None:
    """Two versions of Arrow may pad or order metadata otherwise."""
    data = build_catalog("web", "jsonl", "/data", SCANS, chunk_bytes=10)
    with pa.ipc.open_file(data) as reader:
        batch, metadata = reader.get_batch(0), reader.schema.metadata
    schema = batch.schema.with_metadata(dict(reversed(list(metadata.items()))))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(batch.columns, schema=schema))
    rewritten = bytes(sink.getvalue())
    assert rewritten != data
    assert same_catalog(rewritten, data)
    assert same_catalog(data, rewritten)
    other = build_catalog("web", "jsonl", "/data", SCANS[:3], chunk_bytes=10)
    assert not same_catalog(data, other)
    assert not same_catalog(b"", data)


def test_opening_100_000_files_takes_milliseconds() -> None:
    """Columns stay where they are and chunks are found by bisection."""
    scans = [scan(f"part-{i:06d}.jsonl", 1000 + i) for i in range(100_000)]
    data = build_catalog("web", "jsonl", "/data", scans, chunk_bytes=100)
    started = time.process_time()
    catalog = Catalog.from_buffer(memoryview(data), "c")
    opened = time.process_time() - started
    started = time.process_time()
    last = catalog.chunk(catalog.chunk_count - 1)
    assert time.process_time() - started < 0.01
    assert opened < 0.5
    assert catalog.file_name(last.first_file) == "part-099999.jsonl"
    for chunk in range(0, catalog.chunk_count, 1_000_003):
        found = catalog.chunk(chunk)
        assert found.start < found.stop <= catalog.file_size(found.first_file)


def recipe(
    *, lanes: int = 8, datasets: int = 1, interleave: int = 16, chunk_bytes: int | None = None
) -> Recipe:
    """Make up a recipe."""
    return Recipe(
        name="r",
        tokenizer=TokenizerRecipe(path="t"),
        datasets={f"d{i}": DatasetRecipe(files="x") for i in range(datasets)},
        lanes=lanes,
        shuffle=ShuffleRecipe(interleave=interleave),
        chunk_bytes=chunk_bytes,
    )


KIB, MIB = 1024, 1024 * 1024


@pytest.mark.parametrize(
    ("options", "source_bytes", "expected"),
    [
        ({}, 10**12, 256 * KIB),
        ({}, 64 * 256 * KIB, 256 * KIB),
        ({}, 64 * 100_000, 98_304),
        ({}, 0, 16 * KIB),
        ({"lanes": 1}, 8 * 20_480, 20_480),
        ({"lanes": 1, "datasets": 4, "interleave": 128}, 10**12, 128 * KIB),
        ({"lanes": 128}, 10**12, 128 * KIB),
        ({"lanes": 1024}, 10**12, 16 * KIB),
        ({"chunk_bytes": 5}, 10**12, 5),
        ({"chunk_bytes": 2 * MIB}, 10**12, 2 * MIB),
    ],
)
def test_chunk_bytes_are_derived_from_the_recipe_and_the_size(
    options: dict[str, int], source_bytes: int, expected: int
) -> None:
    """256 KiB at most, eight chunks a lane, 64 MiB a lane, 256 MiB in all, 16 KiB at least."""
    assert derive_chunk_bytes(recipe(**options), source_bytes) == expected


def test_lanes_that_would_keep_too_much_open_are_refused() -> None:
    """The error names what to lower."""
    message = r"chunk_bytes must be at most 8192 with 2048 lanes, 1 .*16, got 16384 \(the minimum\)"
    with pytest.raises(RecipeError, match=message + ".*256 MiB; lower lanes or shuffle.interleave"):
        derive_chunk_bytes(recipe(lanes=2048), 10**12)
    message = "chunk_bytes must be at most 2097152 .*got 2097153; .*lower chunk_bytes, lanes or s"
    with pytest.raises(RecipeError, match=message):
        derive_chunk_bytes(recipe(chunk_bytes=2 * MIB + 1), 10**12)


def test_columns_are_views_of_the_mapped_file() -> None:
    """Nothing is copied when a catalog is opened."""
    data = build_catalog("web", "parquet", "/data", [scan("a", 9, GROUPS)], chunk_bytes=10)
    table, _ = decode_table(memoryview(data), "c")
    lowest = np.frombuffer(data, dtype=np.uint8).__array_interface__["data"][0]
    for column in (table.sizes, table.first_chunks, table.row_group_rows, table.names.offsets):
        address = column.__array_interface__["data"][0]
        assert lowest <= address < lowest + len(data)
