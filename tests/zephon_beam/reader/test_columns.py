"""Columns of a shard that are sound each by itself and do not fit each other."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.streams import FakeStream, random_lanes, write_stream
from zephon_beam.errors import CorruptShardError
from zephon_beam.layout import shard_name
from zephon_beam.reader import StreamReader

COMPILED = [False, *([True] if find_spec("numba") else [])]


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("column", ["segment_starts", "segment_next"])
def test_segment_columns_of_other_lengths_are_told(
    tmp_path: Path, compiled: bool, change: int, column: str
) -> None:
    """One value a segment: one more or fewer would shift those of the rows behind."""
    stream = write_stream(tmp_path, random_lanes([4], seed=6))

    def lengthen(lists: Any) -> Any:
        first, *others = lists.to_pylist()
        values = [first[:-1] if change < 0 else [*first, 0], *others]
        return pa.array(values, lists.type)

    _rewrite(stream, column, lengthen)
    with pytest.raises(CorruptShardError, match=rf"{column} must have \d+ values, got \d+; its ro"):
        _read(stream, compiled)


@pytest.mark.parametrize("compiled", COMPILED)
def test_a_mask_of_shorter_rows_is_told(tmp_path: Path, compiled: bool) -> None:
    """Compiled code would read behind its end."""
    stream = write_stream(tmp_path, random_lanes([4], seed=6, masked=True), has_loss_mask=True)

    def cut(rows: Any) -> Any:
        return pa.array([row[:-1] for row in rows.to_pylist()], pa.list_(pa.uint8(), 15))

    _rewrite(stream, "loss_mask", cut)
    with pytest.raises(CorruptShardError, match=r"loss_mask must be \(4, 16\), got \(4, 15\); its"):
        _read(stream, compiled)


def test_what_a_shard_does_not_say_of_itself_is_named(tmp_path: Path) -> None:
    """By its name, as it is written."""
    stream = write_stream(tmp_path, random_lanes([4], seed=6))
    _rewrite(stream, "tokens", lambda rows: rows, lacks=b"lane")
    with pytest.raises(CorruptShardError, match="is corrupt: metadata lacks 'lane'; nothing after"):
        _read(stream, compiled=False)


def _read(stream: FakeStream, compiled: bool) -> None:
    next(StreamReader(stream.uri, global_batch_size=4, micro_batch_size=4, compiled=compiled))


def _rewrite(stream: FakeStream, column: str, change: Any, lacks: bytes = b"") -> None:
    """Change a column of the only shard, and leave out one of the facts about it."""
    path = Path(stream.uri) / shard_name(0, 0)
    with pa.ipc.open_file(pa.py_buffer(path.read_bytes())) as file:
        schema, batch = file.schema, file.get_batch(0)
    columns = dict(zip(schema.names, batch.columns, strict=True))
    columns[column] = change(columns[column])
    place = schema.get_field_index(column)
    schema = schema.set(place, pa.field(column, columns[column].type))
    schema = schema.with_metadata({k: v for k, v in schema.metadata.items() if k != lacks})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(list(columns.values()), schema=schema))
