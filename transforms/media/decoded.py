"""What an image or a video is in a row, before and after it is decoded; needs no decoder."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon_beam.media.content import MediaFault
from zephon_beam.media.presets import Geometry

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaItem:
    """What an image or a video is in a row."""

    is_video: bool
    frame_count: int
    geometry: Geometry
    grid: tuple[int, int, int]
    """Patches along time, height and width."""
    tokens: int
    """Placeholders that stand for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedItem:
    """An item and its pixels; black where decoding failed."""

    item: MediaItem
    pixels: Pixels
    """uint8 [frames, height, width, 3]."""
    failure: MediaFault | None = None
