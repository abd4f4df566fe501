"""Batch arrays against a reference that goes token by token."""

import sys
import tempfile
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams import (
    Row,
    Segment,
    put,
    random_lanes,
    reference_batch,
    samples_of,
    write_stream,
)
from zephon_beam.errors import CorruptShardError, RecipeError
from zephon_beam.layout import shard_name
from zephon_beam.reader import StreamReader
from zephon_beam.reader.batches import FIELDS
from zephon_beam.shard import encode_shard

SEQ_LEN = 12
COMPILED = [False, True] if find_spec("numba") else [False]
TOKEN = st.integers(0, 60_000)


@st.composite
def rows(draw: st.DrawFn, multiple: int = 1) -> Row:
    """Draw a row: gaps, cuts, full, short or empty; segments begin at multiples of a number."""
    row: Row = []
    place = 0
    for gap, length, cut in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, SEQ_LEN), st.booleans()), max_size=6)
    ):
        place += gap
        place += -place % multiple
        length = min(length, SEQ_LEN - place)
        if length < 1:
            break
        row.append(
            Segment(
                start=place,
                tokens=tuple(draw(st.lists(TOKEN, min_size=length, max_size=length))),
                following=draw(TOKEN) if cut else -1,
                dataset=draw(st.integers(0, 400)),
                learned=tuple(draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))),
            )
        )
        place += length
    return row


def read_one_step(
    lanes: list[list[Row]],
    micro: int,
    world: int,
    index_dtype: Any,
    compiled: bool = False,
    **changes: Any,
) -> None:
    """Read the whole stream as one step on every rank and compare each microbatch."""
    with tempfile.TemporaryDirectory() as name:
        stream = write_stream(Path(name), lanes, seq_len=SEQ_LEN, **changes)
        batch = max(1, len(stream.order) + 1)
        for rank in range(world):
            reader = StreamReader(
                stream.uri,
                global_batch_size=batch,
                micro_batch_size=micro,
                dp_rank=rank,
                dp_world_size=world,
                fields=FIELDS,
                index_dtype=index_dtype,
                compiled=compiled,
                timeout=0,
            )
            for got in reader:
                expected = reference_batch(stream, got["sample_ids"].tolist())
                for field, value in expected.items():
                    np.testing.assert_array_equal(got[field], value, err_msg=field)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(rows(), max_size=5), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from(COMPILED),
)
def test_batches_equal_the_reference(
    lanes: list[list[Row]], micro: int, world: int, masked: bool, wide: bool, compiled: bool
) -> None:
    """Every field, for any packs, with and without a stored loss mask, compiled or not."""
    read_one_step(
        lanes,
        micro,
        world,
        np.int64 if wide else np.int32,
        compiled,
        has_loss_mask=masked,
        token_dtype="uint32" if wide else "uint16",
    )


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("length", [1, 2, SEQ_LEN])
def test_rows_of_nothing_but_short_segments_equal_the_reference(
    compiled: bool, length: int
) -> None:
    """Documents of one token, which a row is full of, with and without a gap between two."""
    lanes: list[list[Row]] = []
    for apart in (0, 1):
        starts = range(0, SEQ_LEN - length + 1, length + apart)
        lanes.append([[Segment(s, tuple(range(s, s + length)), s % 3 - 1) for s in starts]] * 9)
    read_one_step(lanes, 4, 2, np.int32, compiled)


@pytest.mark.parametrize("cached_bytes", [1, 700, 1 << 20])
@pytest.mark.parametrize("masked", [False, True])
def test_compiled_blocks_equal_the_others(
    tmp_path: Path, masked: bool, cached_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each field alone and with others, over blocks of several shards, steps and filler."""
    pytest.importorskip("numba", reason="numba is not installed (extra `fast`)")
    monkeypatch.setattr("zephon_beam.reader.compiled.CACHED_BYTES", cached_bytes)
    lanes = random_lanes([30, 30, 2], seed=9, masked=masked)
    stream = write_stream(tmp_path, lanes, has_loss_mask=masked)
    for fields in [FIELDS, None, ["labels"], ["cu_seqlens", "input_ids"], ["loss_mask"]]:
        plain, compiled = (
            StreamReader(
                stream.uri,
                global_batch_size=7,
                micro_batch_size=2,
                fields=fields,
                compiled=use,
                cu_seqlens_len=64,
            )
            for use in (False, True)
        )
        count = 0
        for left, right in zip(plain, compiled, strict=True):
            assert list(left) == list(right)
            for field, value in left.items():
                assert type(value) is type(right[field])
                np.testing.assert_array_equal(value, right[field], err_msg=field)
                if isinstance(value, np.ndarray):
                    found = right[field]
                    assert (value.dtype, found.flags.writeable) == (found.dtype, True)
            count += 1
        assert count == 36


def test_compiled_code_is_asked_for_where_it_is_installed_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without numba the error says what to install."""
    stream = write_stream(tmp_path, random_lanes([2], seed=1))
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "zephon_beam.reader.compiled", raising=False)
    with pytest.raises(RecipeError, match="compiled must be False where numba is not installed"):
        StreamReader(stream.uri, global_batch_size=2, micro_batch_size=2, compiled=True)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([2, 3, 4, 6, 12]), st.integers(1, 4))
def test_slots_of_aligned_segments_equal_the_reference(
    data: st.DataObject, multiple: int, micro: int
) -> None:
    """For rows of segments that stand at multiples, with gaps wider than needed too."""
    lanes = data.draw(st.lists(st.lists(rows(multiple), max_size=5), min_size=1, max_size=3))
    recipe = {"packing": {"segment_multiple": multiple}}
    read_one_step(lanes, micro, 2, np.int32, recipe=recipe)


def test_slots_keep_aligning_padding_with_its_segment(tmp_path: Path) -> None:
    """The drawing in numbers: a slot begins where each segment does, the rest is one of its own."""
    row = [Segment(0, (1, 2, 3, 4, 5)), Segment(8, (6, 7)), Segment(12, (8,))]
    stream = write_stream(tmp_path, [[row, row[:1]]], recipe={"packing": {"segment_multiple": 4}})
    (batch,) = StreamReader(stream.uri, global_batch_size=2, micro_batch_size=2, fields=FIELDS)
    assert batch["cu_seqlens_padded"].tolist() == [0, 8, 12, 16, 24, 32]
    assert batch["cu_seqlens_real"].tolist() == [0, 5, 7, 8, 13, 21]
    assert batch["cu_seqlens"].tolist() == [0, 5, 8, 10, 12, 13, 16, 21, 32]


@pytest.mark.parametrize("field", ["cu_seqlens", "cu_seqlens_padded", "cu_seqlens_real"])
def test_static_boundaries_repeat_the_last_one_and_lose_none(tmp_path: Path, field: str) -> None:
    """`cu_seqlens_len` is the length of every batch's array, or an error."""
    stream = write_stream(tmp_path, random_lanes([9, 8], seed=6))
    arguments: dict[str, Any] = {"global_batch_size": 4, "micro_batch_size": 2, "fields": [field]}
    free = [batch[field] for batch in StreamReader(stream.uri, **arguments)]
    most = max(map(len, free))
    static = [b[field] for b in StreamReader(stream.uri, cu_seqlens_len=most + 2, **arguments)]
    assert len(free) == len(static) > 1
    for short, long in zip(free, static, strict=True):
        assert (long.dtype, len(long)) == (np.int32, most + 2)
        assert long.tolist() == short.tolist() + [32] * (most + 2 - len(short))
    with pytest.raises(
        RecipeError, match=f"cu_seqlens_len must be at least {most}, the entries of"
    ):
        list(StreamReader(stream.uri, cu_seqlens_len=most - 1, **arguments))


@pytest.mark.parametrize(
    "fields", [["cu_seqlens", "cu_seqlens_padded"], ["cu_seqlens_padded", "cu_seqlens"]]
)
def test_of_boundaries_that_are_too_many_the_first_field_is_named(
    tmp_path: Path, fields: list[str]
) -> None:
    """The same one in every process."""
    stream = write_stream(tmp_path, random_lanes([9, 8], seed=6))
    reader = StreamReader(
        stream.uri, global_batch_size=4, micro_batch_size=4, fields=fields, cu_seqlens_len=2
    )
    with pytest.raises(RecipeError, match=f"the entries of {fields[0]} in this"):
        next(reader)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("masked", [False, True])
def test_types_and_shapes_are_as_promised(tmp_path: Path, compression: str, masked: bool) -> None:
    """Also for compressed shards."""
    lanes = random_lanes([9, 9], seed=1, masked=masked)
    stream = write_stream(tmp_path, lanes, compression=compression, has_loss_mask=masked)
    reader = StreamReader(stream.uri, global_batch_size=6, micro_batch_size=4, fields=FIELDS)
    for batch in reader:
        assert list(batch) == list(FIELDS)
        for field in ("input_ids", "labels", "position_ids", "segment_ids"):
            assert (batch[field].dtype, batch[field].shape) == (np.int32, (4, 16))
        assert (batch["loss_mask"].dtype, batch["loss_mask"].shape) == (np.uint8, (4, 16))
        assert (batch["dataset_ids"].dtype, batch["dataset_ids"].shape) == (np.uint16, (4, 16))
        assert (batch["tokens"].dtype, batch["tokens"].shape) == (np.uint16, (4, 16))
        assert (batch["sample_ids"].dtype, batch["sample_ids"].shape) == (np.int64, (4,))
        assert batch["cu_seqlens"].dtype == np.int32
        for field in ("max_seqlen", "num_valid_tokens", "global_num_valid_tokens"):
            assert type(batch[field]) is int
        assert all(
            value.flags.c_contiguous and value.flags.writeable
            for value in batch.values()
            if isinstance(value, np.ndarray)
        )


def test_filler_is_masked_and_apart(tmp_path: Path) -> None:
    """Filler rows: no label, no segment, no sample, and boundaries of their own."""
    stream = write_stream(tmp_path, random_lanes([2, 1], seed=2))
    reader = StreamReader(stream.uri, global_batch_size=3, micro_batch_size=5, fields=FIELDS)
    (batch,) = reader
    assert batch["sample_ids"].tolist() == [0, 2, 1, -1, -1]
    for field, value in {
        "labels": -100,
        "loss_mask": 0,
        "segment_ids": 0,
        "dataset_ids": 0xFFFF,
        "input_ids": 7,
        "tokens": 7,
    }.items():
        assert (batch[field][3:] == value).all(), field
    assert batch["cu_seqlens"][-3:].tolist() == [48, 64, 80]
    assert batch["max_seqlen"] == 16


def test_writing_into_a_batch_changes_nothing_else(tmp_path: Path) -> None:
    """Neither other batches, nor other fields, nor the stored shard."""
    stream = write_stream(tmp_path, random_lanes([8, 8], seed=3))
    changed, untouched = (
        StreamReader(stream.uri, global_batch_size=8, micro_batch_size=2, fields=FIELDS)
        for _ in range(2)
    )
    for left, right in zip(changed, untouched, strict=True):
        for field, value in right.items():
            np.testing.assert_array_equal(left[field], value)
            if isinstance(value, np.ndarray):
                left[field][...] = 1
    for batch in StreamReader(stream.uri, global_batch_size=8, micro_batch_size=2):
        expected = reference_batch(stream, batch["sample_ids"].tolist())
        np.testing.assert_array_equal(batch["input_ids"], expected["input_ids"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 3))
def test_each_token_but_a_first_is_a_label_once_and_labels_stay_in_documents(
    lengths: list[int], lane_count: int
) -> None:
    """Documents of unique tokens, cut over rows wherever a row is full."""
    lanes: list[list[Row]] = [[[]] for _ in range(lane_count)]
    firsts, successor, token = set(), {}, 100
    for number, length in enumerate(lengths):
        document = list(range(token, token + length))
        token += length
        firsts.add(document[0])
        successor.update(pairwise(document))
        lane = lanes[number % lane_count]
        place = 0
        while place < length:
            used = sum(len(segment.tokens) for segment in lane[-1])
            piece = document[place : place + SEQ_LEN - used]
            place += len(piece)
            following = document[place] if place < length else -1
            lane[-1].append(Segment(start=used, tokens=tuple(piece), following=following))
            if used + len(piece) == SEQ_LEN:
                lane.append([])
    labels = []
    with tempfile.TemporaryDirectory() as name:
        stream = write_stream(Path(name), lanes, seq_len=SEQ_LEN)
        for batch in StreamReader(stream.uri, global_batch_size=4, micro_batch_size=3):
            counted = batch["labels"] != -100
            np.testing.assert_array_equal(counted, batch["loss_mask"] == 1)
            assert batch["num_valid_tokens"] == counted.sum()
            pairs = zip(
                batch["input_ids"][counted].tolist(), batch["labels"][counted].tolist(), strict=True
            )
            for before, label in pairs:
                assert successor[before] == label
                labels.append(label)
    assert sorted(labels) == sorted(set(range(100, token)) - firsts)


@pytest.mark.parametrize("compiled", COMPILED)
def test_batches_that_are_kept_stay_as_they_were(
    tmp_path: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is used again only when nobody refers to it, be it by a view."""
    monkeypatch.setattr("zephon_beam.reader.read_ahead.TOKENS", 1)
    stream = write_stream(tmp_path, random_lanes([40, 40], seed=4))
    kept: list[tuple[np.ndarray[Any, Any], bytes]] = []
    for number, batch in enumerate(
        StreamReader(stream.uri, global_batch_size=4, micro_batch_size=2, compiled=compiled)
    ):
        if number % 3:
            array = batch["labels"][1:, 2:]
            kept.append((array, array.tobytes()))
    assert len(kept) > 20
    assert all(array.tobytes() == then for array, then in kept)


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("fields", [["labels"], ["cu_seqlens"], ["position_ids", "loss_mask"]])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("segment_starts", -1),
        ("segment_starts", 1),
        ("segment_starts", 1 << 30),
        ("segment_lengths", 0),
        ("segment_lengths", -4),
        ("segment_lengths", 1 << 30),
    ],
)
def test_segments_that_cannot_be_are_told(
    tmp_path: Path, compiled: bool, fields: list[str], column: str, value: int
) -> None:
    """Compiled code looks at no bounds of its own."""
    rows: list[Row] = [[Segment(0, (1, 2, 3), -1), Segment(4, (5, 6), -1)]] * 2
    stream = write_stream(tmp_path, [rows], seq_len=SEQ_LEN)
    samples = samples_of(rows, stream.manifest)
    samples.segments[column][1] = value
    data = encode_shard(samples, fingerprint=stream.manifest.fingerprint, lane=0, first_sample=0)
    put(tmp_path, shard_name(0, 0), data)
    reader = StreamReader(
        stream.uri, global_batch_size=2, micro_batch_size=2, fields=fields, compiled=compiled
    )
    with pytest.raises(CorruptShardError, match="segments overlap, lie outside their row, or are"):
        next(reader)
