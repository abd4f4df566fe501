"""Items: what they are in a row, their pixels, and that these do not depend on the processor."""

import ctypes
import glob
import json
import os
import subprocess
import sys
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from tests.clips import (
    data_part,
    file_part,
    image_bytes,
    picture,
    real_clips,
    text_part,
    write_clip,
)
from transforms.media.decoded import DecodedItem
from transforms.media.documents import decode_document, probe_document
from transforms.media.items import decode_item, probe_item
from transforms.media.libraries import library_versions
from transforms.media.scaling import scale_pixels
from zephon_beam.media.content import MediaFault, MediaPart
from zephon_beam.recipe_media import MediaRecipe
from zephon_beam.store.base import open_store

ROOT = Path(__file__).parents[3]
QWEN = MediaRecipe(preset="qwen2_vl", num_frames=4, min_pixels=784, max_pixels=28 * 28 * 9)
LLAVA = MediaRecipe(preset="llava_1_5", num_frames=3)


def digest(found: DecodedItem) -> str:
    """Digest shape and pixels."""
    shape = repr(found.pixels.shape).encode()
    return blake2b(shape + found.pixels.tobytes(), digest_size=8).hexdigest()


@pytest.mark.parametrize("media", [QWEN, LLAVA], ids=["qwen", "llava"])
def test_decoding_gives_what_probing_announced(media: MediaRecipe, tmp_path: Path) -> None:
    """Sizes, grids and tokens of images and videos, upright or not, files or bytes."""
    write_clip(tmp_path / "a.mp4")
    write_clip(tmp_path / "b.mp4", rotation=90, height=32, width=96, frames=7)
    (tmp_path / "c.jpg").write_bytes(image_bytes(100, 70, kind="JPEG"))
    parts = [
        MediaPart(is_video=True, path="a.mp4"),
        MediaPart(is_video=True, path="b.mp4"),
        MediaPart(is_video=False, path="c.jpg"),
        MediaPart(is_video=False, data=image_bytes(50, 200)),
        MediaPart(is_video=True, data=(tmp_path / "a.mp4").read_bytes()),
    ]
    for part in parts:
        item = probe_item(part, str(tmp_path), media)
        found = decode_item(part, str(tmp_path), media)
        assert found.item == item
        assert found.failure is None
        size = item.geometry
        assert found.pixels.shape == (item.frame_count, size.height, size.width, 3)
        assert found.pixels.any()
        assert digest(found) == digest(decode_item(part, str(tmp_path), media))
    assert digest(decode_item(parts[0], str(tmp_path), media)) == digest(
        decode_item(parts[4], str(tmp_path), media)
    )


# The client of Google leaves the connections of answers that it does not read to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_items_in_a_bucket_are_those_of_a_folder(gcs: str, tmp_path: Path) -> None:
    """Files, and members of an archive; a missing one is a fault."""
    clip = write_clip(tmp_path / "a.mp4", frames=30).read_bytes()
    (tmp_path / "b.tar").write_bytes(b"x" * 77 + clip + b"y" * 99)
    store = open_store(gcs)
    for name in ("a.mp4", "b.tar"):
        store.replace(f"data/{name}", (tmp_path / name).read_bytes())
    for part in (
        MediaPart(is_video=True, path="a.mp4"),
        MediaPart(is_video=True, path="b.tar", range=(77, len(clip))),
    ):
        expected = decode_item(part, str(tmp_path), QWEN)
        assert expected.failure is None
        assert digest(decode_item(part, f"{gcs}/data", QWEN)) == digest(expected)
        assert probe_item(part, f"{gcs}/data", QWEN) == expected.item
    with pytest.raises(MediaFault) as fault:
        probe_item(MediaPart(is_video=True, path="none.mp4"), f"{gcs}/data", QWEN)
    assert fault.value.reason == "missing"


def test_llava_keeps_the_middle(tmp_path: Path) -> None:
    """Of an image twice as wide as high the outer quarters are cut away."""
    shown = np.zeros((336, 672, 3), np.uint8)
    shown[:, :168] = (255, 0, 0)
    shown[:, 504:] = (0, 0, 255)
    Image.fromarray(shown).save(tmp_path / "a.png")
    found = decode_item(MediaPart(is_video=False, path="a.png"), str(tmp_path), LLAVA)
    assert np.array_equal(found.pixels[0], shown[:, 168:504])


def test_scaling_keeps_colours_and_edges() -> None:
    """A flat image stays flat in all colours, and a gradient stays one."""
    for colour in ((0, 0, 0), (255, 255, 255), (200, 30, 90)):
        flat = np.full((61, 47, 3), colour, np.uint8)
        assert np.array_equal(scale_pixels(flat, 28, 84), np.full((28, 84, 3), colour, np.uint8))
    smaller = scale_pixels(picture(112, 112, 0), 56, 56)
    assert np.abs(smaller[:, :, 0].astype(int) - picture(56, 56, 0)[:, :, 0]).max() <= 3


_PROGRAM = """
import ctypes, sys
import av
sys.path.insert(0, sys.argv[4])
if sys.argv[1] == "plain":
    ctypes.CDLL(sys.argv[2]).av_force_cpu_flags(0)
from tests.transforms.media.test_items import digests_of
print(digests_of(sys.argv[3]))
"""


def digests_of(folder: str) -> str:
    """Decode every file of a folder for both presets."""
    found = {}
    for path in sorted(Path(folder).iterdir()):
        part = MediaPart(is_video=path.suffix not in (".png", ".jpg"), path=path.name)
        for media in (QWEN, LLAVA):
            found[f"{path.name} {media.preset}"] = digest(decode_item(part, folder, media))
    return json.dumps(found)


def test_pixels_do_not_depend_on_vector_instructions(tmp_path: Path) -> None:
    """A processor without any gives the same, of all kinds of frames, and damaged ones."""
    pattern = os.path.join(os.path.dirname(av.__file__), "..", "av.libs", "libavutil*")
    library = next(iter(glob.glob(pattern)), None)
    if library is None:
        pytest.skip("PyAV was not installed with libraries of its own")
    ctypes.CDLL(library)
    folder = tmp_path / "all"
    folder.mkdir()
    write_clip(folder / "a.mp4", height=98, width=142)
    write_clip(folder / "b.mp4", height=56, width=112, pixel_format="yuv420p10le")
    write_clip(folder / "c.mkv", codec="ffv1", pixel_format="yuv444p", height=33, width=51)
    write_clip(folder / "d.mkv", pixel_format="yuv422p", height=84, width=84)
    (folder / "e.png").write_bytes(image_bytes(61, 147))
    (folder / "f.jpg").write_bytes(image_bytes(61, 147, kind="JPEG"))
    damaged = bytearray((folder / "a.mp4").read_bytes())
    damaged[len(damaged) * 3 // 4] ^= 0xFF
    (folder / "g.mp4").write_bytes(damaged)
    found = [
        subprocess.run(
            [sys.executable, "-c", _PROGRAM, kind, library, str(folder), str(ROOT)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for kind in ("plain", "vector")
    ]
    assert found[0] == found[1]
    assert json.loads(found[0]) == json.loads(digests_of(str(folder)))


def test_pixels_of_real_clips_are_pinned() -> None:
    """With the libraries of `constraints.txt`; others enter the fingerprint."""
    clips = real_clips()
    if not library_versions().startswith("av 17.1.0, libavcodec 62.28.101"):
        pytest.skip("other libraries than those of constraints.txt")
    found = {}
    for name, path in sorted(clips.items()):
        part = MediaPart(is_video=True, path=path.name)
        found[name] = digest(decode_item(part, str(path.parent), QWEN))
    assert found == PINNED


PINNED = {
    "bigbuckbunny": "cb8e22928f02df51",
    "bikes": "6ca29f9da6d5dbb8",
    "carphone_distorted": "1cd18bc0abf2dc11",
    "carphone_pristine": "e3c3185178afc54c",
}


def test_a_clip_that_fails_behind_its_start_gives_black_frames(tmp_path: Path) -> None:
    """It keeps the shape that probing announced."""
    path = write_clip(tmp_path / "a.mp4", frames=18, key_frames=6, b_frames=0)
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        last = [p for p in container.demux(video=0) if p.size and p.is_keyframe][-1]
        data[last.pos : last.pos + last.size] = bytes(last.size)
    path.write_bytes(data)
    part = MediaPart(is_video=True, path="a.mp4")
    item = probe_item(part, str(tmp_path), QWEN)
    found = decode_item(part, str(tmp_path), QWEN)
    assert found.item == item
    assert found.failure is not None
    assert not found.pixels.any()


def test_a_clip_whose_first_frame_is_damaged_does_not_pass_probing(tmp_path: Path) -> None:
    """Nothing could be said of its size."""
    path = write_clip(tmp_path / "a.mp4", b_frames=0)
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        first = next(packet for packet in container.demux(video=0) if packet.size)
        data[first.pos : first.pos + first.size] = bytes(first.size)
    path.write_bytes(data)
    with pytest.raises(MediaFault):
        probe_item(MediaPart(is_video=True, path="a.mp4"), str(tmp_path), QWEN)


def test_a_document_is_texts_and_runs_of_placeholders(tmp_path: Path) -> None:
    """Each item between the tokens of its preset; texts as they are."""
    write_clip(tmp_path / "a.mp4", height=56, width=56)
    (tmp_path / "b.png").write_bytes(image_bytes(28, 56))
    parts = [text_part("x"), file_part("image", "b.png"), file_part("video", "a.mp4")]
    document = json.dumps(parts)
    assert probe_document(document, str(tmp_path), QWEN).pieces == [
        ("x", False, 0),
        ("<|vision_start|>", True, 1),
        ("<|image_pad|>", True, 2),
        ("<|vision_end|>", True, 1),
        ("<|vision_start|>", True, 1),
        ("<|video_pad|>", True, 8),
        ("<|vision_end|>", True, 1),
    ]
    assert probe_document(document, str(tmp_path), LLAVA).pieces == [
        ("x", False, 0),
        ("<image>", True, 576),
        ("<image>", True, 3 * 576),
    ]
    decoded = decode_document(document, str(tmp_path), QWEN)
    assert [item.item.tokens for item in decoded] == [2, 8]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("none.png", "missing"), ("folder", "missing"), ("pipe", "missing"), ("b.png/c", "missing")],
)
def test_what_is_no_file_is_a_fault_and_never_a_hang(
    name: str, reason: str, tmp_path: Path
) -> None:
    """A pipe would be waited for."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "b.png").write_bytes(image_bytes())
    os.mkfifo(tmp_path / "pipe")
    document = json.dumps([text_part("x"), file_part("image", name)])
    with pytest.raises(MediaFault, match=rf"part 1 \({name}\): ") as fault:
        probe_document(document, str(tmp_path), QWEN)
    assert fault.value.reason == reason


def test_a_picture_too_narrow_for_a_grid_is_a_fault(tmp_path: Path) -> None:
    """More than 200 times as long as wide."""
    document = json.dumps([data_part("image", image_bytes(1, 201))])
    with pytest.raises(MediaFault, match="201 x 1 pixels") as fault:
        probe_document(document, str(tmp_path), QWEN)
    assert fault.value.reason == "shape"


def test_chance_comes_from_the_key_and_changes_no_size(tmp_path: Path) -> None:
    """Mirrored items are mirrored whole; about as many as asked for, and others with other keys."""
    write_clip(tmp_path / "a.mp4", frames=40)
    part = MediaPart(is_video=True, path="a.mp4")
    plain = decode_item(part, str(tmp_path), QWEN, (1,))
    mirrored = decode_item(part, str(tmp_path), replace(QWEN, flip=1), (1,))
    assert np.array_equal(mirrored.pixels, plain.pixels[:, :, ::-1])
    half = replace(QWEN, flip="0.5")
    picture_part = MediaPart(is_video=False, data=image_bytes(28, 56))
    seen = [digest(decode_item(picture_part, "", half, (3, number))) for number in range(60)]
    assert len(set(seen)) == 2
    assert 15 <= seen.count(seen[0]) <= 45
    again = [digest(decode_item(picture_part, "", half, (3, number))) for number in range(60)]
    assert seen == again


def test_moved_frames_are_frames_of_the_clip(tmp_path: Path) -> None:
    """The first stays, and keys move the others differently."""
    write_clip(tmp_path / "a.mp4", frames=40)
    part = MediaPart(is_video=True, path="a.mp4")
    every = decode_item(part, str(tmp_path), replace(QWEN, num_frames=40)).pixels
    frames = {frame.tobytes() for frame in every}
    moved = replace(QWEN, jitter=True)
    found = [decode_item(part, str(tmp_path), moved, (number,)) for number in range(6)]
    for item in found:
        assert item.item == probe_item(part, str(tmp_path), moved)
        assert np.array_equal(item.pixels[0], every[0])
        assert {frame.tobytes() for frame in item.pixels} <= frames
    assert len({digest(item) for item in found}) > 3


def test_a_crop_is_a_stretch_of_the_scaled_picture(tmp_path: Path) -> None:
    """Probing and decoding draw the same one, of upright frames, and mirror it afterwards."""
    write_clip(tmp_path / "a.mp4", frames=6, height=96, width=160, rotation=90)
    (tmp_path / "b.png").write_bytes(image_bytes(150, 220))
    media = replace(QWEN, crop_area="0.3", crop_aspect="1.5")
    sizes = set()
    for name, is_video in (("a.mp4", True), ("b.png", False)):
        part = MediaPart(is_video=is_video, path=name)
        for number in range(8):
            key = (5, number)
            found = decode_item(part, str(tmp_path), media, key)
            assert found.item == probe_item(part, str(tmp_path), media, key)
            size = found.item.geometry
            sizes.add((size.height, size.width, size.top, size.left))
            fixed = replace(media, crop_area=1, crop_aspect=1)
            whole = decode_item(part, str(tmp_path), fixed, key)
            assert whole.item.geometry.top == 0
            if not is_video:
                picture_found = scale_pixels(
                    picture(150, 220, 0), size.scaled_height, size.scaled_width
                )
                rows = slice(size.top, size.top + size.height)
                columns = slice(size.left, size.left + size.width)
                assert np.array_equal(found.pixels[0], picture_found[rows, columns])
            mirrored = decode_item(part, str(tmp_path), replace(media, flip=1), key)
            assert np.array_equal(mirrored.pixels, found.pixels[:, :, ::-1])
    assert len(sizes) == 16


def test_all_frames_of_a_clip_are_cropped_alike(tmp_path: Path) -> None:
    """Of a clip that stands still every frame is the same."""
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.height, stream.width, stream.pix_fmt = 80, 120, "yuv444p"
        for _ in range(6):
            frame = av.VideoFrame.from_ndarray(picture(80, 120, 1), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    media = replace(QWEN, crop_area="0.2")
    found = decode_item(MediaPart(is_video=True, path="a.mkv"), str(tmp_path), media, (1,)).pixels
    assert len({frame.tobytes() for frame in found}) == 1


@pytest.mark.parametrize(("frames", "expected"), [(1, 1), (2, 2), (5, 4), (7, 6)])
def test_more_frames_than_there_are_stop_at_the_last_one(
    frames: int, expected: int, tmp_path: Path
) -> None:
    """None is taken past the end, by number or by rate; probing and decoding agree."""
    write_clip(tmp_path / "a.mp4", frames=frames, b_frames=2)
    part = MediaPart(is_video=True, path="a.mp4")
    for media in (
        replace(QWEN, num_frames=64),
        replace(QWEN, num_frames=None, fps=1000),
    ):
        found = decode_item(part, str(tmp_path), media)
        assert found.item == probe_item(part, str(tmp_path), media)
        assert found.failure is None
        assert len(found.pixels) == found.item.frame_count == expected
        assert len({frame.tobytes() for frame in found.pixels}) == expected
    every = decode_item(part, str(tmp_path), replace(LLAVA, num_frames=64)).pixels
    assert len(every) == frames


def test_a_clip_that_changes_its_size_keeps_that_of_its_first_frame(tmp_path: Path) -> None:
    """All frames of an item are of one size, whatever the stream does."""
    small = write_clip(tmp_path / "small.ts", frames=4, b_frames=0)
    times = [100 * number for number in range(4, 8)]
    large = write_clip(tmp_path / "b.ts", frames=4, height=96, times=times, b_frames=0)
    (tmp_path / "a.ts").write_bytes(small.read_bytes() + large.read_bytes())
    part = MediaPart(is_video=True, path="a.ts")
    item = probe_item(part, str(tmp_path), QWEN)
    found = decode_item(part, str(tmp_path), QWEN)
    assert found.item == item
    assert (item.frame_count, item.geometry.height, item.geometry.width) == (4, 56, 56)
    assert found.failure is None
    assert found.pixels.any(axis=(1, 2, 3)).all()
