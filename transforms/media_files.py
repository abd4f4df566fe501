"""Images and videos as PyAV and Pillow see them: what they are, and chosen frames of them.

    packets    I0 P3 B1 B2 I6 P9 B7 B8 …     in the order of decoding; numbers are times
    wanted     frames 0 and 8                decoding starts at I0, and at I6, never before

Everything runs in one thread, and frames are told by the times of their packets, so the same bytes
give the same pixels, whether a decoder came there by seeking or from the start. Limits count
packets and pixels, never time.
"""

import errno
import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, features

from zephon_beam.media.content import MediaFault, MediaPart, resolve_path
from zephon_beam.media.presets import square_pixels
from zephon_beam.sources.places import RangeStream, open_file

Pixels = npt.NDArray[np.uint8]

MOST_PIXELS = 1 << 26
"""Of one frame."""
MOST_PACKETS = 1 << 18
"""Of one video: more than two hours at 30 frames a second."""
MOST_IMAGE_BYTES = 1 << 28

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
_IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_CONTAINERS = "mov,matroska,avi,mpegts,mpeg,mpegvideo,ogg,flv,asf,ivf,gif,h264,hevc,m4v"
"""Formats that hold their own data; a playlist could name files anywhere."""
_BICUBIC, _FULL_CHROMA_INTERPOLATION, _FULL_CHROMA_INPUT = 1 << 2, 1 << 13, 1 << 14
_ACCURATE_ROUNDING, _BIT_EXACT = 1 << 18, 1 << 19
_SCALING = (
    _BICUBIC | _FULL_CHROMA_INTERPOLATION | _FULL_CHROMA_INPUT | _ACCURATE_ROUNDING | _BIT_EXACT
)
"""Flags of swscale; with these it computes the same with and without vector instructions."""
_READ_BYTES = 1 << 18


def library_versions() -> str:
    """Name the libraries that decide pixels, with their versions."""
    found = {"av": av.__version__}
    for name in ("libavcodec", "libavformat", "libavutil", "libswscale"):
        found[name] = ".".join(map(str, av.library_versions[name]))
    found["pillow"] = version("pillow")
    for name in ("libjpeg_turbo", "webp", "zlib", "libtiff"):
        found[name] = str(features.version(name))
    return ", ".join(f"{name} {version}" for name, version in found.items())


@contextmanager
def open_media(part: MediaPart, root: str) -> Iterator[io.BufferedIOBase]:
    """Open the bytes of an item, which may lie in a bucket.

    Raises:
        MediaFault: there is no such file, or its path leads out of the root.
        OSError: it cannot be read now; trying again may help.
    """
    if part.data is not None:
        yield io.BytesIO(part.data)
        return
    if part.path is None:
        raise MediaFault("content", "item must be a file or bytes, got a range of an archive")
    path = resolve_path(root, part.path)
    try:
        file = open_file(path)
    except OSError as error:
        if error.errno in _MISSING:
            raise MediaFault("missing", f"{part.path!r} must be a file, found none") from error
        raise
    with io.BufferedReader(RangeStream(file), _READ_BYTES) as stream:
        yield stream


# ------------------------------------------------------------------------------------------ images


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
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I;16") or upright.mode == "I":
            gray = (np.asarray(upright).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
            return np.repeat(gray[:, :, None], 3, axis=2)
        if upright.has_transparency_data:
            layer = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        return np.asarray(upright.convert("RGB"))


@contextmanager
def _image(stream: io.BufferedIOBase) -> Iterator[Any]:
    data = stream.read(MOST_IMAGE_BYTES + 1)
    if len(data) > MOST_IMAGE_BYTES:
        raise MediaFault("too_large", f"image must be of at most {MOST_IMAGE_BYTES} bytes")
    with _image_faults():
        image = Image.open(io.BytesIO(data), formats=_IMAGE_FORMATS)
    with image:
        _check_pixels(image.height, image.width)
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
        raise MediaFault("image", f"image must be decodable, got {_said(error)}") from error


def _orientation(image: Any) -> int:
    with _image_faults():
        found = image.getexif().get(0x0112, 1)
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


# ------------------------------------------------------------------------------------------ videos


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameIndex:
    """The frames of a video, from its packets alone."""

    times: Sequence[int]
    """When each frame is shown, in order, in units of `time_base`; all different."""
    time_base: Fraction
    is_timed: bool
    """Whether packets say when their frame is shown; else `times` are mere numbers."""
    keys: Sequence[int]
    """Times of the frames at which decoding can start, in order."""


class Video:
    """An open video, of which chosen frames can be decoded once, in order."""

    def __init__(self, container: Any, stream: Any) -> None:
        self._container = container
        self._stream = stream
        self.index = _index(container, stream)

    def frames(self, places: Sequence[int]) -> Iterator[Any]:
        """Decode frames by their places in the index, which do not descend.

        Yields:
            One PyAV frame for each place.

        Raises:
            MediaFault: a frame cannot be decoded.
            OSError: the file cannot be read now.
        """
        decoded = self._timed(places) if self.index.is_timed else self._counted(places)
        with _video_faults():
            yield from decoded

    def upright_size(self, frame: Any) -> tuple[int, int]:
        """Return the (height, width) at which a frame is shown, with square pixels.

        Raises:
            MediaFault: it is shown at an angle that is not a multiple of 90 degrees.
        """
        aspect = Fraction(self._stream.sample_aspect_ratio or 1)
        height, width = square_pixels(frame.height, frame.width, aspect)
        _check_pixels(height, width)
        return (width, height) if quarter_turns(frame) % 2 else (height, width)

    def _timed(self, places: Sequence[int]) -> Iterator[Any]:
        """Seek to the key frame before each group of frames and decode from there."""
        index = self.index
        groups: dict[int, list[int]] = {}
        for place in places:
            key = bisect_right(index.keys, index.times[place]) - 1
            groups.setdefault(key, []).append(index.times[place])
        for key, wanted in groups.items():
            found = iter(self._from(index.keys[key] if key >= 0 else None))
            frame = None
            for time in wanted:
                while frame is None or frame.pts != time:
                    frame = next(found, None)
                    if frame is None or frame.pts is None or frame.pts > time:
                        raise MediaFault("decode", f"frame at time {time} must be there, got none")
                    if frame.is_corrupt and frame.pts == time:
                        raise MediaFault("decode", f"frame at time {time} must be whole")
                yield frame

    def _counted(self, places: Sequence[int]) -> Iterator[Any]:
        """Decode from the start and count."""
        frames = enumerate(self._from(None))
        number, frame = -1, None
        for place in places:
            while number < place:
                number, frame = next(frames, (place, None))
            if frame is None or frame.is_corrupt:
                raise MediaFault("decode", f"frame {place} must be there and whole")
            yield frame

    def _from(self, key: int | None) -> Iterator[Any]:
        """Decode all frames from a key frame on, or from the start."""
        stream = self._stream
        place = key if key is not None else stream.start_time or 0
        self._container.seek(place, stream=stream, backward=True, any_frame=False)
        packets = self._container.demux(stream)
        if key is not None:
            # Where a seek does not lead before the key frame, the start does.
            first = next((packet for packet in packets if packet.size), None)
            if first is None or first.pts is None or first.pts > key:
                self._container.seek(0, backward=True)
                packets = self._container.demux(stream)
                first = next((packet for packet in packets if packet.size), None)
            while first is not None and first.pts != key:
                first = next((packet for packet in packets if packet.size), None)
            if first is None:
                raise MediaFault("decode", f"key frame at time {key} must be there, got none")
            yield from stream.decode(first)
        for packet in packets:
            if packet.size:
                yield from stream.decode(packet)
        yield from stream.decode(None)


@contextmanager
def open_video(stream: io.BufferedIOBase) -> Iterator[Video]:
    """Open a video and index its frames.

    Raises:
        MediaFault: no video, or one beyond the limits.
        OSError: the file cannot be read now.
    """
    with _video_faults():
        container = av.open(stream, mode="r", options={"format_whitelist": _CONTAINERS})
    with container, _video_faults():
        videos = [s for s in container.streams.video if not s.disposition & _ATTACHED]
        if not videos:
            kinds = sorted({str(s.type) for s in container.streams}) or ["nothing"]
            raise MediaFault("no_video", f"video must have a stream of frames, got {kinds}")
        video = videos[0]
        context = video.codec_context
        if context.width and context.height:
            _check_pixels(context.height, context.width)
        context.thread_type = "NONE"
        context.thread_count = 1
        context.options = {"max_pixels": str(MOST_PIXELS)}
        yield Video(container, video)


_ATTACHED = av.stream.Disposition.attached_pic


def _index(container: Any, stream: Any) -> FrameIndex:
    times: list[int | None] = []
    keys: list[int | None] = []
    for packet in container.demux(stream):
        if not packet.size or packet.is_discard:
            continue
        times.append(packet.pts)
        if packet.is_keyframe:
            keys.append(packet.pts)
        if len(times) > MOST_PACKETS:
            raise MediaFault("too_large", f"video must have at most {MOST_PACKETS} packets")
    if not times:
        raise MediaFault("no_frames", "video must have frames, got none")
    known = sorted(time for time in times if time is not None)
    if len(set(known)) < len(times):
        rate = stream.average_rate or stream.guessed_rate or Fraction(25)
        return FrameIndex(
            times=range(len(times)), time_base=1 / Fraction(rate), is_timed=False, keys=()
        )
    return FrameIndex(
        times=known,
        time_base=Fraction(stream.time_base),
        is_timed=True,
        keys=sorted(key for key in keys if key is not None),
    )


@contextmanager
def _video_faults() -> Iterator[None]:
    """Turn what FFmpeg says of a file's content into a fault; the file's own errors stay."""
    try:
        yield
    except av.FFmpegError as error:
        raise MediaFault("video", f"video must be decodable, got {_said(error)}") from error


# ------------------------------------------------------------------------------------------ pixels


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


def _check_pixels(height: int, width: int) -> None:
    if height < 1 or width < 1 or height * width > MOST_PIXELS:
        raise MediaFault(
            "too_large", f"frame must have from 1 to {MOST_PIXELS} pixels, got {width} x {height}"
        )


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
