"""Which placeholders of a segment stand for which item."""

import numpy as np
import pytest

from transforms.media.decoded import MediaItem
from transforms.media.shards import place_items
from zephon_beam.media.presets import Geometry

SIZE = Geometry(scaled_height=1, scaled_width=1, height=1, width=1)


def item(kind: str, tokens: int) -> MediaItem:
    """Return an item of so many placeholders."""
    is_video = kind == "V"
    return MediaItem(is_video=is_video, frame_count=1, geometry=SIZE, grid=(1, 1, 1), tokens=tokens)


def placed(
    items: str, row: str, *, told: bool = True, lost: int | None = None
) -> list[tuple[int, int]] | None:
    """Place items such as `I2 V3` at placeholders such as `VVVII`."""
    listed = [item(word[0], int(word[1:])) for word in items.split()]
    are_videos = np.array([letter == "V" for letter in row], np.bool_)
    return place_items(listed, are_videos, are_told=told, lost_tokens=lost)


def test_items_are_placed_in_the_order_of_their_kind() -> None:
    """A template may write videos first; neighbours are told by their numbers."""
    assert placed("I2 V3 I1", "IIVVVI") == [(0, 0), (1, 2), (2, 5)]
    assert placed("I2 V3 I1", "VVVIII") == [(1, 0), (0, 3), (2, 5)]
    assert placed("I2 V3 I1", "IIIVVV") == [(0, 0), (2, 2), (1, 3)]
    assert placed("V2 V1", "VVV") == [(0, 0), (1, 2)]


def test_one_token_for_both_kinds_keeps_the_order_of_the_document() -> None:
    """Nothing else tells them apart."""
    assert placed("I2 V3 I1", "IIIIII", told=False) == [(0, 0), (1, 2), (2, 5)]


@pytest.mark.parametrize(
    ("items", "row"),
    [("I2", "I"), ("I2", "III"), ("I2", "VV"), ("I2 V1", "IVI"), ("I2 V1", "II"), ("", "I")],
)
def test_what_does_not_fit_is_not_placed(items: str, row: str) -> None:
    """Files were replaced since they were probed."""
    assert placed(items, row) is None


def test_a_document_that_was_cut_may_lack_its_last_items() -> None:
    """If with them it would have been longer than the row."""
    assert placed("I2 V3 I4", "IIVVV", lost=5) == [(0, 0), (1, 2)]
    assert placed("I2 V3 I4", "IIVVV", lost=6) is None
    assert placed("I2 V3 I4", "II", lost=10) == [(0, 0)]
    assert placed("I2 V3 I4", "III", lost=1) is None
