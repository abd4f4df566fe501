"""From decoded frames to RGB of the wanted size, the same on every machine."""

from typing import Any

import av
import numpy as np

from transforms.media.decoded import Pixels
from zephon_beam.media.content import MediaFault

_BICUBIC, _FULL_CHROMA_INTERPOLATION, _FULL_CHROMA_INPUT = 1 << 2, 1 << 13, 1 << 14
_ACCURATE_ROUNDING, _BIT_EXACT = 1 << 18, 1 << 19
_SCALING = (
    _BICUBIC | _FULL_CHROMA_INTERPOLATION | _FULL_CHROMA_INPUT | _ACCURATE_ROUNDING | _BIT_EXACT
)
"""Flags of swscale; with these it computes the same with and without vector instructions."""


def scale_frame(frame: Any, height: int, width: int) -> Pixels:
    """Scale a frame, as it is shown, to RGB [height, width, 3]."""
    turns = quarter_turns(frame)
    tall, wide = (width, height) if turns % 2 else (height, width)
    scaled = frame.reformat(
        width=wide, height=tall, format="rgb24", interpolation=_SCALING, threads=1
    )
    pixels: Pixels = np.asarray(scaled.to_ndarray(), np.uint8)
    return np.rot90(pixels, turns) if turns else pixels


def scale_pixels(pixels: Pixels, height: int, width: int) -> Pixels:
    """Scale RGB [h, w, 3] to [height, width, 3], each colour for itself."""
    if pixels.shape[:2] == (height, width):
        return pixels
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="gbrp")
    scaled = frame.reformat(width=width, height=height, interpolation=_SCALING, threads=1)
    found: Any = scaled.to_ndarray()
    return np.asarray(found, np.uint8)


def quarter_turns(frame: Any) -> int:
    """Return by how many quarter turns against the clock a frame is shown.

    Raises:
        MediaFault: by another angle.
    """
    if frame.rotation % 90:
        raise MediaFault("rotation", f"video must be shown upright, got {frame.rotation} degrees")
    return int(frame.rotation) // 90 % 4
