"""Elasticity, resumption, finite streams and the arguments of the reader."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams import (
    FakeStream,
    plan_stream,
    random_lanes,
    reference_batch,
    reference_share,
    write_stream,
)
from zephon_beam.errors import DriftError, RecipeError, ResumeError, StreamNotFoundError
from zephon_beam.reader import StreamReader, read_ahead
from zephon_beam.reader import batches as building
from zephon_beam.reader.batches import FIELDS

Open = Callable[..., StreamReader]
BATCH, MICRO = 7, 2


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> FakeStream:
    """A finite stream of four lanes of unequal lengths: 13, 0, 22 and 9 samples."""
    return write_stream(tmp_path_factory.mktemp("s"), random_lanes([13, 0, 22, 9], seed=4))


def open_reader(stream: FakeStream, **changes: Any) -> StreamReader:
    """Open a reader that never waits."""
    arguments: dict[str, Any] = {
        "global_batch_size": BATCH,
        "micro_batch_size": MICRO,
        "timeout": 0,
        **changes,
    }
    return StreamReader(stream.uri, **arguments)


def content(batch: dict[str, Any]) -> tuple[Any, ...]:
    """Make a batch comparable."""
    return tuple(
        (field, value.tobytes() if isinstance(value, np.ndarray) else value)
        for field, value in batch.items()
    )


def steps_of(reader: StreamReader) -> Iterator[list[dict[str, Any]]]:
    """Yield the microbatches of each step."""
    step: list[dict[str, Any]] = []
    for batch in reader:
        step.append(batch)
        if reader.microbatch == 0:
            yield step
            step = []
    assert not step


# ------------------------------------------------------------------------------------- elasticity


@pytest.mark.parametrize("placement", ["by_lane", "contiguous", "balanced"])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 7, 8, 64])
@pytest.mark.parametrize("batch", [7, 12])
def test_every_world_reads_the_same_samples_in_every_step(
    stream: FakeStream, world: int, batch: int, placement: str
) -> None:
    """The union is the step, ranks are disjoint and in step, and each gets its drawn share."""
    readers = [
        open_reader(
            stream,
            global_batch_size=batch,
            dp_rank=rank,
            dp_world_size=world,
            fields=FIELDS,
            placement=placement,
        )
        for rank in range(world)
    ]
    total = len(stream.order)
    starts = range(0, total, batch)
    columns = [list(steps_of(reader)) for reader in readers]
    assert {len(column) for column in columns} == {len(starts)}
    for number, start in enumerate(starts):
        step = range(start, min(start + batch, total))
        seen: list[int] = []
        for rank, column in enumerate(columns):
            share = reference_share(
                stream,
                step,
                global_batch_size=batch,
                micro_batch_size=MICRO,
                dp_rank=rank,
                dp_world_size=world,
                placement=placement,
            )
            assert [b["sample_ids"].tolist() for b in column[number]] == share
            assert {b["input_ids"].shape[0] for b in column[number]} == {MICRO}
            seen += [sample for part in share for sample in part if sample >= 0]
        assert sorted(seen) == list(step)
        valid = {b["global_num_valid_tokens"] for column in columns for b in column[number]}
        counted = sum(b["num_valid_tokens"] for column in columns for b in column[number])
        assert valid == {counted}


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 11), min_size=1, max_size=5),
    batch=st.integers(1, 9),
    micro=st.integers(1, 4),
    world=st.integers(1, 6),
    start=st.integers(0, 12),
    data=st.data(),
)
def test_any_finite_stream_is_read_once_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    batch: int,
    micro: int,
    world: int,
    start: int,
    data: st.DataObject,
) -> None:
    """Lanes of any lengths, from any first sample, on any rank."""
    rank = data.draw(st.integers(0, world - 1))
    stream = write_stream(tmp_path_factory.mktemp("s"), random_lanes(lengths, seed=5))
    reader = open_reader(
        stream,
        global_batch_size=batch,
        micro_batch_size=micro,
        dp_rank=rank,
        dp_world_size=world,
        start_sample=start,
    )
    total = len(stream.order)
    expected: list[list[int]] = []
    for first in range(start, total, batch):
        expected += reference_share(
            stream,
            range(first, min(first + batch, total)),
            global_batch_size=batch,
            micro_batch_size=micro,
            dp_rank=rank,
            dp_world_size=world,
        )
    got = list(reader)
    assert [b["sample_ids"].tolist() for b in got] == expected
    for b in got:
        reference = reference_batch(stream, b["sample_ids"].tolist())
        np.testing.assert_array_equal(b["labels"], reference["labels"])


# ------------------------------------------------------------------------------------- resumption


@pytest.mark.parametrize("looked_up", [1, 64, 1 << 17])
@pytest.mark.parametrize("built", [1, 100])
def test_resume_after_any_microbatch_equals_never_stopping(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch, looked_up: int, built: int
) -> None:
    """From every microbatch, the last one and the pass edge included, five times in a row."""
    monkeypatch.setattr(read_ahead, "TOKENS", looked_up)
    monkeypatch.setattr(building, "BLOCK_TOKENS", built)
    reader = open_reader(stream)
    states, batches = [reader.state_dict()], []
    for _ in range(2):
        for batch in reader:
            batches.append(content(batch))
            states.append(reader.state_dict())
    passes = len(batches) // 2
    assert batches[:passes] == batches[passes:]
    for place, state in enumerate(states[: passes + 1]):
        for _ in range(5):
            resumed = open_reader(stream)
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
            assert [content(b) for b in resumed] == batches[place:passes]
            other = open_reader(stream)
            other.load_state_dict(state)
            for batch, expected in zip(other, batches[place : place + 1], strict=False):
                assert content(batch) == expected
                assert other.state_dict() == states[place + 1]


def test_stopping_after_every_microbatch_equals_never_stopping(stream: FakeStream) -> None:
    """A chain of readers, each of which delivers one batch."""
    expected = [content(batch) for batch in open_reader(stream)]
    state: dict[str, Any] = {}
    got = []
    while True:
        reader = open_reader(stream)
        reader.load_state_dict(state)
        batch = next(reader, None)
        if batch is None:
            break
        got.append(content(batch))
        state = reader.state_dict()
    assert got == expected


def test_one_reader_goes_to_any_state_in_any_order(stream: FakeStream) -> None:
    """Loading drops what was read ahead, forwards and backwards."""
    reader = open_reader(stream)
    states, batches = [], []
    for _ in range(20):
        states.append(reader.state_dict())
        batches.append(content(next(reader)))
    for place in (19, 0, 7, 6, 12, 1, 18, 2):
        reader.load_state_dict(states[place])
        assert content(next(reader)) == batches[place]
    reader.load_state_dict({})
    assert content(next(reader)) == batches[0]
    nothing: Any = None
    with pytest.raises(ResumeError, match=r"state must be a dictionary .* got None; the run would"):
        reader.load_state_dict(nothing)
    assert content(next(reader)) == batches[1]


@pytest.mark.parametrize("world", [1, 2, 3, 5, 7, 8, 64])
def test_a_step_edge_loads_into_any_world_and_batch_size(stream: FakeStream, world: int) -> None:
    """The remaining samples are the same, step numbers go on."""
    source = open_reader(stream)
    for _ in range(3 * source.microbatches_per_step):
        next(source)
    state = source.state_dict()
    seen: list[int] = []
    for rank in range(world):
        reader = open_reader(
            stream,
            global_batch_size=10,
            micro_batch_size=3,
            dp_rank=rank,
            dp_world_size=world,
            placement="contiguous",
        )
        reader.load_state_dict(state)
        assert (reader.step, reader.next_sample) == (3, 21)
        for batch in reader:
            seen += batch["sample_ids"][batch["sample_ids"] >= 0].tolist()
    assert sorted(seen) == list(range(21, len(stream.order)))


def test_the_end_is_reported_once_and_iterating_again_starts_again(stream: FakeStream) -> None:
    """Also across a state taken between two passes."""
    reader = open_reader(stream)
    assert iter(reader) is reader
    first = [content(batch) for batch in reader]
    before_the_report = open_reader(stream)
    for _ in first:
        next(before_the_report)
    assert next(reader, None) is None
    resumed = open_reader(stream)
    resumed.load_state_dict(before_the_report.state_dict())
    assert list(resumed) == []
    for ended in (reader, resumed):
        between = open_reader(stream)
        between.load_state_dict(ended.state_dict())
        assert next(between, None) is None
        assert [content(batch) for batch in between] == first
    assert [content(batch) for batch in reader] == first


def test_states_are_equal_on_every_rank(stream: FakeStream) -> None:
    """At every microbatch, so any rank's state may be the saved one."""
    readers = [open_reader(stream, dp_rank=rank, dp_world_size=3) for rank in range(3)]
    keys = {key: type(value) for key, value in readers[0].state_dict().items()}
    for _ in zip(*readers, strict=True):
        states = [reader.state_dict() for reader in readers]
        assert states[0] == states[1] == states[2]
        assert {key: type(value) for key, value in states[0].items()} == keys


def test_loading_a_state_reads_nothing(stream: FakeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeking is arithmetic; the first batch opens few shards."""
    reader = open_reader(stream, micro_batch_size=1)
    state = {**reader.state_dict(), "next_sample": 35}
    opened: list[str] = []
    store = type(reader._shards._store)
    plain = store.open_mmap
    monkeypatch.setattr(
        store,
        "open_mmap",
        lambda self, name, *rest: opened.append(name) or plain(self, name, *rest),
    )
    monkeypatch.setattr(read_ahead, "TOKENS", 1)
    reader.load_state_dict(state)
    assert opened == []
    next(reader)
    assert len(opened) == 1


def test_a_state_of_another_stream_is_refused(stream: FakeStream, tmp_path: Path) -> None:
    """A changed recipe means another fingerprint."""
    other = write_stream(tmp_path, random_lanes([8], seed=6), fingerprint="0" * 32)
    with pytest.raises(DriftError, match=r"expected 'f{32}'.*found '0{32}'"):
        open_reader(stream).load_state_dict(open_reader(other).state_dict())


def test_inside_a_step_another_world_is_refused(stream: FakeStream) -> None:
    """The reader stays where it was."""
    source = open_reader(stream)
    next(source)
    reader = open_reader(stream, dp_world_size=2)
    before = reader.state_dict()
    with pytest.raises(ResumeError, match="dp_world_size must be 1, that of the saved state"):
        reader.load_state_dict(source.state_dict())
    assert reader.state_dict() == before


# -------------------------------------------------------------------------- batch size and skipping


def test_the_batch_size_may_grow_at_a_step_edge(stream: FakeStream) -> None:
    """Samples follow each other, step numbers go on, states resume."""
    reader = open_reader(stream, global_batch_size=4, micro_batch_size=4, placement="contiguous")
    got = []
    for step, batch in enumerate((4, 8, 8, 2, 6)):
        reader.set_global_batch_size(batch)
        assert reader.step == step
        states = reader.state_dict()
        assert states["next_sample"] == states["step_base"] + step * batch
        for _ in range(reader.microbatches_per_step):
            got += next(reader)["sample_ids"].tolist()
    assert [sample for sample in got if sample >= 0] == list(range(28))
    next(reader)
    reader.set_global_batch_size(6)
    with pytest.raises(RecipeError, match="global_batch_size must be changed at a step edge"):
        reader.set_global_batch_size(5)


def test_shares_of_one_size_of_steps_of_several_sizes_are_told_apart(tmp_path: Path) -> None:
    """Of 6 and of 7 samples rank 0 of 2 gets 3, but by lane not those at the same places."""
    stream = write_stream(tmp_path, random_lanes([20, 20, 20], seed=4))
    reader = open_reader(stream, global_batch_size=6, micro_batch_size=3, dp_world_size=2)
    assert next(reader)["sample_ids"].tolist() == [0, 3, 1]
    reader.set_global_batch_size(7)
    assert next(reader)["sample_ids"].tolist() == [6, 9, 12]


def test_another_batch_size_at_a_position_seen_before_reads_the_step_anew(
    stream: FakeStream,
) -> None:
    """Nothing of the step that was begun there with the old size is left."""
    reader = open_reader(stream)
    start = reader.state_dict()
    next(reader)
    reader.load_state_dict(start)
    reader.set_global_batch_size(2)
    assert [next(reader)["sample_ids"].tolist() for _ in range(2)] == [[0, 1], [3, 2]]


def test_skipped_steps_are_left_out_by_every_rank_and_after_resuming(stream: FakeStream) -> None:
    """Their numbers are not used for other steps, and the state says so."""
    total = len(stream.order)
    kept = [step for step in range(-(-total // BATCH)) if step not in (1, 2, 4)]
    expected = {step: set(range(step * BATCH, min((step + 1) * BATCH, total))) for step in kept}
    readers = [open_reader(stream, dp_rank=rank, dp_world_size=2) for rank in range(2)]
    for reader in readers:
        next(reader)
        reader.skip(1, 3)
        reader.skip(4, 5)
        assert reader.state_dict()["skipped_steps"] == "1:3,4:5"
        next(reader)
        assert (reader.step, reader.microbatch) == (3, 0)
    for world in (1, 3):
        got: dict[int, set[int]] = {step: set() for step in kept[1:]}
        for rank in range(world):
            resumed = open_reader(stream, dp_rank=rank, dp_world_size=world)
            resumed.load_state_dict(readers[0].state_dict())
            while True:
                step = resumed.step
                batch = next(resumed, None)
                if batch is None:
                    break
                got[step].update(batch["sample_ids"][batch["sample_ids"] >= 0].tolist())
        assert got == {step: expected[step] for step in kept[1:]}


def test_skipping_drops_what_was_read_ahead_of_the_skipped_steps(stream: FakeStream) -> None:
    """Inside a step, its rest stays."""
    readers = [open_reader(stream, global_batch_size=4) for _ in range(2)]
    everything = [content(batch) for batch in readers[0]]
    for _ in range(5):
        next(readers[1])
    readers[1].skip(3, 5)
    assert [content(batch) for batch in readers[1]] == [everything[5], *everything[10:]]


def test_skipped_steps_are_left_out_in_the_next_pass_too(stream: FakeStream) -> None:
    """What is wrong with their samples stays wrong."""
    reader = open_reader(stream)
    reader.skip(0, 2)
    first = [content(batch) for batch in reader]
    assert first == [content(batch) for batch in reader]
    assert len(first) == len(list(open_reader(stream))) - 2 * reader.microbatches_per_step


def test_skipping_at_the_edge_moves_at_once_and_the_past_cannot_be_skipped(
    stream: FakeStream,
) -> None:
    """Ranges are half-open and begin at a step that has not begun."""
    reader = open_reader(stream)
    reader.skip(0, 2)
    assert (reader.step, reader.next_sample) == (2, 14)
    with pytest.raises(RecipeError, match="first must be at least 2, the first step that has not"):
        reader.skip(1, 3)
    next(reader)
    with pytest.raises(RecipeError, match="first must be at least 3"):
        reader.skip(2, 3)
    with pytest.raises(RecipeError, match="last must be an integer of at least 5, got 4"):
        reader.skip(4, 4)
    reader.load_state_dict({})
    assert (reader.step, reader.state_dict()["skipped_steps"]) == (0, "")
    reader.skip(0, 10**6)
    assert list(reader) == []


# ------------------------------------------------------------------------------------ sharing work


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("count", [2, 3, 5, 9])
@pytest.mark.parametrize("batch", [3, 7, 12])
def test_strides_together_deliver_each_microbatch_once_in_turn(
    stream: FakeStream, batch: int, count: int, start: int
) -> None:
    """Reader k of n advances by k: the n readers in turn give what one reader gives."""
    for rank in range(2):
        arguments = {"global_batch_size": batch, "dp_rank": rank, "dp_world_size": 2}
        whole = open_reader(stream, **arguments)
        whole.skip(1, 2)
        readers = [open_reader(stream, **arguments, stride=count) for _ in range(count)]
        for number, reader in enumerate(readers):
            reader.skip(1, 2)
            reader.advance(start + number)
        expected = list(map(content, whole))[start:]
        columns = [list(map(content, reader)) for reader in readers]
        assert [len(column) for column in columns] == [
            -(-(len(expected) - number) // count) for number in range(count)
        ]
        got = [columns[k % count][k // count] for k in range(len(expected))]
        assert got == expected


def test_a_strided_reader_resumes_where_it_was(stream: FakeStream) -> None:
    """Its state is the place of its own next microbatch."""
    reader = open_reader(stream, global_batch_size=5, stride=3)
    reader.advance(1)
    batches = list(map(content, reader))
    for done in range(len(batches)):
        first, second = (open_reader(stream, global_batch_size=5, stride=3) for _ in range(2))
        first.advance(1)
        for _ in range(done):
            next(first)
        second.load_state_dict(first.state_dict())
        assert list(map(content, second)) == batches[done:]


# ------------------------------------------------------------------------------- arguments, closing


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"global_batch_size": 0}, "global_batch_size must be an integer of at least 1, got 0"),
        ({"micro_batch_size": True}, "micro_batch_size must be an integer of at least 1"),
        ({"dp_rank": 2, "dp_world_size": 2}, "dp_rank must be below dp_world_size 2, got 2"),
        ({"start_sample": -1}, "start_sample must be an integer of at least 0, got -1"),
        ({"placement": "by_lanes"}, "got 'by_lanes'; did you mean 'by_lane'"),
        ({"stride": 0}, "stride must be an integer of at least 1, got 0"),
        ({"cu_seqlens_len": 1}, "cu_seqlens_len must be an integer of at least 2, got 1"),
        ({"timeout": -1}, "timeout must be at least 0 seconds, got -1"),
        ({"index_dtype": np.int16}, "index_dtype must be int32 or int64, got 'int16'"),
        ({"fields": ["input_id"]}, "got 'input_id'; did you mean 'input_ids'"),
        ({"fields": "labels"}, "fields must be a sequence of names, got the text 'labels'"),
        ({"micro_batch_size": 2**28}, "micro_batch_size must be below 134217728 for rows of 16"),
    ],
)
def test_wrong_arguments_are_refused(
    stream: FakeStream, changes: dict[str, Any], message: str
) -> None:
    """Before anything is read, with the rule and the value."""
    with pytest.raises(RecipeError, match=message):
        open_reader(stream, **changes)


def test_a_place_without_a_stream_is_refused(tmp_path: Path) -> None:
    """The path is named; how it is waited for is tested with the other waits."""
    with pytest.raises(StreamNotFoundError, match=f"found none in '{tmp_path}'"):
        StreamReader(str(tmp_path), global_batch_size=1, micro_batch_size=1, timeout=0)


def test_only_the_asked_fields_are_built(stream: FakeStream) -> None:
    """In the order asked for, each once."""
    batch = next(open_reader(stream, fields=["sample_ids", "input_ids", "sample_ids"]))
    assert list(batch) == ["sample_ids", "input_ids"]


def test_a_closed_reader_cannot_be_read_but_its_state_can(stream: FakeStream) -> None:
    """The context manager closes."""
    with open_reader(stream) as reader:
        next(reader)
    assert reader.state_dict()["microbatch"] == 1
    with pytest.raises(ValueError, match="the reader is closed"):
        next(reader)


def test_an_empty_finite_stream_ends_at_once(tmp_path: Path) -> None:
    """Also on ranks without a share."""
    stream = write_stream(tmp_path, [[], []])
    assert list(open_reader(stream, dp_rank=3, dp_world_size=4)) == []


def test_a_stream_of_nothing_but_a_manifest_is_waited_for(tmp_path: Path) -> None:
    """It may be written yet."""
    stream = plan_stream(tmp_path, random_lanes([4], seed=1))
    with pytest.raises(TimeoutError, match=r"shards/lane-00000/000000000\.arrow"):
        next(open_reader(stream))
