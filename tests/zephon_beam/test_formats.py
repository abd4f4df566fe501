"""What each trainer takes, against a reference that walks through rows token by token."""

from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.streams import PAD, FakeStream, Row, Segment, random_lanes, write_stream
from zephon_beam.errors import RecipeError
from zephon_beam.formats import FORMATS
from zephon_beam.naming import NAMES, rename
from zephon_beam.reader import StreamReader
from zephon_beam.reader.batches import FIELDS

SEQ_LEN = 16


def aligned(lanes: list[list[Row]]) -> list[list[Row]]:
    """Move segments to multiples of four, dropping those for which no room is left."""
    moved = []
    for lane in lanes:
        rows = []
        for row in lane:
            place, kept = 0, []
            for segment in row:
                room = SEQ_LEN - place
                if room <= 0:
                    break
                kept.append(Segment(place, segment.tokens[:room], segment.following))
                place += len(segment.tokens) + -len(segment.tokens) % 4
            rows.append(kept)
        moved.append(rows)
    return moved


@pytest.fixture(scope="module", params=["plain", "masked", "aligned"])
def stream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FakeStream:
    """Streams of full, short and empty rows: whole, with a stored mask, with alignment."""
    masked = request.param == "masked"
    lanes = random_lanes([9, 8], seed=7, masked=masked)
    changes: dict[str, Any] = {"has_loss_mask": masked}
    if request.param == "aligned":
        lanes = aligned(lanes)
        changes["recipe"] = {"packing": {"segment_multiple": 4}}
    return write_stream(tmp_path_factory.mktemp("s"), lanes, **changes)


def read(stream: FakeStream, name: str, micro: int, **more: Any) -> list[tuple[Any, list[Row]]]:
    """Return each microbatch as a trainer takes it, and its rows; filler is an empty row."""
    chosen = FORMATS[name]
    arguments: dict[str, Any] = {"global_batch_size": 5, "micro_batch_size": micro, **more}
    reader = StreamReader(
        stream.uri, fields=chosen.fields, index_dtype=chosen.index_dtype, **arguments
    )
    ids = [b["sample_ids"] for b in StreamReader(stream.uri, fields=["sample_ids"], **arguments)]
    made = [chosen.convert(batch) for batch in reader]
    assert len(made) == len(ids) > 1
    rows = [[stream.row(i) if i >= 0 else [] for i in group.tolist()] for group in ids]
    return list(zip(made, rows, strict=True))


def cells(rows: list[Row], masked: bool) -> list[list[tuple[int, int, int, int]]]:
    """(token, label or -100, position, segment) of each place; padding restarts positions."""
    table = []
    for row in rows:
        line = [(PAD, -100, 0, 0)] * SEQ_LEN
        for number, segment in enumerate(row, start=1):
            following = (*segment.tokens[1:], segment.following)
            for k, token in enumerate(segment.tokens):
                learned = not masked or segment.learned is None or segment.learned[k] == 1
                label = following[k] if following[k] >= 0 and learned else -100
                line[segment.start + k] = (token, label, k, number)
        since = 0
        for place in range(SEQ_LEN):
            if line[place][3] == 0:
                since = since if place and line[place - 1][3] == 0 else place
                line[place] = (*line[place][:2], place - since, 0)
        table.append(line)
    return table


def column(table: list[list[tuple[int, int, int, int]]], which: int) -> list[list[int]]:
    """One number of each place."""
    return [[cell[which] for cell in line] for line in table]


def is_array(value: Any, dtype: str, expected: Any) -> bool:
    """Compare type, shape and values."""
    return value.dtype == np.dtype(dtype) and value.tolist() == expected


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_torchtitan_gets_inputs_with_positions_and_labels(stream: FakeStream, micro: int) -> None:
    """A pair; int64; -100 where no label counts."""
    for (inputs, labels), rows in read(stream, "torchtitan", micro):
        table = cells(rows, stream.manifest.has_loss_mask)
        assert list(inputs) == ["input", "positions"]
        assert is_array(inputs["input"], "int64", column(table, 0))
        assert is_array(inputs["positions"], "int64", column(table, 2))
        assert is_array(labels, "int64", column(table, 1))


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_later_torchtitan_gets_tokens_without_rows(stream: FakeStream, micro: int) -> None:
    """One dimension, and how many labels count."""
    for (inputs, labels), rows in read(stream, "torchtitan_flat", micro):
        table = cells(rows, stream.manifest.has_loss_mask)
        flat = [[cell for line in column(table, k) for cell in line] for k in (0, 1, 2)]
        assert list(inputs) == ["input", "positions", "num_valid_tokens"]
        assert is_array(inputs["input"], "int64", flat[0])
        assert is_array(inputs["positions"], "int64", flat[2])
        assert is_array(labels, "int64", flat[1])
        assert inputs["num_valid_tokens"] == sum(label >= 0 for label in flat[1])
        assert type(inputs["num_valid_tokens"]) is int


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_megatron_gets_a_mask_and_labels_that_exist(stream: FakeStream, micro: int) -> None:
    """No -100; float32 mask; int64 ids."""
    for batch, rows in read(stream, "megatron", micro):
        table = cells(rows, stream.manifest.has_loss_mask)
        labels = column(table, 1)
        assert list(batch) == ["tokens", "labels", "loss_mask", "position_ids"]
        assert is_array(batch["tokens"], "int64", column(table, 0))
        wanted = [[max(label, 0) for label in line] for line in labels]
        assert is_array(batch["labels"], "int64", wanted)
        counts = [[float(label >= 0) for label in line] for line in labels]
        assert is_array(batch["loss_mask"], "float32", counts)
        assert is_array(batch["position_ids"], "int64", column(table, 2))


def slots_of(row: Row, multiple: int) -> list[tuple[int, int]]:
    """Tokens of each sequence of a row, and of its slot: with the padding that aligns the next."""
    slots, place = [], 0
    for segment in row:
        if segment.start > place:
            slots.append((segment.start - place, segment.start - place))
        size = len(segment.tokens)
        slots.append((size, size + -size % multiple))
        place = segment.start + slots[-1][1]
    return [*slots, *([(SEQ_LEN - place, SEQ_LEN - place)] if place < SEQ_LEN else [])]


@pytest.mark.parametrize("micro", [1, 2, 3])
@pytest.mark.parametrize("length", [None, 55])
def test_packed_megatron_gets_the_bounds_of_each_row(
    stream: FakeStream, micro: int, length: int | None
) -> None:
    """Whatever aligns a document belongs to it; bounds are filled up with the row's length."""
    multiple = stream.manifest.recipe.get("packing", {}).get("segment_multiple", 1)
    for batch, rows in read(stream, "megatron_packed", micro, cu_seqlens_len=length):
        table = cells(rows, stream.manifest.has_loss_mask)
        assert is_array(batch["tokens"], "int64", column(table, 0))
        sizes = [[size for _, size in slots_of(row, multiple)] for row in rows]
        width = length or 1 + sum(map(len, sizes))
        bounds = [(list(accumulate(line, initial=0)) + [SEQ_LEN] * width)[:width] for line in sizes]
        assert is_array(batch["cu_seqlens"], "int32", bounds)
        assert is_array(batch["cu_seqlens_padded"], "int32", bounds)
        assert is_array(batch["max_seqlen"], "int32", [max(line) for line in sizes])
        if multiple == 1:
            restarts = [[k for k in range(SEQ_LEN) if line[k] == 0] for line in column(table, 2)]
            assert restarts == [sorted({*line} - {SEQ_LEN}) for line in bounds]


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_automodel_gets_lengths_with_and_without_alignment(stream: FakeStream, micro: int) -> None:
    """They sum up to the row; padding at its end is a sequence of its own."""
    multiple = stream.manifest.recipe.get("packing", {}).get("segment_multiple", 1)
    for batch, rows in read(stream, "automodel", micro):
        table = cells(rows, stream.manifest.has_loss_mask)
        assert batch["qkv_format"] == "thd"
        assert is_array(batch["labels"], "int64", column(table, 1))
        slots = [slots_of(row, multiple) for row in rows]
        real = [[length for length, _ in line] for line in slots]
        whole = [[size for _, size in line] for line in slots]
        assert all(sum(line) == SEQ_LEN for line in whole)
        most = max(map(len, real))
        for name, lists in (("seq_lens", real), ("seq_lens_padded", whole)):
            filled = [line + [-1000] * (most - len(line)) for line in lists]
            assert is_array(batch[name], "int64", filled), name


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_hugging_face_gets_one_row_and_varlen_bounds(stream: FakeStream, micro: int) -> None:
    """Labels stand below their tokens and shifted; bounds are where positions restart."""
    for batch, rows in read(stream, "huggingface", micro):
        table = cells(rows, stream.manifest.has_loss_mask)
        flat = {k: [[cell for line in column(table, k) for cell in line]] for k in (0, 1, 2)}
        assert is_array(batch["input_ids"], "int64", flat[0])
        assert is_array(batch["labels"], "int64", [[-100, *flat[1][0][:-1]]])
        assert is_array(batch["shift_labels"], "int64", flat[1])
        assert is_array(batch["position_ids"], "int64", flat[2])
        bounds = [k for k, place in enumerate(flat[2][0]) if place == 0] + [micro * SEQ_LEN]
        for key in ("cu_seq_lens_q", "cu_seq_lens_k"):
            assert is_array(batch[key], "int32", bounds)
        for key in ("max_length_q", "max_length_k"):
            assert batch[key] == max(np.diff(bounds))
            assert type(batch[key]) is int
        assert batch["use_cache"] is False
    for batch, rows in read(stream, "huggingface_padded", micro):
        assert batch["use_cache"] is False
        table = cells(rows, stream.manifest.has_loss_mask)
        assert is_array(batch["input_ids"], "int64", column(table, 0))
        assert is_array(batch["position_ids"], "int64", column(table, 2))
        assert is_array(batch["shift_labels"], "int64", column(table, 1))
        below = [[-100, *line[:-1]] for line in column(table, 1)]
        assert is_array(batch["labels"], "int64", below)


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_maxtext_masks_its_loss_by_segments_of_targets(stream: FakeStream, micro: int) -> None:
    """Six int32 arrays; segment 0 exactly where no label counts."""
    for batch, rows in read(stream, "maxtext", micro):
        table = cells(rows, stream.manifest.has_loss_mask)
        labels = column(table, 1)
        assert is_array(batch["inputs"], "int32", column(table, 0))
        assert is_array(batch["targets"], "int32", [[max(x, 0) for x in line] for line in labels])
        for side in ("inputs", "targets"):
            assert is_array(batch[f"{side}_position"], "int32", column(table, 2))
        assert is_array(batch["inputs_segmentation"], "int32", column(table, 3))
        masked = [[cell[3] if cell[1] >= 0 else 0 for cell in line] for line in table]
        assert is_array(batch["targets_segmentation"], "int32", masked)


def test_no_format_copies_what_fits(tmp_path: Path) -> None:
    """Ids, positions and labels pass through where the trainer takes them as they are."""
    stream = write_stream(tmp_path, random_lanes([4], seed=1))
    reader = StreamReader(
        stream.uri, global_batch_size=4, micro_batch_size=4, fields=FIELDS, index_dtype=np.int64
    )
    batch = next(reader)
    inputs, labels = FORMATS["torchtitan"].convert(batch)
    assert labels is batch["labels"]
    assert inputs["input"] is batch["input_ids"]
    assert np.shares_memory(FORMATS["huggingface"].convert(batch)["input_ids"], batch["input_ids"])


class Spy(dict[str, Any]):
    """A batch that notes what is taken from it."""

    def __init__(self, batch: dict[str, Any]) -> None:
        """Nothing has been taken."""
        super().__init__(batch)
        self.used: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        """Note the key."""
        self.used.add(key)
        return super().__getitem__(key)


def test_each_format_asks_for_what_it_uses(tmp_path: Path) -> None:
    """And for nothing more."""
    stream = write_stream(tmp_path, random_lanes([4], seed=1))
    for name, chosen in FORMATS.items():
        reader = StreamReader(
            stream.uri, global_batch_size=1, micro_batch_size=1, fields=chosen.fields
        )
        spy = Spy(next(reader))
        chosen.convert(spy)
        assert spy.used == set(chosen.fields), name


def test_names_are_changed_and_nothing_else(tmp_path: Path) -> None:
    """Keys that a trainer has no name for keep theirs; the arrays are the same objects."""
    stream = write_stream(tmp_path, random_lanes([4], seed=1))
    batch = next(StreamReader(stream.uri, global_batch_size=4, micro_batch_size=4))
    for trainer, names in NAMES.items():
        renamed = rename(batch, trainer)
        assert list(renamed) == [names.get(key, key) for key in batch]
        assert all(a is b for a, b in zip(renamed.values(), batch.values(), strict=True))
    with pytest.raises(RecipeError, match="got 'maxtex'; did you mean 'maxtext'"):
        rename(batch, "maxtex")
