"""Images: their size from the header, and their pixels, upright and opaque."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image

from transforms.media.decoded import Pixels
from transforms.media.files import check_pixels, said
from zephon_beam.media.content import MediaFault

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes an image upright, by the value of EXIF."""

MOST_BYTES = 1 << 28
"""Of one file."""

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that hold their own data; others could start programs or read other files."""


def image_size(stream: io.BufferedIOBase) -> tuple[int, int]:
    """Return the upright (height, width) of an image from its header.

    Raises:
        MediaFault: no image, or one that is too large.
    """
    with _image(stream) as image:
        width, height = image.size
        return (width, height) if _orientation(image) >= 5 else (height, width)


def image_pixels(stream: io.BufferedIOBase) -> Pixels:
    """Decode an image, upright, to RGB [height, width, 3]; transparent parts lie on white.

    Raises:
        MediaFault: it cannot be decoded.
    """
    with _image(stream) as image, _image_faults():
        turn = _TURNS.get(_orientation(image))
        upright = image if turn is None else image.transpose(turn)
        if upright.mode.startswith("I;16") or upright.mode == "I":
            gray = (np.asarray(upright).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
            return np.repeat(gray[:, :, None], 3, axis=2)
        if upright.has_transparency_data:
            layer = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        return np.asarray(upright.convert("RGB"))


@contextmanager
def _image(stream: io.BufferedIOBase) -> Iterator[Any]:
    data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise MediaFault("too_large", f"image must be of at most {MOST_BYTES} bytes")
    with _image_faults():
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    with image:
        check_pixels(image.height, image.width)
        yield image


@contextmanager
def _image_faults() -> Iterator[None]:
    """Turn what Pillow raises for an image in memory into a fault of that image."""
    try:
        yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise MediaFault("too_large", f"image must be of fewer pixels ({error})") from error
    except MemoryError:
        raise
    except Exception as error:
        raise MediaFault("image", f"image must be decodable, got {said(error)}") from error


def _orientation(image: Any) -> int:
    """Return how EXIF says the image is stored, 1 to 8, from what stands before its pixels.

    Pillow turns TIFF upright itself, and would decode a PNG to look for EXIF behind its pixels.
    """
    if image.format == "TIFF":
        return 1
    with _image_faults():
        exif = Image.Exif()
        if image.format == "PNG":
            exif.load(image.info.get("exif", b""))
        else:
            exif = image.getexif()
        found = exif.get(_ORIENTATION, 1)
    return found if isinstance(found, int) and 1 <= found <= 8 else 1
