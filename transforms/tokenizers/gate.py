"""The gate: fastokens may encode a file only when it is admitted and gives equal ids.

First the file is held against the list of what fastokens implements, then both libraries encode
the same fixed texts. That takes one to three seconds of a processor, so the verdict is kept in the
user's cache folder, by what it depends on.
"""

import json
import platform
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from transforms.tokenizers.allow_list import refusal
from transforms.tokenizers.fast_tokens import FastTokenizer
from transforms.tokenizers.hugging_face import HuggingFaceTokenizer
from transforms.tokenizers.probes import (
    PROBE_VERSION,
    added_contents,
    plain_probes,
    special_probes,
)
from transforms.tokenizers.verdicts import read_verdict, write_verdict
from zephon_beam.errors import ZephonBeamError

INSTALL = "pip install fastokens"
_BATCH = 400

_known: dict[str, str | None] = {}
"""Verdicts of this process, which stand in for a cache folder that cannot be written."""


def fastokens_refusal(content: bytes, *, name: str) -> str | None:
    """Say why fastokens may not encode a file, None if it may.

    Args:
        content: a `tokenizer.json`.
        name: of the file, for messages.

    Raises:
        RecipeError: it is none.

    Determinism: depends on the file, the two libraries, the probes and the processor alone; kept
        verdicts are only ever found under all of them.
    """
    if not is_installed():
        return f"fastokens is not installed; {INSTALL}"
    key = _verdict_key(content)
    if key not in _known:
        _known[key] = _layout_refusal(content, name) or _encoding_refusal(content, key, name)
    return _known[key]


def is_admitted(content: bytes) -> bool:
    """Say whether this process knows already that fastokens may encode a file."""
    return _known.get(_verdict_key(content), "") is None


def _layout_refusal(content: bytes, name: str) -> str | None:
    try:
        return refusal(json.loads(content))
    except (ValueError, TypeError, AttributeError, KeyError):
        # No tokenizer at all, which `tokenizers` says better, or one that only it understands.
        HuggingFaceTokenizer(content, allow_special=False, name=name)
        return "its layout is not a known one"


def _encoding_refusal(content: bytes, key: str, name: str) -> str | None:
    found = read_verdict(key)
    if found is not None:
        return found[0]
    reason = compare(content, name=name)
    write_verdict(key, reason)
    return reason


def is_installed() -> bool:
    """Say whether the fastokens package can be imported."""
    try:
        import fastokens  # noqa: F401
    except ImportError:
        return False
    return True


def compare(content: bytes, *, name: str) -> str | None:
    """Encode the probes with both libraries; say where they differ, None if nowhere."""
    description = json.loads(content)
    added = added_contents(description)
    plain = list(plain_probes(description["model"]["vocab"]))
    special = list(special_probes(added))
    reference = HuggingFaceTokenizer(content, allow_special=False, name=name)
    for token in description.get("added_tokens") or []:
        if reference.token_id(token["content"]) != token["id"]:
            return f"its added token {token['content']!r} has an id that its vocabulary contradicts"
    allowing = HuggingFaceTokenizer(content, allow_special=True, name=name)
    try:
        fast = FastTokenizer(content, allow_special=False, name=name)
        return _difference(reference, fast, [*plain, *special]) or _difference(
            allowing, fast.allowing_special(True), special
        )
    except ZephonBeamError as error:
        return str(error)


def _difference(
    reference: HuggingFaceTokenizer, fast: FastTokenizer, texts: Sequence[str]
) -> str | None:
    """Encode some texts at a time, so that a difference ends the comparison early."""
    for first in range(0, len(texts), _BATCH):
        batch = texts[first : first + _BATCH]
        expected, found = reference.encode(batch), fast.encode(batch)
        if not all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True)):
            differing = (
                text
                for place, text in enumerate(batch)
                if _slice(expected, place) != _slice(found, place)
            )
            text = next(differing, "")
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            return f"fastokens gives other tokens for {shown!r}"
    return None


def _slice(encoded: tuple[Any, Any], place: int) -> list[int]:
    ids, offsets = encoded
    found: list[int] = ids[offsets[place] : offsets[place + 1]].tolist()
    return found


@lru_cache(maxsize=4)
def _content_digest(content: bytes) -> bytes:
    """Hash a file once in a process: it has megabytes."""
    return blake2b(content).digest()


def _verdict_key(content: bytes) -> str:
    """Name everything that a verdict depends on."""
    digest = blake2b(digest_size=16)
    digest.update(_content_digest(content))
    parts = ["fastokens", "tokenizers"]
    facts = [_version(part) for part in parts] + [_library(), _processor(), str(PROBE_VERSION)]
    digest.update(json.dumps(facts).encode())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _library() -> str:
    """Name the compiled library itself: other packages install a module of the same name."""
    spec = find_spec("fastokens._native")
    origin = Path(spec.origin) if spec is not None and spec.origin else None
    return str(origin.stat().st_size) if origin is not None and origin.exists() else "unknown"


def _processor() -> str:
    """Name what the processor can do: such libraries choose their code by it."""
    flags = ""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        pass
    return f"{platform.machine()} {platform.processor()} {flags}"
