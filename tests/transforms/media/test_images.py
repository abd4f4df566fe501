"""Sizes and pixels of images: upright, opaque, of every mode, and faults."""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.clips import image_bytes, picture
from transforms.media import files, images
from transforms.media.images import image_pixels, image_size
from zephon_beam.media.content import MediaFault


def saved(image: Image.Image, kind: str, **options: Any) -> io.BytesIO:
    """Return an image as a file in memory."""
    sink = io.BytesIO()
    image.save(sink, kind, **options)
    return io.BytesIO(sink.getvalue())


def both(file: io.BytesIO) -> tuple[tuple[int, int], Any]:
    """Return the size from the header, and the pixels."""
    size = image_size(file)
    file.seek(0)
    return size, image_pixels(file)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_give_what_was_saved(kind: str) -> None:
    """Of an odd size."""
    expected = picture(33, 51, 4)
    size, pixels = both(saved(Image.fromarray(expected), kind))
    assert size == (33, 51)
    assert np.array_equal(pixels, expected)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_formats_give_about_what_was_saved(kind: str) -> None:
    """The mean is a matter of the format, not of ours."""
    size, pixels = both(io.BytesIO(image_bytes(64, 96, kind=kind)))
    assert (size, pixels.dtype) == ((64, 96), np.uint8)
    assert np.abs(pixels.astype(int) - picture(64, 96, 0)).mean() < 12


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_camera_that_was_held_sideways_gives_an_upright_image(
    orientation: int, kind: str
) -> None:
    """All eight orientations of EXIF."""
    shown = picture(24, 40, 1)
    stored = {
        1: shown,
        2: shown[:, ::-1],
        3: shown[::-1, ::-1],
        4: shown[::-1],
        5: shown.transpose(1, 0, 2),
        6: np.rot90(shown, 1),
        7: shown[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(shown, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    size, pixels = both(saved(Image.fromarray(np.ascontiguousarray(stored)), kind, exif=exif))
    assert size == (24, 40)
    assert np.array_equal(pixels, shown)


def test_transparent_parts_lie_on_white() -> None:
    """Whatever colour is stored under them."""
    colours = np.zeros((2, 3, 4), np.uint8)
    colours[0, 0] = (10, 20, 30, 255)
    colours[0, 1] = (0, 0, 0, 0)
    colours[0, 2] = (0, 0, 0, 128)
    _, pixels = both(saved(Image.fromarray(colours), "PNG"))
    assert pixels[0].tolist() == [[10, 20, 30], [255, 255, 255], [127, 127, 127]]


def test_every_mode_becomes_rgb() -> None:
    """Gray, one bit, palette, with and without a transparent entry, CMYK, and sixteen bits."""
    gray = np.array([[0, 128, 255]], np.uint8)
    wide = np.array([[0, 0x8012, 0xFFFF]], np.uint16)
    palette = Image.fromarray(gray).convert("P")
    cases = [
        (Image.fromarray(gray), "PNG", gray),
        (Image.fromarray(gray).convert("1", dither=Image.Dither.NONE), "PNG", [[0, 255, 255]]),
        (palette, "PNG", gray),
        (Image.fromarray(wide), "PNG", gray),
        (Image.fromarray(gray).convert("RGB").convert("CMYK"), "TIFF", gray),
    ]
    for image, kind, expected in cases:
        _, pixels = both(saved(image, kind))
        assert np.array_equal(pixels, np.repeat(np.array(expected)[:, :, None], 3, axis=2))
    _, pixels = both(saved(palette, "PNG", transparency=0))
    assert pixels[0, 0].tolist() == [255, 255, 255]


def test_an_animated_image_gives_its_first_frame() -> None:
    """A GIF is an image where it is called one."""
    frames = [Image.fromarray(np.full((8, 8, 3), value, np.uint8)) for value in (0, 255)]
    _, pixels = both(saved(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert not pixels.any()


@pytest.mark.parametrize(
    "data",
    [b"", b"x", bytes(9000), b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"GIF89a"],
)
def test_what_is_no_image_is_a_fault(data: bytes) -> None:
    """PostScript is none: it is a program."""
    with pytest.raises(MediaFault, match="image must be decodable") as fault:
        image_size(io.BytesIO(data))
    assert fault.value.reason == "image"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_truncated_image_has_a_size_and_no_pixels(kind: str) -> None:
    """Its header tells the size, so it is noticed only when it is decoded."""
    data = image_bytes(200, 300, kind=kind)
    cut = io.BytesIO(data[: len(data) // 2])
    if kind != "WEBP":
        assert image_size(cut) == (200, 300)
        cut.seek(0)
    with pytest.raises(MediaFault) as fault:
        image_pixels(cut)
    assert fault.value.reason == "image"


def test_huge_images_are_refused_by_their_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without decoding; those beyond what Pillow itself takes, too, and never with a warning."""
    data = image_bytes(40, 60)
    monkeypatch.setattr(files, "MOST_PIXELS", 40 * 60)
    assert image_size(io.BytesIO(data)) == (40, 60)
    monkeypatch.setattr(files, "MOST_PIXELS", 40 * 60 - 1)
    with pytest.raises(MediaFault, match="from 1 to 2399 pixels, got 60 x 40"):
        image_size(io.BytesIO(data))
    monkeypatch.undo()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 60 // 4)
    with pytest.raises(MediaFault) as fault:
        image_size(io.BytesIO(data))
    assert fault.value.reason == "too_large"


def test_a_large_file_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit it is read."""
    data = image_bytes()
    monkeypatch.setattr(images, "MOST_BYTES", len(data))
    assert image_size(io.BytesIO(data)) == (40, 60)
    monkeypatch.setattr(images, "MOST_BYTES", len(data) - 1)
    with pytest.raises(MediaFault, match="at most"):
        image_size(io.BytesIO(data))


def test_an_error_of_reading_is_no_fault_of_the_image(tmp_path: Path) -> None:
    """Trying again may help."""

    class Failing(io.BytesIO):
        """A file that cannot be read."""

        def read(self, size: int | None = -1) -> bytes:
            raise OSError(5, f"no {size} bytes")

    (tmp_path / "a").write_bytes(b"")
    with warnings.catch_warnings(), pytest.raises(OSError, match="bytes"):
        image_size(Failing())
