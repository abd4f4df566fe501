"""What a named reader tells the stream, and what it needs a name for."""

from pathlib import Path
from typing import Any

import pytest

from tests.verified_streams import write_whole_stream
from zephon_beam.consumers import Consumer, encode_consumer, read_consumer
from zephon_beam.errors import DriftError, RecipeError, ResumeError
from zephon_beam.layout import consumer_name
from zephon_beam.reader import StreamReader
from zephon_beam.store.base import Store, open_store


def open_reader(uri: str, **options: Any) -> StreamReader:
    """Open a reader of steps of two samples."""
    return StreamReader(uri, global_batch_size=2, micro_batch_size=1, **options)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Return a stream of 17 samples."""
    return str(write_whole_stream(tmp_path, [9, 8]).uri)


def told(store: Store) -> Consumer:
    """Return what the run has told."""
    found = read_consumer(store, "run")
    assert found is not None
    return found


def test_a_run_tells_where_it_reads_and_that_it_is_over(uri: str) -> None:
    """When it opens, every few seconds, and when it closes; its pins outlive it."""
    store, now = open_store(uri), [0.0]
    reader = open_reader(uri, consumer="run", clock=lambda: now[0])
    assert (told(store).position, told(store).finished, dict(told(store).pins)) == (0, False, {})
    for _ in range(4):
        next(reader)
    assert told(store).position == 0
    now[0] = 2.0
    next(reader)
    assert told(store).position == 4
    reader.acknowledge(reader.state_dict())
    reader.close()
    assert (told(store).finished, dict(told(store).pins)) == (True, {"acknowledged": 4})
    open_reader(uri, consumer="run", start_sample=6)
    assert (told(store).position, told(store).finished) == (6, False)
    assert dict(told(store).pins) == {"acknowledged": 4}


def test_the_end_of_the_stream_ends_the_run(uri: str) -> None:
    """Nobody waits for it any more."""
    store = open_store(uri)
    assert sum(1 for _ in open_reader(uri, consumer="run")) == 18
    assert told(store).finished


def test_pins_are_named_moved_and_let_go(uri: str) -> None:
    """The smallest one says what must stay."""
    store = open_store(uri)
    reader = open_reader(uri, consumer="run")
    start = reader.state_dict()
    for _ in range(8):
        next(reader)
    reader.acknowledge(reader.state_dict())
    reader.pin("best", start)
    assert told(store).first_needed == 0
    reader.unpin("best")
    assert told(store).first_needed == 8
    reader.acknowledge({})
    assert told(store).first_needed == 0


def test_only_the_first_rank_writes(uri: str) -> None:
    """The others call the same methods and write nothing."""
    store = open_store(uri)
    reader = open_reader(uri, consumer="run", dp_rank=1, dp_world_size=2)
    next(reader)
    reader.acknowledge(reader.state_dict())
    reader.pin("best", reader.state_dict())
    reader.unpin("best")
    reader.close()
    assert list(store.list("consumers/")) == []


def test_a_reader_without_a_name_writes_nothing_and_can_pin_nothing(uri: str) -> None:
    """Nobody would know whose samples to keep."""
    reader = open_reader(uri)
    next(reader)
    for call in (reader.acknowledge, lambda state: reader.pin("x", state)):
        with pytest.raises(RecipeError, match=r"must be called on a reader with a name"):
            call(reader.state_dict())
    with pytest.raises(RecipeError, match=r"unpin must be called on a reader with a name"):
        reader.unpin("x")
    assert list(open_store(uri).list("consumers/")) == []


def test_wrong_names_and_states_are_refused(uri: str) -> None:
    """Before anything is written."""
    for name in ("", "../x", "a/b", "x" * 200):
        with pytest.raises(RecipeError, match=r"consumer must be a name of letters"):
            open_reader(uri, consumer=name)
    reader = open_reader(uri, consumer="run")
    state = reader.state_dict()
    with pytest.raises(DriftError, match=r"fingerprint of the reader state"):
        reader.acknowledge({**state, "fingerprint": "0" * 32})
    with pytest.raises(ResumeError, match=r"state version must be 1"):
        reader.pin("x", {**state, "version": 2})
    with pytest.raises(RecipeError, match=r"name must be other than acknowledged"):
        reader.pin("acknowledged", state)
    with pytest.raises(RecipeError, match=r"pin must be one of \[\], got 'x'"):
        reader.unpin("x")
    assert dict(told(open_store(uri)).pins) == {}


def test_a_name_that_another_stream_uses_is_refused(uri: str) -> None:
    """Its pins mean other samples."""
    other = Consumer(name="run", fingerprint="0" * 32, position=3, pins={"x": 3})
    open_store(uri).replace(consumer_name("run"), encode_consumer(other))
    with pytest.raises(DriftError, match=r"consumers/run\.json: fingerprint: expected"):
        open_reader(uri, consumer="run")
