"""Media fields of batches against a reference that goes token by token."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.streams import FakeStream, Segment, plan_stream, put, samples_of
from zephon_beam.errors import RecipeError
from zephon_beam.layout import end_name, shard_name
from zephon_beam.media.columns import ITEM_COLUMNS, MediaColumns
from zephon_beam.reader.media import MEDIA_FIELDS
from zephon_beam.reader.stream_reader import StreamReader
from zephon_beam.shard import encode_shard

PAD_TOKEN = 9
RECIPE = {"media": {"preset": "qwen2_vl"}}
Item = tuple[int, int, int]
"""(frames in pairs, height, width) in placeholders."""
Document = list[int | Item]
"""Numbers of texts' tokens, and items."""

items = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 3))
documents = st.lists(st.one_of(st.integers(1, 3), items), min_size=1, max_size=4)
rows = st.lists(documents, min_size=0, max_size=3)


def length(part: int | Item) -> int:
    """Return the tokens of a part."""
    return part if isinstance(part, int) else part[0] * part[1] * part[2]


def write_media_stream(folder: Path, lane: list[list[Document]]) -> FakeStream:
    """Write one lane of rows; each item's frames are of one colour that tells it apart."""
    seq_len = max([8, *(sum(length(part) for doc in row for part in doc) for row in lane)])
    segments = []
    facts: list[list[int]] = []
    grids: list[list[int]] = []
    pixels: list[bytes] = []
    offsets = [0]
    for row in lane:
        place = 0
        own = []
        for document in row:
            start = place
            for part in document:
                if not isinstance(part, int):
                    time, tall, wide = part
                    facts.append([place, length(part), 1, 2 * time, 2 * tall, 2 * wide, 0])
                    grids.append([time, 2 * tall, 2 * wide])
                    size = 3 * 2 * time * 2 * tall * 2 * wide
                    pixels.append(bytes([len(facts) % 256]) * size)
                place += length(part)
            own.append(Segment(start=start, tokens=(1,) * (place - start)))
        segments.append(own)
        offsets.append(len(facts))
    stream = plan_stream(
        folder, [segments], seq_len=seq_len, has_loss_mask=True, recipe=RECIPE, samples_per_shard=2
    )
    values = np.array(facts, np.int64).reshape(-1, len(ITEM_COLUMNS))
    for shard in range(-(-len(lane) // 2)):
        first, last = offsets[2 * shard], offsets[min(2 * shard + 2, len(lane))]
        bounds = np.array(offsets[2 * shard : 2 * shard + 3], np.int64) - first
        media = MediaColumns(
            offsets=bounds,
            items={
                name: values[first:last, place].astype(dtype)
                for place, (name, dtype) in enumerate(ITEM_COLUMNS.items())
            },
            grids=np.array(grids[first:last], np.int32).reshape(-1, 3),
            pixels=np.frombuffer(b"".join(pixels[first:last]), np.uint8),
        )
        part = samples_of(segments[2 * shard : 2 * shard + 2], stream.manifest)
        data = encode_shard(
            replace(part, media=media),
            fingerprint=stream.manifest.fingerprint,
            lane=0,
            first_sample=2 * shard,
        )
        put(folder, shard_name(0, shard), data)
    put(folder, end_name(0), f'{{"samples": {len(lane)}}}'.encode())
    return stream


def reference(lane: list[list[Document]], seq_len: int) -> dict[str, list[Any]]:
    """Compute the fields of every row alone, token by token."""
    found: dict[str, list[Any]] = {"positions": [], "grids": [], "mrope": [], "colours": []}
    count = 0
    for row in lane:
        positions, grids, colours = [], [], []
        cells: list[tuple[int, int, int]] = []
        for document in row:
            following = 0
            for part in document:
                if isinstance(part, int):
                    cells += [(following + step,) * 3 for step in range(part)]
                    following += part
                    continue
                count += 1
                colours.append(count % 256)
                time, tall, wide = part
                grids.append([time, 2 * tall, 2 * wide])
                positions += range(len(cells), len(cells) + length(part))
                cells += [
                    (following + t, following + h, following + w)
                    for t in range(time)
                    for h in range(tall)
                    for w in range(wide)
                ]
                following += max(part)
        cells += [(place,) * 3 for place in range(seq_len - len(cells))]
        found["positions"].append(positions)
        found["grids"].append(grids)
        found["mrope"].append(cells)
        found["colours"].append(colours)
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(lane=st.lists(rows, min_size=1, max_size=5), size=st.integers(1, 3), batch=st.integers(1, 4))
def test_media_fields_are_those_of_a_walk_over_the_tokens(
    lane: list[list[Document]], size: int, batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """For any rows, microbatches and steps, filler included."""
    stream = write_media_stream(tmp_path_factory.mktemp("media"), lane)
    seq_len = stream.manifest.seq_len
    expected = reference(lane, seq_len)
    fields = ("sample_ids", *MEDIA_FIELDS)
    with StreamReader(
        stream.uri, global_batch_size=batch, micro_batch_size=size, fields=fields
    ) as reader:
        for found in reader:
            rows_of_batch = found["sample_ids"].tolist()
            check(found, rows_of_batch, expected, seq_len)


def check(
    found: dict[str, Any], samples: list[int], expected: dict[str, list[Any]], seq_len: int
) -> None:
    """Compare a batch with the rows that it says it holds."""
    positions, grids, colours = [], [], []
    for place, sample in enumerate(samples):
        if sample >= 0:
            positions += [place * seq_len + p for p in expected["positions"][sample]]
            grids += expected["grids"][sample]
            colours += expected["colours"][sample]
        own = expected["mrope"][sample] if sample >= 0 else [(p,) * 3 for p in range(seq_len)]
        assert found["mrope_position_ids"][:, place].T.tolist() == [list(cell) for cell in own]
    assert found["media_positions"].tolist() == positions
    assert found["media_grid_thw"].tolist() == grids
    tokens = [t * h * w // 4 for t, h, w in grids]
    assert found["media_cu_tokens"].tolist() == np.cumsum([0, *tokens]).tolist()
    frames = [2 * t for t, _, _ in grids]
    assert found["media_cu_frames"].tolist() == np.cumsum([0, *frames]).tolist()
    assert [int(pixels.min()) for pixels in found["pixel_values"]] == colours
    assert [int(pixels.max()) for pixels in found["pixel_values"]] == colours
    shapes = [(2 * t, h, w, 3) for t, h, w in grids]
    assert [pixels.shape for pixels in found["pixel_values"]] == shapes
    assert found["media_kinds"].tolist() == [1] * len(grids)
    assert found["media_failed"].tolist() == [0] * len(grids)


def test_arrays_may_be_changed_in_place(tmp_path: Path) -> None:
    """Without touching what the next reader gets."""
    stream = write_media_stream(tmp_path, [[[1, (1, 1, 1)]], [[(2, 1, 1)]]])
    for _ in range(2):
        with StreamReader(
            stream.uri, global_batch_size=2, micro_batch_size=2, fields=["pixel_values"]
        ) as reader:
            for pixels, colour in zip(next(reader)["pixel_values"], (1, 2), strict=True):
                assert (pixels == colour).all()
                pixels[:] = 77


def test_types_are_as_documented(tmp_path: Path) -> None:
    """`docs/reader.md` states each field with its type."""
    stream = write_media_stream(tmp_path, [[[1, (1, 1, 1)]]])
    page = Path(__file__).parents[3] / "docs" / "reader.md"
    section = page.read_text().partition("## Images and videos")[2].partition("\n## ")[0]
    stated = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            key, dtype, *_ = (cell.strip() for cell in line.split("|")[1:])
            stated[key.strip("`")] = dtype
    assert tuple(stated) == MEDIA_FIELDS
    for index_dtype in (np.int32, np.int64):
        with StreamReader(
            stream.uri,
            global_batch_size=1,
            micro_batch_size=1,
            fields=MEDIA_FIELDS,
            index_dtype=index_dtype,
        ) as reader:
            batch = next(reader)
        for name, dtype in stated.items():
            if dtype == "list of uint8":
                assert [pixels.dtype for pixels in batch[name]] == [np.uint8]
            else:
                wanted = index_dtype if dtype == "index" else dtype
                assert batch[name].dtype == np.dtype(wanted), name


@pytest.mark.parametrize("field", MEDIA_FIELDS)
def test_streams_without_media_have_no_such_fields(field: str, tmp_path: Path) -> None:
    """It is said before anything is read."""
    stream = plan_stream(tmp_path, [[]])
    with pytest.raises(RecipeError, match="must be"):
        StreamReader(stream.uri, global_batch_size=1, micro_batch_size=1, fields=[field])


def test_rotary_places_are_those_of_qwen(tmp_path: Path) -> None:
    """LLaVA has places in one direction."""
    stream = plan_stream(tmp_path, [[]], recipe={"media": {"preset": "llava_1_5"}})
    StreamReader(stream.uri, global_batch_size=1, micro_batch_size=1, fields=["pixel_values"])
    with pytest.raises(RecipeError, match="the preset qwen2_vl, got 'llava_1_5'"):
        StreamReader(
            stream.uri, global_batch_size=1, micro_batch_size=1, fields=["mrope_position_ids"]
        )
