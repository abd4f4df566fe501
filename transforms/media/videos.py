"""Videos: which frames they have, and chosen ones of them.

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
from typing import Any

import av

from transforms.media.files import MOST_PIXELS, check_pixels, said
from transforms.media.scaling import quarter_turns
from zephon_beam.media.content import MediaFault
from zephon_beam.media.presets import square_pixels

MOST_PACKETS = 1 << 18
"""Of one video: more than two hours at 30 frames a second."""

_CONTAINERS = "mov,matroska,avi,mpegts,mpeg,ogg,flv,asf,ivf,gif"
"""Formats that hold their own data, for a playlist could name files anywhere, and in which FFmpeg
can seek; bare streams of H.264 and the like have neither times nor places."""


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


class _Source:
    """A file as FFmpeg reads it, which remembers when reading failed.

    FFmpeg may take a failed read for the end of the file and go on, and PyAV may drop the error:
    the video would be shorter for once.
    """

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream = stream
        self._failure: OSError | None = None

    def read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except OSError as error:
            self._failure = self._failure or error
            return b""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def check(self) -> None:
        """Raise the error of a read that failed."""
        if self._failure is not None:
            raise self._failure


class Video:
    """An open video, of which chosen frames can be decoded once, in order."""

    def __init__(self, source: _Source, container: Any, stream: Any) -> None:
        self._source = source
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
        with _faults(self._source):
            for frame in decoded:
                self._source.check()
                yield frame

    def upright_size(self, frame: Any) -> tuple[int, int]:
        """Return the (height, width) at which a frame is shown, with square pixels.

        Raises:
            MediaFault: it is shown at an angle that is not a multiple of 90 degrees.
        """
        aspect = Fraction(self._stream.sample_aspect_ratio or 1)
        height, width = square_pixels(frame.height, frame.width, aspect)
        check_pixels(height, width)
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
    source = _Source(stream)
    with _faults(source):
        container = av.open(source, mode="r", options={"format_whitelist": _CONTAINERS})
    with container, _faults(source):
        videos = [s for s in container.streams.video if not s.disposition & _ATTACHED]
        if not videos:
            kinds = sorted({str(s.type) for s in container.streams}) or ["nothing"]
            raise MediaFault("no_video", f"video must have a stream of frames, got {kinds}")
        video = videos[0]
        context = video.codec_context
        if context.width and context.height:
            check_pixels(context.height, context.width)
        context.thread_type = "NONE"
        context.thread_count = 1
        context.options = {"max_pixels": str(MOST_PIXELS)}
        yield Video(source, container, video)


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
def _faults(source: _Source) -> Iterator[None]:
    """Turn what FFmpeg says of a file's content into a fault; those of reading and memory stay."""
    try:
        yield
    except av.FFmpegError as error:
        source.check()
        if error.errno == errno.ENOMEM:
            raise
        raise MediaFault("video", f"video must be decodable, got {said(error)}") from error
    except MediaFault:
        source.check()
        raise
    source.check()
