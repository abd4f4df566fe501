"""Arrow columns: tokens are those of PyArrow whatever the list's type; faults have their rows."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_sets import open_catalog, write_parquet
from zephon_beam.catalog.scan import check_columns
from zephon_beam.errors import BadRecordError, RecipeError, SourceError
from zephon_beam.sources.arrow_arrays import read_columns, resolve_columns
from zephon_beam.sources.documents import Content, TokenLists
from zephon_beam.sources.faults import RecordFaults
from zephon_beam.sources.read_part import read_part

IDS = Content(field="ids", kind="tokens", id_limit=100)
MASKED = Content(field="ids", kind="tokens", loss_mask="learned", id_limit=100)
INTEGERS = [
    pa.int8(),
    pa.uint8(),
    pa.int16(),
    pa.uint16(),
    pa.int32(),
    pa.uint32(),
    pa.int64(),
    pa.uint64(),
]


def read(
    stretches: list[tuple[Any, ...]], content: Content = IDS
) -> tuple[TokenLists, RecordFaults]:
    """Read stretches of rows and set faults aside."""
    faults = RecordFaults(quarantine=True)
    texts, tokens = read_columns(stretches, content, faults, file="f", first_row=10)
    assert tokens is not None
    assert texts == [""] * (len(tokens.offsets) - 1)
    return tokens, faults


def rows_of(lists: TokenLists) -> list[list[int]]:
    """Return the ids of each document."""
    spans = pairwise(lists.offsets.tolist())
    return [lists.tokens[start:stop].tolist() for start, stop in spans]


@given(
    st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=10),
    st.sampled_from(INTEGERS),
    st.sampled_from([pa.list_, pa.large_list]),
    st.lists(st.integers(0, 10), max_size=3),
)
def test_lists_are_those_of_pyarrow(
    rows: list[list[int]], kind: Any, make: Any, cuts: list[int]
) -> None:
    """Of any integers, cut into stretches anywhere, empty ones too."""
    array = pa.array(rows, make(kind))
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    lists, faults = read([(array[low:high],) for low, high in pairwise(bounds)])
    assert rows_of(lists) == rows
    assert lists.tokens.dtype == np.uint32
    assert lists.offsets.dtype == np.int64
    assert not faults.found


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=10), st.integers(0, 9))
def test_fixed_size_lists_are_read_from_any_row(rows: list[tuple[int, int]], first: int) -> None:
    """Their offset counts rows, not values."""
    array = pa.array(rows, pa.list_(pa.int32(), 2))[first:]
    assert rows_of(read([(array,)])[0]) == [list(row) for row in rows[first:]]


def test_ids_of_32_bits_stay_where_they_are() -> None:
    """The same memory as Arrow's; others are converted once."""
    for kind in (pa.int32(), pa.uint32()):
        array = pa.array([[1, 2], [3]], pa.list_(kind))
        lists, _ = read([(array,)])
        assert lists.tokens.ctypes.data == array.values.buffers()[1].address


ROWS: list[Any] = [[1, 2], None, [3, None], [4, -5], [], [6, 100], [7]]


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_rows_with_a_fault_come_out_empty_and_are_named(make: Any, first: int) -> None:
    """Null, null inside, negative, beyond the vocabulary; all others stay."""
    array = pa.array(ROWS, make(pa.int64()))[first:]
    lists, faults = read([(array,)])
    assert rows_of(lists) == [[1, 2], [], [], [], [], [], [7]][first:]
    expected = {
        1: ("not_tokens", "must be a list of token ids, got null;"),
        2: ("not_tokens", "must be a list of token ids, got null in it;"),
        3: ("token_range", "must be from 0 to 99, those of the tokenizer's vocabulary, got -5;"),
        5: ("token_range", "must be from 0 to 99, those of the tokenizer's vocabulary, got 100;"),
    }
    expected = {row: fault for row, fault in expected.items() if row >= first}
    assert [entry.place + first for entry in faults.found] == list(expected)
    for entry, (reason, message) in zip(faults.found, expected.values(), strict=True):
        assert entry.reason == reason
        assert entry.locator == 10 + entry.place
        assert message in entry.message
    row = 10 + min(expected) - first
    with pytest.raises(BadRecordError, match=rf"^f, row {row}: "):
        read_columns([(array,)], IDS, RecordFaults(quarantine=False), file="f", first_row=10)


def test_a_null_row_may_have_values_beneath() -> None:
    """They are nobody's, in range or not."""
    values = pa.array([1, 2, 999, 3], pa.int32())
    array = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()), values, mask=pa.array([False, True, False])
    )
    lists, faults = read([(array,)])
    assert rows_of(lists) == [[1], [], [3]]
    assert [entry.reason for entry in faults.found] == ["not_tokens"]


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.uint8(), pa.int64()])
def test_masks_stand_beside_their_tokens(kind: Any) -> None:
    """One value for each token, 0 or 1; anything else is a fault of its row."""
    ids = pa.array([[1, 2, 3], [4], [], [5, 6], [7], [8], [9], None], pa.list_(pa.int32()))
    masks: list[Any] = [[1, 0, 1], [0], [], [1], [None], None, [1], [1]]
    wrong = kind == pa.int64()
    masks[6] = [2] if wrong else [1]
    column = pa.array([None if m is None else [*m] for m in masks], pa.list_(pa.int64()))
    mask = column.cast(pa.list_(kind))
    lists, faults = read([(ids[:3], mask[:3]), (ids[3:], mask[3:])], MASKED)
    assert rows_of(lists) == [[1, 2, 3], [4], [], [], [], [], [] if wrong else [9], []]
    assert lists.learned is not None
    assert lists.learned.dtype == np.uint8
    assert lists.learned.tolist() == [1, 0, 1, 0, *([] if wrong else [1])]
    found = {entry.place: entry.message for entry in faults.found}
    assert list(found) == [3, 4, 5, 6, 7] if wrong else [3, 4, 5, 7]
    assert "a value for each of the 2 tokens of its document, got 1 values" in found[3]
    assert "must be a list of 0 and 1, got null in it" in found[4]
    assert "must be a list of 0 and 1, got null" in found[5]
    assert "'ids' must be a list of token ids, got null" in found[7]
    if wrong:
        assert "must be a list of 0 and 1, got 2 in it" in found[6]


def test_columns_of_other_types_are_refused_before_any_work(tmp_path: Path) -> None:
    """Floats are no ids, nested lists no documents; the key of the recipe is named."""
    columns = {
        "ids": pa.array([[1]]),
        "floats": pa.array([[1.0]]),
        "nested": pa.array([[[1]]]),
        "text": ["a"],
        "meta": [{"ids": [1], "mask": [True]}],
    }
    path = tmp_path / "a.parquet"
    write_parquet(path, columns)
    for field in ("floats", "nested", "text"):
        message = f"tokens must be a field that holds a list of integers, got {field!r}"
        with pytest.raises(RecipeError, match=message):
            check_columns("parquet", str(path), Content(field=field, kind="tokens"))
    with pytest.raises(RecipeError, match="loss_mask must be a field of the documents, got 'mask'"):
        check_columns("parquet", str(path), Content(field="ids", kind="tokens", loss_mask="mask"))
    content = Content(field="meta.ids", kind="tokens", loss_mask="meta.mask")
    check_columns("parquet", str(path), content)
    catalog, root = open_catalog(tmp_path, "parquet", chunk_bytes=1 << 20)
    found = read_part(catalog, root, 0, 0, content=content)
    assert found.tokens is not None
    assert found.tokens.tokens.tolist() == [1]


def test_parts_of_a_row_group_hold_their_tokens_and_masks(tmp_path: Path) -> None:
    """Two columns are read forward together."""
    rows = [[n] * (n % 5) for n in range(100)]
    masks = [[n % 2] * (n % 5) for n in range(100)]
    write_parquet(tmp_path / "a.parquet", {"x": rows, "ids": rows, "learned": masks}, 40)
    catalog, root = open_catalog(tmp_path, "parquet", chunk_bytes=300)
    found: list[list[int]] = []
    learned: list[int] = []
    for chunk in range(catalog.chunk_count):
        count = catalog.part_count(chunk)
        assert count is not None
        assert count > 1
        for part in range(count):
            tokens = read_part(catalog, root, chunk, part, content=MASKED).tokens
            assert tokens is not None
            assert tokens.learned is not None
            found += rows_of(tokens)
            learned += tokens.learned.tolist()
    assert found == rows
    assert learned == [value for mask in masks for value in mask]


def test_conversations_are_given_as_json(tmp_path: Path) -> None:
    """Lists of structs in the order of their fields; what is no list is a fault of its row."""
    talk = [{"role": "user", "content": "größe?"}, {"role": "assistant", "content": None}]
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    write_parquet(tmp_path / "a.parquet", {"chat": pa.array([talk, None, []], pa.list_(message))})
    content = Content(field="chat", kind="messages")
    check_columns("parquet", str(tmp_path / "a.parquet"), content)
    catalog, root = open_catalog(tmp_path, "parquet", chunk_bytes=1 << 20)
    found = read_part(catalog, root, 0, 0, content=content, quarantine=True)
    expected = '[{"role":"user","content":"größe?"},{"role":"assistant","content":null}]'
    assert found.texts == [expected, "", "[]"]
    assert [(entry.place, entry.reason) for entry in found.quarantined] == [(1, "not_messages")]


@pytest.mark.long
def test_columns_of_more_than_two_gib_are_read() -> None:
    """Never by way of 32-bit offsets: large strings, large lists, dictionaries that expand."""
    text = "x" * (1 << 20)
    body = pa.py_buffer(np.full(2100 << 20, ord("x"), np.uint8))
    offsets = pa.py_buffer(np.arange(2101, dtype=np.int64) << 20)
    large = pa.Array.from_buffers(pa.large_string(), 2100, [None, offsets, body])
    faults = RecordFaults(quarantine=False)
    texts, _ = read_columns([(large[2090:],)], Content(), faults, file="f", first_row=0)
    assert texts == [text] * 10
    indices = pa.array(np.zeros(2100, np.int8))
    words = pa.DictionaryArray.from_arrays(indices, pa.array([text]))
    texts, _ = read_columns([(words,)], Content(), faults, file="f", first_row=0)
    assert len(texts) == 2100
    assert texts[-1] == text
    ids = pa.array(np.zeros((1 << 31) + 8, np.uint8))
    lists = pa.LargeListArray.from_arrays(pa.array([0, 1 << 31, (1 << 31) + 8]), ids)
    _, tokens = read_columns([(lists[1:],)], IDS, faults, file="f", first_row=0)
    assert tokens is not None
    assert tokens.offsets.tolist() == [0, 8]


def test_a_view_type_of_lists_is_refused() -> None:
    """PyArrow cannot convert it to the others in all versions that are supported."""
    schema = pa.schema([("ids", pa.list_view(pa.int32()))])
    with pytest.raises(SourceError, match="found values of type list_view"):
        resolve_columns(schema, IDS, "f")


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("limit", [100, 1 << 16, 1 << 32])
def test_ids_of_narrow_types_are_checked_against_any_vocabulary(kind: Any, limit: int) -> None:
    """A negative one is found where the type holds no id that is too large."""
    signed = str(kind).startswith("int")
    column = pa.array([[1], [-1 if signed else 2], [3]], pa.list_(kind))
    content = Content(field="ids", kind="tokens", id_limit=limit)
    lists, faults = read([(column,)], content)
    assert rows_of(lists) == [[1], [] if signed else [2], [3]]
    assert [entry.reason for entry in faults.found] == ["token_range"] * signed
