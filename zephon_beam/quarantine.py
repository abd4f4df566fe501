"""Quarantine files: which documents were set aside, where they are and why.

One file for each part and stage of the work that found faults, as JSON lines. They are written by
whoever computes the part, so twins and retries write the same file again.
"""

import json
from collections.abc import Iterable, Iterator

from zephon_beam.layout import quarantine_name
from zephon_beam.sources.documents import Quarantined
from zephon_beam.store.base import Store

READ = "read"
"""Stage that reads sources."""
PROBE = "probe"
"""Stage that looks at images and videos."""
TRANSFORM = "transform"
"""Stage that applies the recipe's transforms."""
TOKENIZE = "tokenize"
"""Stage that encodes."""


def write_quarantine(
    store: Store,
    found: Iterable[Quarantined],
    *,
    dataset: str,
    pass_: int,
    chunk: int,
    part: int,
    stage: str,
) -> None:
    """Write what one stage set aside of one part; nothing if that is nothing.

    Raises:
        DeterminismError: the file exists and names other documents or reasons.

    Determinism: the name and the documents depend on the stream alone. The wording of a message
    may be that of somebody else's code, with an address in it, so it is not compared.
    """
    entries = list(found)
    if entries:
        name = quarantine_name(dataset, pass_, chunk, part, stage)
        store.put_if_absent(name, encode_quarantine(entries), same_quarantine)


def encode_quarantine(entries: Iterable[Quarantined]) -> bytes:
    """Encode entries in their order, one JSON object a line: file, locator, reason, message."""
    lines = [
        json.dumps(
            {
                "file": entry.file,
                "locator": entry.locator,
                "reason": entry.reason,
                "message": entry.message,
            }
        )
        for entry in entries
    ]
    return "".join(line + "\n" for line in lines).encode()


def same_quarantine(stored: bytes, computed: bytes) -> bool:
    """Say whether two files name the same documents for the same reasons."""
    try:
        return list(_facts(stored)) == list(_facts(computed))
    except (ValueError, KeyError, TypeError):
        return False


def _facts(data: bytes) -> Iterator[tuple[str, int, str]]:
    for line in data.splitlines():
        entry = json.loads(line)
        yield entry["file"], entry["locator"], entry["reason"]
