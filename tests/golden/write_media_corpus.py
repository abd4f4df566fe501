"""Writes the golden corpus with images and videos; what it writes is committed.

    python tests/golden/write_media_corpus.py

All is synthetic. Its files were written by the libraries of `constraints.txt`; other encoders may
write other bytes, so they are kept as they are. Documents name files, hold bytes, and show several
items; conversations show theirs in another order than they were said.
"""

import base64
import io
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image
from tokenizers import AddedToken, Tokenizer

FOLDER = Path(__file__).parent / "media"
TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = (
    "{%- for message in messages %}{{ message['role'] + ': ' }}"
    "{%- if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{%- for kind in ('video', 'image', 'text') %}"
    "{%- for part in message['content'] if part['type'] == kind %}"
    "{%- if kind == 'text' %}{{ part['text'] }}"
    "{%- else %}{{ '<|vision_start|><|' + kind + '_pad|><|vision_end|>' }}{% endif %}"
    "{%- endfor %}{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def picture(height: int, width: int, number: int) -> Any:
    """Return RGB [height, width, 3] of a gradient with a square that moves with the number."""
    rows, columns = np.mgrid[0:height, 0:width]
    shown = np.stack((rows * 4 % 256, columns * 3 % 256, (rows + columns) % 256), axis=2)
    place = 3 * number % max(1, min(height, width) - 8)
    shown[place : place + 8, place : place + 8] = (255, 40 * number % 256, 0)
    return shown.astype(np.uint8)


def part(kind: str, value: Any) -> dict[str, Any]:
    """Return a part of content: a text, or an item by its path or its bytes."""
    if kind == "text":
        return {"type": kind, "text": value}
    if isinstance(value, bytes):
        return {"type": kind, "base64": base64.b64encode(value).decode()}
    return {"type": kind, "path": value}


def tiny_image() -> bytes:
    """Return a bitmap that stands in its document: no encoder has a choice in it."""
    sink = io.BytesIO()
    Image.fromarray(picture(9, 11, 1)).save(sink, "PPM")
    return sink.getvalue()


def documents() -> dict[str, list[dict[str, Any]]]:
    """Return the records of each data set."""
    items = [("image", "files/a.png"), ("video", "files/c.mp4"), ("image", "files/b.jpg")]
    items.append(("image", tiny_image()))
    parts, talks = [], []
    for number in range(10):
        first, second = items[number % 4], items[(number // 4 + 1) % 4]
        words = f"Number {number} is shown. " * (1 + number % 3)
        parts.append({"parts": [part("text", words), part(*first), part("text", "So.")]})
        asked = [part("text", "What is "), part(*first), part("text", "that? "), part(*second)]
        messages = [
            {"role": "user", "content": asked if number % 5 else "Nothing to see."},
            {"role": "assistant", "content": f"A thing of {number}. " * (1 + number % 4)},
        ]
        if number % 3 == 0:
            messages.append({"role": "user", "content": [part(*second), part("text", "<|pad|>")]})
            messages.append({"role": "assistant", "content": "Another."})
        talks.append({"messages": messages})
    return {"parts": parts, "talks": talks}


def lines(records: list[dict[str, Any]]) -> bytes:
    """Return records as JSON Lines."""
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def tokenizer() -> str:
    """Return the golden tokenizer with the tokens that stand for items."""
    found = Tokenizer.from_file(str(FOLDER.parent / "tokenizer.json"))
    found.add_special_tokens([AddedToken(name, normalized=False) for name in TOKENS])
    return found.to_str(pretty=False)


def write() -> None:
    """Write everything."""
    for name in ("files", "model"):
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(40, 64, 2)).save(FOLDER / "files" / "a.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(50, 70, 3)).save(FOLDER / "files" / "b.jpg", quality=80, exif=exif)
    with av.open(str(FOLDER / "files" / "c.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.thread_count = 4, 1
        stream.codec_context.time_base = Fraction(1, 10)
        for number in range(9):
            frame = av.VideoFrame.from_ndarray(picture(48, 64, number), format="rgb24")
            frame.pts, frame.time_base = number + number * number // 8, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    (FOLDER / "model" / "tokenizer.json").write_text(tokenizer())
    (FOLDER / "model" / "chat_template.jinja").write_text(TEMPLATE)
    for name, records in documents().items():
        (FOLDER / f"{name}.jsonl").write_bytes(lines(records))


if __name__ == "__main__":
    write()
