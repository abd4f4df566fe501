"""Documents with images and videos, written in every format that is read."""

import base64
import bz2
import gzip
import io
import json
import tarfile
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from tests.clips import data_part, file_part, image_bytes, media_tokenizer, text_part, write_clip

Parts = list[dict[str, Any]]
FORMATS = {
    "jsonl": "jsonl",
    "jsonl.gz": "jsonl",
    "jsonl.zst": "jsonl",
    "jsonl.bz2": "jsonl",
    "parquet": "parquet",
    "arrow": "arrow",
    "arrows": "arrow",
    "avro": "avro",
    "tar": "webdataset",
}
"""Format by the ending of a file."""

CHAT = (
    "{%- for message in messages %}{{ '<|vision_start|>' if false }}{{ message['role'] + ': ' }}"
    "{%- if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{%- for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{%- else %}<|vision_start|><|{{ part['type'] }}_pad|><|vision_end|>{% endif %}{% endfor %}"
    "{%- endif %}{{ '\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def content(number: int) -> Parts:
    """Return the parts of a document; some have no item, some several, some hold bytes."""
    parts: Parts = [text_part(f"Document {number} shows ")]
    if number % 4 == 0:
        parts += [file_part("image", "media/a.png"), file_part("video", "media/c.mp4")]
    if number % 4 == 1:
        parts.insert(0, data_part("image", image_bytes(30 + number, 44, seed=number)))
    if number % 4 == 2:
        parts += [text_part("and "), file_part("image", "media/b.jpg")]
    return [*parts, text_part(" and no more.")]


def talk(number: int) -> list[dict[str, Any]]:
    """Return a conversation in which users show items; the answer's content is in parts, too."""
    messages = [
        {"role": "user", "content": content(number)},
        {"role": "assistant", "content": [text_part(f"It is {number}.")]},
    ]
    if number % 3 == 0:
        messages.append({"role": "user", "content": [file_part("image", "media/b.jpg")]})
        messages.append({"role": "assistant", "content": [text_part("That is another.")]})
    return messages


@cache
def _clip() -> bytes:
    """Encode the clip once, so that streams that are compared show the same one."""
    with tempfile.TemporaryDirectory() as folder:
        return write_clip(Path(folder) / "c.mp4", frames=9, height=60, width=90).read_bytes()


def write_media(folder: Path) -> None:
    """Write the files that documents name."""
    folder.mkdir(parents=True)
    (folder / "c.mp4").write_bytes(_clip())
    (folder / "a.png").write_bytes(image_bytes())
    (folder / "b.jpg").write_bytes(image_bytes(90, 70, kind="JPEG"))


def write_model(folder: Path) -> None:
    """Write a tokenizer's folder with a chat template that shows items."""
    folder.mkdir()
    media_tokenizer(folder / "tokenizer.json")
    (folder / "chat_template.jinja").write_text(CHAT)


def write_documents(path: Path, kind: str, documents: Sequence[Any]) -> None:
    """Write documents of `content` or `messages` in the field `doc`.

    Formats that hold bytes get bytes where JSON has base64; archives have those as members.
    """
    lines = "".join(json.dumps({"doc": document}) + "\n" for document in documents).encode()
    name = path.name
    if name.endswith(".jsonl"):
        path.write_bytes(lines)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines, mtime=0))
    elif name.endswith(".bz2"):
        path.write_bytes(bz2.compress(lines))
    elif name.endswith(".zst"):
        path.write_bytes(pa.Codec("zstd").compress(lines, asbytes=True))
    elif name.endswith(".tar"):
        _write_archive(path, documents)
    elif name.endswith(".avro"):
        _write_avro(path, kind, documents)
    else:
        _write_table(path, kind, documents)


def _with_bytes(document: Any) -> Any:
    """Replace base64 by bytes in all parts."""
    if isinstance(document, list):
        return [_with_bytes(entry) for entry in document]
    if not isinstance(document, dict):
        return document
    changed = {key: _with_bytes(value) for key, value in document.items()}
    if "base64" in changed:
        changed["bytes"] = base64.b64decode(changed.pop("base64"))
    return changed


_PART = pa.struct([(n, pa.string()) for n in ("type", "text", "path")] + [("bytes", pa.binary())])
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.list_(_PART)), ("name", pa.string())])


def _write_table(path: Path, kind: str, documents: Sequence[Any]) -> None:
    item = _PART if kind == "content" else _MESSAGE
    table = pa.table({"doc": pa.array(_with_bytes(list(documents)), pa.list_(item))})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=7)
        return
    opened = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
    with opened(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def _write_avro(path: Path, kind: str, documents: Sequence[Any]) -> None:
    def optional(kind: Any) -> Any:
        return ["null", kind]

    fields = [{"name": n, "type": optional("string")} for n in ("type", "text", "path")]
    fields.append({"name": "bytes", "type": optional("bytes")})
    part = {"type": "record", "name": "Part", "fields": fields}
    item: Any = part
    if kind == "messages":
        parts = {"name": "content", "type": {"type": "array", "items": part}}
        role = {"name": "role", "type": "string"}
        item = {"type": "record", "name": "Message", "fields": [role, parts]}
    field = {"name": "doc", "type": {"type": "array", "items": item}}
    schema = {"type": "record", "name": "Row", "fields": [field]}
    rows = [{"doc": _with_bytes(deepcopy(document))} for document in documents]
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, sync_interval=400, sync_marker=b"0123456789abcdef")


def _write_archive(path: Path, documents: Sequence[Any]) -> None:
    """Write each document as JSON, and bytes as members beside it."""
    with tarfile.open(path, "w") as archive:
        for number, document in enumerate(documents):
            members: dict[str, bytes] = {}
            shown = _as_members(_with_bytes(deepcopy(document)), members)
            members["json"] = json.dumps({"doc": shown}).encode()
            for name, body in members.items():
                member = tarfile.TarInfo(f"{number:04d}.{name}")
                member.size = len(body)
                archive.addfile(member, io.BytesIO(body))


def _as_members(value: Any, members: dict[str, bytes]) -> Any:
    if isinstance(value, list):
        return [_as_members(entry, members) for entry in value]
    if not isinstance(value, dict):
        return value
    changed = {key: _as_members(entry, members) for key, entry in value.items()}
    if "bytes" in changed:
        name = f"{len(members)}.png"
        members[name] = changed.pop("bytes")
        changed["member"] = name
    return changed


MIXED = """
name: media
seed: 5
lanes: 2
seq_len: 40
samples_per_shard: 4
chunk_bytes: 1KiB
shuffle: {interleave: 2}
tokenizer: {path: model}
datasets:
  parts: {files: "data/parts.jsonl.gz", content: doc, passes: 2, weight: 0.4}
  talks: {files: "data/talks/*.jsonl", messages: doc, passes: 2, weight: 0.4}
  words: {files: "data/words.parquet", messages: doc, passes: 2, weight: 0.2}
media:
  {preset: qwen2_vl, num_frames: 4, min_pixels: 784, max_pixels: 6272, crop_area: 0.7,
   crop_aspect: 1.2, flip: 0.5, jitter: true}
packing: {open_bins: 4}
"""
"""Content and conversations, with and without items, some longer than a row."""


def words(number: int) -> list[dict[str, Any]]:
    """Return a conversation without items, of texts and of parts."""
    return [
        {"role": "user", "content": [text_part(f"What is {number}? " * (1 + number % 5))]},
        {"role": "assistant", "content": [text_part("A number. " * (1 + number % 9))]},
    ]


def write_mixed(folder: Path, *changes: tuple[str, str]) -> Path:
    """Write a corpus and its recipe, with some texts of it replaced."""
    write_media(folder / "data" / "media")
    write_media(folder / "data" / "talks" / "media")
    write_model(folder / "model")
    write_documents(folder / "data" / "parts.jsonl.gz", "content", [*map(content, range(16))])
    for file in range(2):
        talks = [talk(number) for number in range(file, 24, 2)]
        write_documents(folder / "data" / "talks" / f"{file}.jsonl", "messages", talks)
    write_documents(folder / "data" / "words.parquet", "messages", [*map(words, range(20))])
    text = MIXED
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    (folder / "recipe.yaml").write_text(text)
    return folder / "recipe.yaml"
