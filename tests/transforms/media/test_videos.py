"""Chosen frames of videos: the same by seeking and in turn, of every container, and faults."""

import io
from collections.abc import Callable
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clips import picture, real_clips, write_clip, write_sound
from transforms.media import files, videos
from transforms.media.scaling import scale_frame
from transforms.media.videos import open_video
from zephon_beam.media.content import MediaFault


def hashes(path: Path, places: Any = None) -> list[str]:
    """Decode frames by their places, or all, and digest each."""
    with path.open("rb") as stream, open_video(stream) as video:
        chosen = range(len(video.index.times)) if places is None else places
        return [digest(frame) for frame in video.frames(chosen)]


def in_turn(path: Path) -> list[str]:
    """Decode the whole file as any player does, without seeking."""
    with av.open(str(path)) as container:
        container.streams.video[0].thread_type = "NONE"
        return [digest(frame) for frame in container.decode(video=0)]


def digest(frame: Any) -> str:
    """Digest the pixels of a frame at its own size."""
    turned = frame.rotation // 90 % 2
    height, width = (frame.width, frame.height) if turned else (frame.height, frame.width)
    return blake2b(scale_frame(frame, height, width).tobytes(), digest_size=8).hexdigest()


def reason(path: Path, act: Callable[[Any], object] = list) -> str:
    """Return why a file gives no frames."""
    with pytest.raises(MediaFault) as fault, path.open("rb") as stream, open_video(stream) as video:
        act(video.frames(range(len(video.index.times))))
    return fault.value.reason


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "b_frames": ("a.mp4", {"b_frames": 3, "frames": 23, "key_frames": 8}),
    "b_frames_at_the_end": ("a.mp4", {"b_frames": 3, "frames": 12, "key_frames": 12}),
    "matroska": ("a.mkv", {"frames": 20}),
    "transport_stream": ("a.ts", {"frames": 20}),
    "avi": ("a.avi", {"codec": "mpeg4", "b_frames": 0, "frames": 20}),
    "avi_without_times": ("a.avi", {"frames": 20}),
    "quicktime": ("a.mov", {"frames": 20}),
    "flash": ("a.flv", {"frames": 20}),
    "windows_media": ("a.wmv", {"codec": "wmv2", "b_frames": 0}),
    "ivf": ("a.ivf", {"codec": "libvpx-vp9", "frames": 8}),
    "gif": ("a.gif", {"codec": "gif", "pixel_format": "rgb8"}),
    "webm": ("a.webm", {"codec": "libvpx-vp9", "frames": 8}),
    "lossless": ("a.mkv", {"codec": "ffv1", "pixel_format": "yuv444p", "height": 33, "width": 51}),
    "ten_bits": ("a.mp4", {"pixel_format": "yuv420p10le"}),
    "odd_size": ("a.mkv", {"pixel_format": "yuv444p", "height": 35, "width": 51}),
    "odd_size_with_half_the_colours": (
        "a.webm",
        {"codec": "libvpx-vp9", "height": 33, "width": 51, "frames": 6, "key_frames": 3},
    ),
    "variable_rate": ("a.mp4", {"frames": 7, "times": [0, 7, 9, 500, 501, 2000, 9000]}),
    "late_start": ("a.mp4", {"frames": 7, "times": [700 + 100 * n for n in range(7)]}),
    "rotated": ("a.mp4", {"rotation": 90, "height": 32, "width": 80}),
    "one_frame": ("a.mp4", {"frames": 1}),
    "two_frames": ("a.mp4", {"frames": 2}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_the_same_by_seeking_and_in_turn(kind: str, tmp_path: Path) -> None:
    """All at once, every single one alone, and some; repeated decodes agree."""
    name, options = KINDS[kind]
    path = write_clip(tmp_path / name, **options)
    expected = in_turn(path)
    assert len(expected) == options.get("frames", 12)
    assert hashes(path) == expected
    assert [hashes(path, [place])[0] for place in range(len(expected))] == expected
    some = list(range(0, len(expected), 3))
    assert hashes(path, some) == [expected[place] for place in some] == hashes(path, some)


def test_real_clips_give_the_same_frames_by_seeking() -> None:
    """Of cameras and film, with one key frame and with several."""
    for path in real_clips().values():
        expected = in_turn(path)
        places = [0, 1, len(expected) // 2, len(expected) - 2, len(expected) - 1]
        assert hashes(path, places) == [expected[place] for place in places]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(data=st.data())
def test_any_choice_of_frames_is_a_choice_of_the_whole(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also one that takes a frame more than once."""
    path = tmp_path_factory.getbasetemp() / "any_choice.mp4"
    if not path.exists():
        write_clip(path, frames=30, key_frames=7, b_frames=3)
    expected = in_turn(path)
    places = sorted(data.draw(st.lists(st.integers(0, 29), min_size=1, max_size=8)))
    assert hashes(path, places) == [expected[place] for place in places]


def test_decoding_begins_at_the_key_frame_before_a_frame(tmp_path: Path) -> None:
    """And no earlier: of a long clip only the packets of one group are decoded."""
    path = write_clip(tmp_path / "a.mp4", frames=60, key_frames=6, b_frames=0)
    fed: list[int] = []

    class Counting:
        """The stream of a video that notes the packets it decodes."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def decode(self, packet: Any) -> Any:
            if packet is not None:
                fed.append(packet.pts)
            return self._stream.decode(packet)

    with path.open("rb") as stream, open_video(stream) as video:
        times = list(video.index.times)
        decoder = video._stream
        video._container = _Container(video._container, decoder)
        video._stream = Counting(decoder)
        assert [frame.pts for frame in video.frames([50])] == [times[50]]
    assert set(fed) <= set(times[48:])
    assert len(fed) < 6


class _Container:
    """A container that is given the stream itself, whatever stands for it."""

    def __init__(self, container: Any, stream: Any) -> None:
        self._container = container
        self._stream = stream

    def seek(self, *args: Any, **options: Any) -> None:
        if "stream" in options:
            options["stream"] = self._stream
        self._container.seek(*args, **options)

    def demux(self, _stream: Any) -> Any:
        return self._container.demux(self._stream)


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_a_turned_clip_is_shown_upright(turn: int, tmp_path: Path) -> None:
    """Pixels are turned against the clock, and sides change places."""
    options: dict[str, Any] = {"codec": "libx264", "height": 32, "width": 80, "frames": 1}
    plain = write_clip(tmp_path / "plain.mp4", **options)
    turned = write_clip(tmp_path / "turned.mp4", rotation=turn, **options)
    with plain.open("rb") as stream, open_video(stream) as video:
        expected = np.rot90(scale_frame(next(video.frames([0])), 32, 80), turn // 90)
    with turned.open("rb") as stream, open_video(stream) as video:
        frame = next(video.frames([0]))
        assert video.upright_size(frame) == expected.shape[:2]
        assert np.array_equal(scale_frame(frame, *expected.shape[:2]), expected)


def test_pixels_that_are_not_square_widen_the_frame(tmp_path: Path) -> None:
    """The ratio is of the stored frame, before it is turned."""
    for turn, size in ((0, (48, 128)), (90, (128, 48))):
        path = write_clip(tmp_path / f"{turn}.mp4", aspect=Fraction(2), rotation=turn)
        with path.open("rb") as stream, open_video(stream) as video:
            assert video.upright_size(next(video.frames([0]))) == size


def test_what_is_shown_is_what_was_drawn(tmp_path: Path) -> None:
    """Colours and places, as near as a lossless codec without subsampling keeps them."""
    path = write_clip(tmp_path / "a.mkv", codec="ffv1", pixel_format="yuv444p", frames=3)
    with path.open("rb") as stream, open_video(stream) as video:
        for number, frame in enumerate(video.frames([0, 1, 2])):
            difference = scale_frame(frame, 48, 64).astype(int) - picture(48, 64, number)
            assert np.abs(difference).max() <= 3


# ------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("size", [0, 1, 4, 100, 1024, 9 * 1024])
def test_junk_is_no_video(size: int, tmp_path: Path) -> None:
    """Of any length up to 9 KB, whatever its ending."""
    path = tmp_path / "a.mp4"
    path.write_bytes(bytes(number * 7919 >> 3 & 255 for number in range(size)))
    assert reason(path) == "video"


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    """Sound beside a video does not disturb it."""
    assert reason(write_sound(tmp_path / "a.mp4")) == "no_video"
    with_sound = write_clip(tmp_path / "b.mp4", audio=True)
    assert hashes(with_sound) == hashes(write_clip(tmp_path / "c.mp4"))


def test_a_video_without_frames_is_a_fault(tmp_path: Path) -> None:
    """Its header is there, nothing else; what is found first depends on the container."""
    found = {}
    for kind in ("mkv", "mp4", "avi"):
        path = tmp_path / f"a.{kind}"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("mpeg4", rate=10)
            stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
            container.start_encoding()
        found[kind] = reason(path)
    assert found == {"mkv": "video", "mp4": "no_video", "avi": "no_frames"}


def test_a_file_that_was_cut_off_gives_the_frames_before(tmp_path: Path) -> None:
    """Where its index comes first; where that is lost, it is no video."""
    path = write_clip(tmp_path / "a.mkv", frames=20, key_frames=5, b_frames=0)
    whole = path.read_bytes()
    (tmp_path / "b.mkv").write_bytes(whole[: len(whole) * 7 // 10])
    found, expected = hashes(tmp_path / "b.mkv"), hashes(path)
    assert 5 <= len(found) < 20
    assert found == expected[: len(found)]
    moved = write_clip(tmp_path / "c.mp4").read_bytes()
    (tmp_path / "c.mp4").write_bytes(moved[: len(moved) // 2])
    assert reason(tmp_path / "c.mp4") == "video"


def test_damage_in_the_middle_spoils_its_own_group_alone(tmp_path: Path) -> None:
    """Frames of groups before and behind it are as they were."""
    path = write_clip(tmp_path / "a.mp4", frames=18, key_frames=6, b_frames=0)
    expected = hashes(path)
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        spoilt = packets[6]
        assert spoilt.is_keyframe
        data[spoilt.pos : spoilt.pos + spoilt.size] = bytes(spoilt.size)
    path.write_bytes(data)
    assert hashes(path, [0, 5]) == [expected[0], expected[5]]
    assert hashes(path, [12, 17]) == [expected[12], expected[17]]
    for place in range(6, 12):
        with pytest.raises(MediaFault) as fault:
            hashes(path, [place])
        assert fault.value.reason in ("decode", "video")


def test_only_containers_that_hold_their_own_data_are_read(tmp_path: Path) -> None:
    """A playlist could name files anywhere, so what is not on the list is no video."""
    write_clip(tmp_path / "a.ts")
    (tmp_path / "b.m3u8").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:1,\na.ts\n")
    (tmp_path / "b.ffconcat").write_text("ffconcat version 1.0\nfile a.ts\n")
    write_clip(tmp_path / "b.nut", codec="mpeg4", b_frames=0)
    write_clip(tmp_path / "b.h264")
    kinds = ("m3u8", "ffconcat", "nut", "h264")
    assert [reason(tmp_path / f"b.{kind}") for kind in kinds] == ["video"] * len(kinds)


def test_limits_count_packets_and_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A video beyond them is a fault, at them it is read."""
    path = write_clip(tmp_path / "a.mp4", frames=12)
    monkeypatch.setattr(videos, "MOST_PACKETS", 12)
    assert len(hashes(path)) == 12
    monkeypatch.setattr(videos, "MOST_PACKETS", 11)
    assert reason(path) == "too_large"


def test_a_huge_frame_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the container says, and by the decoder where the container lies."""
    path = write_clip(tmp_path / "a.mp4", frames=2)
    monkeypatch.setattr(files, "MOST_PIXELS", 48 * 64)
    assert len(hashes(path)) == 2
    monkeypatch.setattr(files, "MOST_PIXELS", 48 * 64 - 1)
    assert reason(path) == "too_large"
    monkeypatch.undo()
    monkeypatch.setattr(videos, "MOST_PIXELS", 48 * 64 - 1)
    assert reason(path) == "video"


def test_an_angle_between_quarter_turns_is_a_fault(tmp_path: Path) -> None:
    """No grid of pixels shows it."""
    path = write_clip(tmp_path / "a.mp4", rotation=45)
    with path.open("rb") as stream, open_video(stream) as video:
        frame = next(video.frames([0]))
        with pytest.raises(MediaFault, match="45 degrees"):
            video.upright_size(frame)


def test_an_error_of_reading_is_no_fault_of_the_video(tmp_path: Path) -> None:
    """Trying again may help, so it is let through wherever it happens."""
    path = write_clip(tmp_path / "a.mp4", frames=30)

    class Failing(io.BytesIO):
        """A file that cannot be read any more after some reads."""

        reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.reads -= 1
            if self.reads < 0:
                raise OSError(5, "cable was pulled")
            return super().read(min(size or 0, 256))

    for reads in (0, 1, 3, 8, 20):
        stream = Failing(path.read_bytes())
        stream.reads = reads
        with pytest.raises(OSError, match="cable was pulled"), open_video(stream) as video:
            list(video.frames(range(30)))


def test_some_packets_without_times_make_the_frames_counted(tmp_path: Path) -> None:
    """Times that are missing, or said twice, tell no frame from another."""
    path = write_clip(tmp_path / "a.mp4", frames=9, key_frames=3, b_frames=0)
    expected = hashes(path)

    class Forgetful:
        """A container whose packets have lost some of their times."""

        def __init__(self, container: Any, lost: set[int]) -> None:
            self._container = container
            self._lost = lost

        def demux(self, stream: Any) -> Any:
            for number, packet in enumerate(self._container.demux(stream)):
                if packet.size and number in self._lost:
                    packet.pts = None
                yield packet

    for lost in ({4}, set(range(9))):
        with path.open("rb") as stream, open_video(stream) as video:
            video._container.seek(0)
            index = videos._index(Forgetful(video._container, lost), video._stream)
            assert (list(index.times), index.is_timed) == (list(range(9)), False)
            assert index.time_base == Fraction(1, 10)
            video.index = index
            found = [digest(frame) for frame in video.frames([0, 4, 8])]
        assert found == [expected[place] for place in (0, 4, 8)]
