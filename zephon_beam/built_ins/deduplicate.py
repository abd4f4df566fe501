"""`deduplicate`: documents that a part holds twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

from zephon_beam.built_ins.base import PART_FILTER


@dataclass(frozen=True, kw_only=True, slots=True)
class Deduplicate:
    """Keep the first of equal documents of a part, in the order in which the lane takes them.

    Only a part is looked at, some hundred KiB of one file: copies in other parts stay. With
    `shuffle.documents` another one of the equal documents may be the first in another pass.

    Determinism: depends on the part's documents and their order, which are fixed by the recipe
    and the sources. Texts are equal if their 32-byte BLAKE2b digests are.
    """

    kind: ClassVar[str] = PART_FILTER
    contents: ClassVar[tuple[str, ...]] = ("text", "messages")

    @property
    def code_version(self) -> str:
        """Only ours."""
        return "1"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Puts none."""
        return ()

    def __call__(self, documents: Sequence[str | None]) -> list[bool]:
        """Say which documents are kept; None, a document that was set aside, always is."""
        seen: set[bytes] = set()
        kept = []
        for document in documents:
            if document is None:
                kept.append(True)
                continue
            digest = blake2b(document.encode(), digest_size=32).digest()
            kept.append(digest not in seen)
            seen.add(digest)
        return kept
