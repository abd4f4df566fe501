"""Verdicts of the gate in the user's cache folder: wrong, missing or unwritable, only time is lost.

A verdict is a small JSON file named by everything it depends on:
`<cache>/zephon-beam/tokenizers/<key>.json`, where `<cache>` is `$XDG_CACHE_HOME` or `~/.cache`.
"""

import json
import os
import tempfile
from pathlib import Path


def cache_folder() -> Path | None:
    """Return where verdicts are kept, None if the user has no such place.

    Source: the XDG Base Directory Specification; a relative `XDG_CACHE_HOME` is to be ignored.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "zephon-beam" / "tokenizers"


def read_verdict(key: str) -> tuple[str | None] | None:
    """Return (reason or None for admitted,), or None if there is no verdict that can be trusted."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        found = json.loads((folder / f"{key}.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.keys() != {"key", "reason"} or found["key"] != key:
        return None
    reason = found["reason"]
    return (reason,) if reason is None or (isinstance(reason, str) and reason) else None


def write_verdict(key: str, reason: str | None) -> None:
    """Keep a verdict, whole or not at all; a folder that cannot be written keeps none."""
    folder = cache_folder()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{key}-", dir=folder)
    except OSError:
        return
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump({"key": key, "reason": reason}, out)
        os.replace(name, folder / f"{key}.json")
    except OSError:
        Path(name).unlink(missing_ok=True)
