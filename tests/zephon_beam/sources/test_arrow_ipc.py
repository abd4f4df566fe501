"""Arrow IPC: files and streams alike deliver each row once, in parts, and damage is named."""

import io
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_sets import open_catalog, parts, read_all
from zephon_beam.catalog.scan import check_columns, scan_file
from zephon_beam.errors import BadRecordError, RecipeError, SourceError
from zephon_beam.sources import arrow_ipc
from zephon_beam.sources.documents import Content
from zephon_beam.sources.read_part import read_part

FORMS = ("file", "stream")


def encode(
    batches: list[Any],
    form: str,
    *,
    schema: Any = None,
    compression: str | None = None,
    deltas: bool = False,
) -> bytes:
    """Encode record batches as a file or as a stream."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=deltas)
    make = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with make(sink, schema or batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def batch_of(texts: list[Any], kind: Any = None, **others: list[str]) -> Any:
    """Make a record batch with a column of texts, which others may stand beside."""
    column = pa.array(texts, kind or pa.string())
    return pa.record_batch({"text": column, **others})


@given(
    st.lists(
        st.lists(st.lists(st.text(max_size=20), max_size=12), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ).filter(lambda files: any(texts for file in files for texts in file)),
    st.integers(1, 500),
    st.sampled_from(FORMS),
    st.sampled_from([None, "lz4", "zstd"]),
    st.sampled_from([pa.string(), pa.large_string()]),
)
def test_parts_cover_every_row_exactly_once(
    files: list[list[list[str]]], chunk_bytes: int, form: str, compression: str, kind: Any
) -> None:
    """As PyArrow reads them, whatever the batches and the rows of a part."""
    with tempfile.TemporaryDirectory() as name:
        folder, expected = Path(name), []
        for place, texts_of_batches in enumerate(files):
            batches = [batch_of(texts, kind) for texts in texts_of_batches]
            path = folder / f"{place}.arrow"
            path.write_bytes(encode(batches, form, compression=compression))
            with (pa.ipc.open_file if form == "file" else pa.ipc.open_stream)(path) as reader:
                texts = reader.read_all().column("text").to_pylist()
            expected += [(path.name, row, text) for row, text in enumerate(texts)]
        catalog, root = open_catalog(folder, "arrow", chunk_bytes=chunk_bytes)
        assert catalog.chunk_count == sum(map(len, files))
        assert read_all(catalog, root) == expected
        assert max(len(part.texts) for part in parts(catalog, root)) <= catalog.part_rows


@pytest.mark.parametrize("form", FORMS)
def test_row_groups_are_the_batches_and_their_expanded_bytes(tmp_path: Path, form: str) -> None:
    """Compressed or not, a batch stands for about what it takes in memory."""
    batches = [batch_of(["same text"] * rows) for rows in (1000, 1, 0, 3000)]
    sizes = []
    for compression in (None, "zstd"):
        path = tmp_path / f"{compression}.arrow"
        path.write_bytes(encode(batches, form, compression=compression))
        groups = scan_file(str(path), "arrow").row_groups
        assert [rows for rows, _ in groups] == [1000, 1, 0, 3000]
        sizes.append([size for _, size in groups])
    for plain, expanded, batch in zip(*sizes, batches, strict=True):
        assert expanded <= plain <= expanded + 200
        assert expanded >= batch.nbytes - 16
    assert 2 * path.stat().st_size < sum(sizes[0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.string_view(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
    ids=str,
)
def test_every_type_of_text_is_read(tmp_path: Path, kind: Any, form: str) -> None:
    """Strings, binary that holds UTF-8, views and dictionaries of them, sliced into batches."""
    texts = ["größe", "", "a\0b", "\U0001f600 and more than twelve bytes"] * 3
    column = pa.array(texts, kind.value_type if pa.types.is_dictionary(kind) else kind)
    column = column.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else column
    whole = pa.record_batch({"text": column})
    batches = [whole.slice(0, 5), whole.slice(5, 5), whole.slice(10)]
    (tmp_path / "a.arrow").write_bytes(encode(batches, form))
    check_columns("arrow", str(tmp_path / "a.arrow"), Content())
    catalog, root = open_catalog(tmp_path, "arrow", chunk_bytes=100)
    assert [text for _, _, text in read_all(catalog, root)] == texts


@pytest.mark.parametrize("deltas", [False, True])
def test_dictionaries_that_grow_or_are_replaced_are_those_of_their_batch(
    tmp_path: Path, deltas: bool
) -> None:
    """A stream may send another one before any batch; batches are read in any order."""
    words = [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]] if deltas else [["a"], ["b"], ["c"]]
    other = pa.array(["x", "y"]).dictionary_encode()
    batches = []
    for row, values in enumerate(words):
        indices = pa.array([len(values) - 1, row % len(values)], pa.int32())
        column = pa.DictionaryArray.from_arrays(indices, pa.array(values))
        batches.append(pa.record_batch({"other": other, "text": column}))
    (tmp_path / "a.arrows").write_bytes(encode(batches, "stream", deltas=deltas))
    expected = [text for batch in batches for text in batch.column("text").to_pylist()]
    catalog, root = open_catalog(tmp_path, "arrow", chunk_bytes=1 << 20)
    assert [text for _, _, text in read_all(catalog, root)] == expected
    backwards = [read_part(catalog, root, chunk, 0).texts for chunk in (2, 1, 0)]
    assert [text for texts in reversed(backwards) for text in texts] == expected
    if deltas:
        (tmp_path / "a.arrows").write_bytes(encode(batches, "file", deltas=True))
        catalog, root = open_catalog(tmp_path, "arrow", chunk_bytes=1 << 20)
        assert [text for _, _, text in read_all(catalog, root)] == expected


def test_feather_files_are_read_and_those_of_version_1_refused(tmp_path: Path) -> None:
    """Version 2 is an Arrow file; its usual compression is LZ4."""
    table = pa.table({"text": ["a", "b", "c"]})
    pyarrow.feather.write_feather(table, tmp_path / "a.feather", chunksize=2)
    catalog, root = open_catalog(tmp_path, "arrow")
    assert [text for _, _, text in read_all(catalog, root)] == ["a", "b", "c"]
    (tmp_path / "a.feather").write_bytes(b"FEA1" + b"\0" * 60 + b"FEA1")
    with pytest.raises(SourceError, match="Feather version 1"):
        scan_file(str(tmp_path / "a.feather"), "arrow")


@pytest.mark.parametrize("form", FORMS)
def test_only_the_columns_that_are_wanted_are_read_of_a_file(tmp_path: Path, form: str) -> None:
    """A stream's batch is read whole; either way a batch is decoded once for all its parts."""
    wide = ["x" * 1000] * 500
    batches = [batch_of([f"text {n}" for n in range(500)], a=wide, z=wide)]
    path = tmp_path / "a.arrow"
    path.write_bytes(encode(batches, form))
    catalog, root = open_catalog(tmp_path, "arrow", chunk_bytes=50_000)
    assert catalog.part_count(0) > 10
    taken = []
    read = arrow_ipc.SourceFile.read

    def counted(self: Any, start: int, length: int) -> bytes:
        taken.append(length)
        return read(self, start, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_ipc.SourceFile, "read", counted)
        assert len(read_all(catalog, root)) == 500
    assert sum(taken) < (50_000 if form == "file" else 1.1 * path.stat().st_size)


@pytest.mark.parametrize("form", FORMS)
def test_parts_may_be_read_in_any_order_and_by_many_threads(tmp_path: Path, form: str) -> None:
    """Batches that are kept change speed only."""
    batches = [batch_of([f"text {n} of {b}" for n in range(100)]) for b in range(3)]
    (tmp_path / "a.arrow").write_bytes(encode(batches, form, compression="lz4"))
    catalog, root = open_catalog(tmp_path, "arrow", chunk_bytes=200)
    places = [(c, p) for c in range(3) for p in range(catalog.part_count(c) or 0)]
    assert len(places) > 20

    def read(place: tuple[int, int]) -> list[str]:
        return read_part(catalog, root, *place).texts

    expected = [read(place) for place in places]
    assert [read(place) for place in reversed(places)] == expected[::-1]
    interleaved = [place for step in range(7) for place in places[step::7]]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, interleaved * 3))
    assert found == [expected[places.index(place)] for place in interleaved * 3]


def test_kept_batches_are_bounded_by_their_bytes() -> None:
    """The newest stays, however large; the longest unused go first."""
    kept = arrow_ipc._Batches(100_000)
    arrays = [(pa.array(["x" * 40_000]),) for _ in range(4)]
    for place, entry in enumerate(arrays):
        kept.keep(place, entry)
    assert [kept.take(place) is not None for place in range(4)] == [False, False, True, True]
    kept.keep("large", (pa.array(["x" * 200_000]),))
    assert kept.take("large") is not None


@pytest.mark.parametrize("form", FORMS)
def test_files_without_rows_batches_or_bytes_are_no_trouble(tmp_path: Path, form: str) -> None:
    """They have no chunks, or chunks without documents."""
    schema = pa.schema([("text", pa.string())])
    (tmp_path / "a.arrow").write_bytes(b"")
    (tmp_path / "b.arrow").write_bytes(encode([], form, schema=schema))
    batches = [batch_of([], pa.string()), batch_of(["x"]), batch_of([], pa.string())]
    (tmp_path / "c.arrow").write_bytes(encode(batches, form))
    catalog, root = open_catalog(tmp_path, "arrow")
    assert [text for _, _, text in read_all(catalog, root)] == ["x"]


def test_a_stream_without_an_end_mark_is_whole(tmp_path: Path) -> None:
    """Writers may leave it out."""
    data = encode([batch_of(["x"]), batch_of(["y"])], "stream")
    assert data.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    (tmp_path / "a.arrows").write_bytes(data[:-8])
    catalog, root = open_catalog(tmp_path, "arrow")
    assert [text for _, _, text in read_all(catalog, root)] == ["x", "y"]


def test_streams_one_behind_the_other_are_refused(tmp_path: Path) -> None:
    """Else all but the first would be lost without a word."""
    data = encode([batch_of(["x"])], "stream")
    (tmp_path / "a.arrows").write_bytes(data + data)
    with pytest.raises(SourceError, match=f"{len(data)} bytes follow the end of its stream"):
        scan_file(str(tmp_path / "a.arrows"), "arrow")


@pytest.mark.parametrize("form", FORMS)
def test_truncation_is_found_before_any_work(tmp_path: Path, form: str) -> None:
    """Anywhere in a file; in a stream anywhere but between two messages."""
    data = encode([batch_of([f"text {n}"] * 20) for n in range(3)], form)
    path = tmp_path / "a.arrow"
    whole = []
    ends = [len(data) - 8, *(place for place in range(8, len(data)) if starts_message(data, place))]
    for length in sorted({*ends, *range(1, len(data), 7)}):
        path.write_bytes(data[:length])
        try:
            scan_file(str(path), "arrow")
            whole.append(length)
        except SourceError as error:
            assert "a.arrow: expected" in str(error)  # noqa: PT017
    assert len(whole) == (0 if form == "file" else 4)


def starts_message(data: bytes, place: int) -> bool:
    """Say whether a message, or the end mark, may begin at a place."""
    return place % 8 == 0 and data[place : place + 4] == b"\xff" * 4


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_damage_is_an_error_or_leaves_all_rows_in_place(
    tmp_path: Path, form: str, compression: str | None
) -> None:
    """Whichever byte is wrong: never a crash, a hang, or a row more or less."""
    batches = [batch_of([f"text {n} {b}" for n in range(5)]) for b in range(2)]
    data = encode(batches, form, compression=compression)
    path = tmp_path / "a.arrow"
    for place in range(8, len(data), 3):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            catalog, root = open_catalog(tmp_path, "arrow", chunk_bytes=1 << 20)
            found = read_all(catalog, root)
        except SourceError as error:
            assert "a.arrow" in str(error)  # noqa: PT017
        else:
            assert [row for _, row, _ in found] == list(range(10)), place


def test_a_footer_that_lists_other_batches_is_damage(tmp_path: Path) -> None:
    """Else rows could be lost without a word."""
    one, two = (encode([batch_of(["a"])] * number, "file") for number in (1, 2))
    footers = [int.from_bytes(data[-10:-6], "little") + 10 for data in (one, two)]
    path = tmp_path / "a.arrow"
    path.write_bytes(two[: -footers[1]] + one[-footers[0] :])
    with pytest.raises(SourceError, match=r"found damage .2 batches, but 1 in its footer"):
        scan_file(str(path), "arrow")


def test_a_footer_with_another_schema_is_damage(tmp_path: Path) -> None:
    """Else a column could be taken for another."""
    batch = pa.record_batch({"ids": [[5]], "learned": [[1]]})
    data = encode([batch], "file")
    place = data.rindex(b"ids\0")
    assert place > data.index(b"ids\0")
    (tmp_path / "a.arrow").write_bytes(data[:place] + b"idz\0" + data[place + 4 :])
    catalog, root = open_catalog(tmp_path, "arrow", chunk_bytes=1 << 20)
    content = Content(field="ids", kind="tokens", loss_mask="learned")
    with pytest.raises(SourceError, match="batch 0: its columns are not those of the schema"):
        read_part(catalog, root, 0, 0, content=content)


@pytest.mark.parametrize("content", [b"ARROW1", b"not arrow at all, but long enough", b"\0" * 64])
def test_a_file_that_is_not_arrow_is_refused(tmp_path: Path, content: bytes) -> None:
    """When its messages are looked for."""
    path = tmp_path / "a.arrow"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"a\.arrow: expected an Arrow IPC file or stream, found"):
        scan_file(str(path), "arrow")
    with pytest.raises(SourceError, match="expected an Arrow IPC file"):
        check_columns("arrow", str(path), Content())


def test_a_wrong_column_is_found_before_any_work(tmp_path: Path) -> None:
    """By the schema, naming the columns there are."""
    batch = pa.record_batch({"content": ["a"], "meta": [{"txt": "b"}], "id": [7]})
    path = tmp_path / "a.arrow"
    path.write_bytes(encode([batch], "file"))
    with pytest.raises(RecipeError, match=r"got 'contents', .*'meta\.txt', .*mean 'content'"):
        check_columns("arrow", str(path), Content(field="contents"))
    with pytest.raises(RecipeError, match="got 'id', which holds values of type int64"):
        check_columns("arrow", str(path), Content(field="id"))
    check_columns("arrow", str(path), Content(field="meta.txt"))
    catalog, root = open_catalog(tmp_path, "arrow")
    assert [text for _, _, text in read_all(catalog, root, "meta.txt")] == ["b"]
    with pytest.raises(SourceError, match=r"a\.arrow: expected a column 'text' .*found none"):
        read_all(catalog, root)


@pytest.mark.parametrize("form", FORMS)
def test_a_fault_names_file_row_consequence_and_repair(tmp_path: Path, form: str) -> None:
    """The row is counted within the file."""
    batches = [batch_of([b"a"] * 3, pa.binary()), batch_of([b"a", b"ab\xff", None], pa.binary())]
    (tmp_path / "a.arrow").write_bytes(encode(batches, form))
    catalog, root = open_catalog(tmp_path, "arrow", chunk_bytes=1)
    with pytest.raises(BadRecordError, match="must be valid UTF-8, got byte 0xff at byte 2 of it"):
        read_all(catalog, root)
    whole, root = open_catalog(tmp_path, "arrow", chunk_bytes=1 << 20)
    found = read_part(whole, root, 1, 0, quarantine=True)
    assert found.texts == ["a", "", ""]
    assert [(q.place, q.locator, q.reason) for q in found.quarantined] == [
        (1, 4, "utf8"),
        (2, 5, "not_text"),
    ]
    assert found.quarantined[0].message.startswith("a.arrow, row 4: ")
    assert found.quarantined[0].message.endswith(
        "remove the row, then run the recipe into a new place"
    )
