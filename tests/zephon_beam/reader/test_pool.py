"""Arrays are used again when nobody holds them, and never before."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.streams import random_lanes, reference_batch, write_stream
from zephon_beam.reader import StreamReader, pool
from zephon_beam.reader.batches import FIELDS
from zephon_beam.reader.pool import ArrayPool

INT32 = np.dtype(np.int32)


def test_an_array_comes_back_when_its_views_are_gone() -> None:
    """A view, a view of a view, another type of it, and a buffer all keep it away."""
    arrays = ArrayPool()
    first = arrays.take((4, 8), INT32)
    place = first.ctypes.data
    holders = [first[1:], first.reshape(-1)[3:][::2], first.view(np.int64), memoryview(first)]
    del first
    while holders:
        assert arrays.take((4, 8), INT32).ctypes.data != place
        holders.pop()
    again = {arrays.take((4, 8), INT32).ctypes.data}
    assert again == {place}
    assert arrays.take((4, 8), np.dtype(np.uint32)).dtype == np.uint32


def test_two_arrays_in_use_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many; beyond the limit nothing is kept, and nothing is shared either."""
    monkeypatch.setattr(pool, "MOST_BYTES", 500)
    arrays = ArrayPool()
    held = [arrays.take((8, 8), INT32) for _ in range(9)]
    for number, array in enumerate(held):
        array[...] = number
    assert [int(array.max()) for array in held] == list(range(9))
    assert sys.getrefcount(held[0]) < 4


def test_a_ramp_counts_the_places_of_rows() -> None:
    """Also after a longer or a shorter one was asked for."""
    arrays = ArrayPool()
    for rows in (2, 5, 1, 3, 0.5):
        length = int(rows * 4)
        expected = (list(range(4)) * 5)[:length]
        assert arrays.ramp(length, 4, np.dtype(np.int16)).tolist() == expected
    assert arrays.ramp(6, 6, np.dtype(np.int16)).tolist() == list(range(6))


@pytest.mark.parametrize("kept", [1, 2, 7, 1000])
def test_batches_that_are_kept_stay_as_they_are(tmp_path: Path, kept: int) -> None:
    """A trainer may hold as many batches as it likes while the reader goes on."""
    stream = write_stream(tmp_path, random_lanes([30, 30], seed=3))
    held = []
    for _ in range(2):
        for batch in StreamReader(
            stream.uri, global_batch_size=6, micro_batch_size=2, fields=FIELDS
        ):
            held.append(batch)
            for old in held[-kept:][:1]:
                expected = reference_batch(stream, old["sample_ids"].tolist())
                for field, value in expected.items():
                    np.testing.assert_array_equal(old[field], value, err_msg=field)
            del held[:-kept]


def test_compiled_batches_that_nobody_holds_lie_where_the_last_one_lay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that is in a core's cache already; what is held, by whomever, is not touched."""
    compiled = pytest.importorskip("zephon_beam.reader.compiled")
    stream = write_stream(tmp_path, random_lanes([30, 30], seed=3))
    monkeypatch.setattr(compiled, "CACHED_BYTES", 1)
    options: dict[str, Any] = {
        "global_batch_size": 6,
        "micro_batch_size": 2,
        "fields": FIELDS,
        "compiled": True,
    }
    places: dict[str, set[int]] = {"labels": set(), "loss_mask": set()}
    reader = StreamReader(stream.uri, **options)
    while (batch := next(reader, None)) is not None:
        for field, found in places.items():
            found.add(batch[field].ctypes.data)
        del batch
    assert [len(found) for found in places.values()] == [1, 1]
    held = [
        {**batch, "labels": batch["labels"][1:]} for batch in StreamReader(stream.uri, **options)
    ]
    assert len({batch["labels"].ctypes.data for batch in held}) == 30
    for batch in held:
        expected = reference_batch(stream, batch["sample_ids"].tolist())
        np.testing.assert_array_equal(batch["labels"], expected["labels"][1:])
        np.testing.assert_array_equal(batch["input_ids"], expected["input_ids"])
        np.testing.assert_array_equal(batch["loss_mask"], expected["loss_mask"])
        np.testing.assert_array_equal(batch["cu_seqlens"], expected["cu_seqlens"])
