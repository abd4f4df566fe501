"""Digests in small JSON objects: a number in which a bit is wrong is still a number."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

_KEY = "digest"
_DIGEST_BYTES = 8


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content and, as its last entry, a digest of its values.

    Determinism: depends on the values alone, not on how they are laid out as text.
    """
    return {**content, _KEY: _digest(content)}


def unseal(raw: Any) -> Any:
    """Return what was sealed, without its digest; what was written before there were any, as it is.

    Raises:
        ValueError: the digest is that of other values.
    """
    if not isinstance(raw, dict) or _KEY not in raw:
        return raw
    content = {name: value for name, value in raw.items() if name != _KEY}
    found = _digest(content)
    if raw[_KEY] != found:
        raise ValueError(f"digest: expected {raw[_KEY]}, found {found}")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
