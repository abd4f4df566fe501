"""The documents of one part while they are transformed: their contents and where they are from."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zephon_beam.keyed import keyed_int
from zephon_beam.sources.documents import Documents, Quarantined, Spans

MESSAGES = "messages"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartContext:
    """What the transforms of a part need to know besides its documents."""

    dataset: str
    seed: int
    pass_number: int
    content: str
    """`text`: documents are texts; `messages`: lists of objects."""
    file_name: Callable[[int], str]
    """Gives the catalog's name of a file by its place."""
    quarantine: bool = False
    """Whether documents that a function fails on are set aside instead of raising."""


class PartWork:
    """Parallel lists, one entry a document; a document that was set aside is its `Quarantined`.

    Each document knows the place of its source document in the part, and its number among what
    `flat_map`s made of it: 0, 1, 2, … in order, so (file, locator, output) stays unique however
    many there are.
    """

    def __init__(self, documents: Documents, context: PartContext) -> None:
        """Begin with the documents of a part."""
        self._documents = documents
        self._context = context
        self.contents: list[Any] = list(documents.texts)
        if context.content == MESSAGES:
            self.contents = [json.loads(text) if text else None for text in documents.texts]
        for entry in documents.quarantined:
            self.contents[entry.place] = entry
        self.origins = list(range(len(documents)))
        self.outputs: list[int] = documents.outputs.tolist()
        self.is_numbered = False
        """Whether a `flat_map` has numbered its outputs."""
        self.is_changed = False
        """Whether contents may be others than those that were read."""
        self.pieces: list[list[tuple[str, bool]]] | None = None
        """Pieces of each document, once they are cut."""

    def keep(self, places: Sequence[int]) -> None:
        """Keep the documents at some places."""
        if len(places) < len(self.contents):
            self.contents = [self.contents[place] for place in places]
            self.origins = [self.origins[place] for place in places]
            self.outputs = [self.outputs[place] for place in places]

    def file_and_locator(self, place: int) -> tuple[str, int]:
        """Return where a document is from."""
        origin = self.origins[place]
        file = int(self._documents.files[origin])
        return self._context.file_name(file), int(self._documents.locators[origin])

    def keys(self) -> list[int]:
        """Return the key of each document, in [0, 2^64).

        Determinism: depends on the seed, the data set, the pass, the name of the file, the locator
        and, behind a `flat_map`, the output's number.
        """
        context = self._context
        start = (context.seed, "document", context.dataset, context.pass_number)
        found = []
        for place, output in enumerate(self.outputs):
            own = self.file_and_locator(place) + ((output,) if self.is_numbered else ())
            found.append(keyed_int(*start, *own))
        return found

    def texts(self) -> list[str | None]:
        """Return each document as text, None for those that were set aside."""
        if self._context.content != MESSAGES:
            return [None if type(c) is Quarantined else c for c in self.contents]
        return [None if type(c) is Quarantined else dump_messages(c) for c in self.contents]

    def finish(self) -> Documents:
        """Return the part with what its documents have become."""
        documents = self._documents
        if self.is_changed or self.pieces is not None:
            texts = [text or "" for text in self.texts()]
        else:
            texts = [
                "" if type(content) is Quarantined else documents.texts[origin]
                for content, origin in zip(self.contents, self.origins, strict=True)
            ]
        spans = None
        if self.pieces is not None:
            texts = [""] * len(self.contents)
            spans = _join(self.pieces)
        return replace(
            documents,
            texts=texts,
            files=documents.files[self.origins],
            locators=documents.locators[self.origins],
            outputs=np.array(self.outputs, np.uint32),
            spans=spans,
            quarantined=tuple(
                replace(content, place=place)
                for place, content in enumerate(self.contents)
                if type(content) is Quarantined
            ),
        )


def dump_messages(messages: Any) -> str:
    """Spell a conversation as JSON, in one way.

    Raises:
        ValueError, TypeError: it holds something that JSON has not.
    """
    return json.dumps(messages, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _join(pieces: Sequence[Sequence[tuple[str, bool]]]) -> Spans:
    flat = [piece for own in pieces for piece in own]
    return Spans(
        pieces=[text for text, _ in flat],
        special=np.array([is_special for _, is_special in flat], bool),
        bounds=np.cumsum([0, *map(len, pieces)], dtype=np.int64),
    )
