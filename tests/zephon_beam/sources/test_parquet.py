"""Parquet: parts cover rows exactly, in any order of reading, and columns are found by name."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_sets import open_catalog, parts, read_all, write_parquet
from zephon_beam.catalog.scan import check_columns, scan_file
from zephon_beam.errors import BadRecordError, RecipeError, SourceError
from zephon_beam.sources.documents import Content
from zephon_beam.sources.read_part import read_part


@given(
    st.lists(st.lists(st.text(max_size=20), min_size=1, max_size=25), min_size=1, max_size=3),
    st.integers(1, 10),
    st.integers(1, 500),
    st.booleans(),
)
def test_parts_cover_every_row_exactly_once(
    contents: list[list[str]], row_group_size: int, chunk_bytes: int, large: bool
) -> None:
    """Whatever the row groups and the rows of a part."""
    with tempfile.TemporaryDirectory() as folder:
        for place, texts in enumerate(contents):
            kind = pa.large_string() if large else pa.string()
            column = pa.array(texts, kind)
            write_parquet(Path(folder) / f"{place}.parquet", {"text": column}, row_group_size)
        catalog, root = open_catalog(Path(folder), "parquet", chunk_bytes=chunk_bytes)
        assert read_all(catalog, root) == [
            (f"{place}.parquet", row, text)
            for place, texts in enumerate(contents)
            for row, text in enumerate(texts)
        ]
        assert max(len(part.texts) for part in parts(catalog, root)) <= catalog.part_rows


def write_numbers(path: Path, rows: int = 1000, row_group_size: int = 300) -> list[str]:
    """Write a column of numbered texts with columns beside it."""
    texts = [f"text {row}" for row in range(rows)]
    write_parquet(path, {"id": list(range(rows)), "text": texts}, row_group_size)
    return texts


def test_parts_may_be_read_in_any_order_and_by_many_threads(tmp_path: Path) -> None:
    """Readers that stay open change speed only."""
    texts = write_numbers(tmp_path / "a.parquet")
    catalog, root = open_catalog(tmp_path, "parquet", chunk_bytes=200)
    places = [(c, p) for c in range(catalog.chunk_count) for p in range(catalog.part_count(c))]
    assert len(places) > 20

    def read(place: tuple[int, int]) -> list[str]:
        return read_part(catalog, root, *place).texts

    expected = [read(place) for place in places]
    assert [text for part in expected for text in part] == texts
    assert [read(place) for place in reversed(places)] == expected[::-1]
    interleaved = [place for step in range(7) for place in places[step::7]]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, interleaved * 3))
    assert found == [expected[places.index(place)] for place in interleaved * 3]


def test_one_pass_over_a_row_group_decodes_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader goes on where the part before it ended."""
    from zephon_beam.sources import parquet

    write_numbers(tmp_path / "a.parquet", rows=300)
    catalog, root = open_catalog(tmp_path, "parquet", chunk_bytes=200)
    opened = []
    reader = parquet._RowReader

    def counted(*arguments: object) -> object:
        opened.append(arguments)
        return reader(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(parquet, "_RowReader", counted)
    read_all(catalog, root)
    assert len(opened) == 1
    assert catalog.part_count(0) > 10


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), "dictionary"],
)
def test_every_type_of_text_is_read(tmp_path: Path, kind: object) -> None:
    """Strings, binary that holds UTF-8, and dictionaries of strings."""
    texts = ["größe", "", "a\0b", "\U0001f600"] * 3
    column = pa.array(texts).dictionary_encode() if kind == "dictionary" else None
    column = column if column is not None else pa.array(texts).cast(kind)
    write_parquet(tmp_path / "a.parquet", {"text": column}, 5)
    check_columns("parquet", str(tmp_path / "a.parquet"), Content(field="text"))
    catalog, root = open_catalog(tmp_path, "parquet")
    assert [text for _, _, text in read_all(catalog, root)] == texts


def test_a_dotted_name_leads_into_structs_unless_a_column_has_that_name(tmp_path: Path) -> None:
    """An exact name comes first."""
    nested = [{"b": f"nested {row}", "c": {"d": f"deep {row}"}} for row in range(9)]
    write_parquet(tmp_path / "a.parquet", {"a": nested, "a.b": ["exact"] * 9}, 4)
    catalog, root = open_catalog(tmp_path, "parquet")
    assert [text for _, _, text in read_all(catalog, root, "a.b")] == ["exact"] * 9
    assert [text for _, _, text in read_all(catalog, root, "a.c.d")][8] == "deep 8"
    write_parquet(tmp_path / "a.parquet", {"a": nested}, 4)
    catalog, root = open_catalog(tmp_path, "parquet")
    assert [text for _, _, text in read_all(catalog, root, "a.b")][8] == "nested 8"


def test_a_wrong_column_is_found_before_any_work(tmp_path: Path) -> None:
    """By the footer, naming the columns there are."""
    path = tmp_path / "a.parquet"
    write_parquet(path, {"content": ["a"], "meta": [{"txt": "b"}], "id": [7], "tags": [["x"]]})
    message = "text must be a field .*got 'contents', .*'content', 'meta.txt', .*mean 'content'"
    with pytest.raises(RecipeError, match=message):
        check_columns("parquet", str(path), Content(field="contents"))
    with pytest.raises(RecipeError, match=r"did you mean 'meta\.txt'"):
        check_columns("parquet", str(path), Content(field="meta.text"))
    with pytest.raises(RecipeError, match="got 'id', which holds values of type int64"):
        check_columns("parquet", str(path), Content(field="id"))
    with pytest.raises(RecipeError, match="got 'tags', which holds values of type list"):
        check_columns("parquet", str(path), Content(field="tags"))
    check_columns("parquet", str(path), Content(field="meta.txt"))


def test_a_file_without_the_column_is_a_source_error(tmp_path: Path) -> None:
    """Files of one data set may differ; the first one alone is checked before."""
    write_parquet(tmp_path / "a.parquet", {"text": ["a"]})
    write_parquet(tmp_path / "b.parquet", {"body": ["a"], "tex": ["b"]})
    write_parquet(tmp_path / "c.parquet", {"text": [1]})
    catalog, root = open_catalog(tmp_path, "parquet")
    with pytest.raises(SourceError, match=r"b\.parquet: expected a column 'text' .*mean 'tex'"):
        read_part(catalog, root, 1, 0)
    with pytest.raises(SourceError, match=r"c\.parquet: expected a column 'text' .*type int64"):
        read_part(catalog, root, 2, 0)


@pytest.mark.parametrize(
    ("column", "message", "reason"),
    [
        (["a"] * 7 + [None], "field 'text' must be a text, got null", "not_text"),
        ([b"a"] * 7 + [b"ab\xff"], "must be valid UTF-8, got byte 0xff at byte 2 of it", "utf8"),
    ],
)
def test_a_fault_names_file_row_consequence_and_repair(
    tmp_path: Path, column: list[object], message: str, reason: str
) -> None:
    """The row is counted within the file."""
    write_parquet(tmp_path / "a.parquet", {"text": column}, 3)
    catalog, root = open_catalog(tmp_path, "parquet", chunk_bytes=1)
    with pytest.raises(BadRecordError, match=message) as caught:
        read_all(catalog, root)
    assert str(caught.value).startswith("a.parquet, row 7: ")
    assert "every run would stop here" in str(caught.value)
    assert str(caught.value).endswith("remove the row, then run the recipe into a new place")
    assert (caught.value.file, caught.value.locator, caught.value.reason) == (
        "a.parquet",
        7,
        reason,
    )


def test_a_null_struct_has_no_text(tmp_path: Path) -> None:
    """Its inner field is null too, although a value may lie beneath."""
    write_parquet(tmp_path / "a.parquet", {"a": [{"b": "x"}, None]})
    catalog, root = open_catalog(tmp_path, "parquet", chunk_bytes=1 << 20)
    with pytest.raises(BadRecordError, match=r"row 1: field 'a\.b' must be a text, got null"):
        read_all(catalog, root, "a.b")


def test_files_and_row_groups_without_rows_are_no_trouble(tmp_path: Path) -> None:
    """They have no chunks, or chunks without documents."""
    schema = pa.schema([("text", pa.string())])
    pq.write_table(schema.empty_table(), tmp_path / "a.parquet")
    with pq.ParquetWriter(tmp_path / "b.parquet", schema) as writer:
        writer.write_table(pa.table({"text": ["x", "y"]}), row_group_size=1)
        writer.write_table(schema.empty_table())
        writer.write_table(pa.table({"text": ["z"]}))
    catalog, root = open_catalog(tmp_path, "parquet")
    assert [text for _, _, text in read_all(catalog, root)] == ["x", "y", "z"]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all, but long enough"])
def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    """When its footer is read."""
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"a\.parquet: expected a Parquet file, found none .*; r"):
        scan_file(str(path), "parquet")
    with pytest.raises(SourceError, match="expected a Parquet file"):
        check_columns("parquet", str(path), Content(field="text"))


def test_damage_inside_a_file_names_the_row_group(tmp_path: Path) -> None:
    """Behind the edges that the identity covers, only reading finds it."""
    path = tmp_path / "a.parquet"
    texts = [f"{row} {'x' * 100}" for row in range(5000)]
    pq.write_table(
        pa.table({"text": texts}),
        path,
        row_group_size=1000,
        compression="none",
        use_dictionary=False,
        data_page_size=1000,
    )
    catalog, root = open_catalog(tmp_path, "parquet", chunk_bytes=1 << 20)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle - 10_000 : middle + 10_000] = b"\xff" * 20_000
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"a\.parquet: expected whole Parquet data, found damage"):
        read_all(catalog, root)
