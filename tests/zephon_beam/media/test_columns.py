"""Media columns of shards: stored, read back, digested and checked."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.streams import Segment, make_manifest, samples_of
from zephon_beam.media.columns import ITEM_COLUMNS, MediaColumns, check_media
from zephon_beam.samples import Samples, row_digests
from zephon_beam.shard import decode_shard, decode_shard_and_counts, encode_shard, same_shard
from zephon_beam.shard_checks import check_rows

SHAPES = [(1, 2, 3), (2, 1, 2), (1, 1, 1)]
"""Frames, height and width of the items."""


def media(**changes: Any) -> MediaColumns:
    """Return two items in row 0, none in row 1 and one in row 2."""
    facts = [[2, 4, 0, *SHAPES[0], 0], [6, 2, 1, *SHAPES[1], 0], [0, 1, 1, *SHAPES[2], 1]]
    values = np.array(facts)
    size = sum(3 * int(np.prod(shape)) for shape in SHAPES)
    columns = MediaColumns(
        offsets=np.array([0, 2, 2, 3], np.int64),
        items={
            name: values[:, place].astype(dtype)
            for place, (name, dtype) in enumerate(ITEM_COLUMNS.items())
        },
        grids=np.array([[1, 2, 2], [1, 1, 2], [1, 1, 1]], np.int32),
        pixels=(np.arange(size) * 5).astype(np.uint8),
    )
    return replace(columns, **changes)


def samples(found: MediaColumns | None) -> Samples:
    """Return three rows with a mask and media."""
    rows = [[Segment(start=0, tokens=tuple(range(1, 11)))] for _ in range(3)]
    return replace(samples_of(rows, make_manifest(has_loss_mask=True)), media=found)


def encoded(found: MediaColumns | None, **options: Any) -> bytes:
    """Encode the three rows."""
    return encode_shard(samples(found), fingerprint="f", lane=0, first_sample=0, **options)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_media_are_read_back_as_they_were_stored(compression: str) -> None:
    """All columns, and the frames of each item."""
    _, found = decode_shard(encoded(media(), compression=compression), "shard")
    expected = media()
    assert found.media is not None
    assert np.array_equal(found.media.offsets, expected.offsets)
    assert np.array_equal(found.media.grids, expected.grids)
    for name in ITEM_COLUMNS:
        assert np.array_equal(found.media.items[name], expected.items[name])
    bounds = found.media.pixel_offsets
    for item, shape in enumerate(SHAPES):
        frames = found.media.frames(item, bounds)
        assert frames.shape == (*shape, 3)
        assert np.array_equal(frames.reshape(-1), expected.pixels[bounds[item] : bounds[item + 1]])


def test_media_columns_have_long_offsets() -> None:
    """A shard may hold more pixels than 32 bits count."""
    batch = pa.ipc.open_file(encoded(media())).get_batch(0)
    for name in (*ITEM_COLUMNS, "media_grid_thw", "media_pixels"):
        assert pa.types.is_large_list(batch.schema.field(name).type)


def changes() -> list[Any]:
    """Return each way to change one value, with the row that it is in."""
    found = []
    for name in ITEM_COLUMNS:
        if name in ("media_frames", "media_heights", "media_widths"):
            continue
        for item, row in enumerate((0, 0, 2)):
            items = {key: values.copy() for key, values in media().items.items()}
            items[name][item] += 1
            found.append(pytest.param({"items": items}, row, id=f"{name} {item}"))
    for item, row in enumerate((0, 0, 2)):
        grids = media().grids.copy()
        grids[item, 1] += 1
        found.append(pytest.param({"grids": grids}, row, id=f"grid {item}"))
    for place, row in ((0, 0), (17, 0), (18, 0), (29, 0), (30, 2), (32, 2)):
        pixels = media().pixels.copy()
        pixels[place] ^= 1
        found.append(pytest.param({"pixels": pixels}, row, id=f"pixel {place}"))
    return found


@pytest.mark.parametrize(("change", "row"), changes())
def test_the_digest_of_a_row_covers_every_value_of_its_media(
    change: dict[str, Any], row: int
) -> None:
    """And no other row's digest does."""
    before, after = row_digests(samples(media())), row_digests(samples(media(**change)))
    assert [old != new for old, new in zip(before, after, strict=True)] == [
        place == row for place in range(3)
    ]
    assert not same_shard(encoded(media()), encoded(media(**change)))


def test_shapes_of_one_size_have_different_digests() -> None:
    """The same bytes as a 2 x 3 and as a 3 x 2 image are not the same."""
    items = {key: values.copy() for key, values in media().items.items()}
    items["media_heights"][0], items["media_widths"][0] = 3, 2
    assert row_digests(samples(media(items=items)))[0] != row_digests(samples(media()))[0]


def test_a_shard_without_media_keeps_its_digest() -> None:
    """Streams of text do not move; the digest of these rows is that of the first version."""
    digests = [digest.hex() for digest in row_digests(samples(None))]
    assert digests == [PINNED] * 3
    assert "media_pixels" not in pa.ipc.open_file(encoded(None)).schema.names


PINNED = "d5d3d51a6e9a18f7961cdbd12832963f"


def test_rows_without_items_have_empty_columns() -> None:
    """A shard of a stream with media always has them."""
    nothing = MediaColumns(
        offsets=np.zeros(4, np.int64),
        items={name: np.zeros(0, dtype) for name, dtype in ITEM_COLUMNS.items()},
        grids=np.zeros((0, 3), np.int32),
        pixels=np.zeros(0, np.uint8),
    )
    _, found = decode_shard(encoded(nothing), "shard")
    assert found.media is not None
    assert len(found.media.pixels) == 0


def wrong(found: MediaColumns) -> list[str]:
    """Return what the check says."""
    return list(check_media(found, 16))


def test_columns_that_cannot_be_are_named() -> None:
    """By the first row of each kind."""
    assert wrong(media()) == []
    for name, item, value, text in (
        ("media_starts", 2, 16, "row 2: media item lies outside the row: place 16"),
        ("media_lengths", 1, 0, "row 0: media item lies outside the row"),
        ("media_starts", 1, 5, "row 0: media item overlaps the one before: place 5"),
        ("media_kinds", 0, 2, "row 0: media item is neither an image nor a video"),
        ("media_failed", 2, 2, "row 2: media item must have failed or not"),
    ):
        items = {key: values.copy() for key, values in media().items.items()}
        items[name][item] = value
        assert any(line.startswith(text) for line in wrong(media(items=items))), text
    grids = media().grids.copy()
    grids[1, 0] = 0
    assert wrong(media(grids=grids)) == ["row 0: media item has no grid: place 6"]


@pytest.mark.parametrize("has_media", [True, False])
def test_verify_expects_media_where_the_recipe_has_them(has_media: bool) -> None:
    """Columns that are missing or too many are faults."""
    manifest = make_manifest(has_loss_mask=True, recipe={"media": {}} if has_media else {})
    for found in (media(), None):
        _, rows, counts = decode_shard_and_counts(encoded(found), "shard")
        faults = [line for line in check_rows(rows, counts, manifest, []) if "media" in line]
        assert bool(faults) == ((found is not None) != has_media)
