"""What a reader is asked for, and the documents of one part as every reader gives them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.catalog.chunks import Chunk, count_parts
from zephon_beam.recipe_datasets import DatasetRecipe

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """Which field of a record is its document, and what that field holds."""

    field: str = "text"
    """Dotted name; a field of just that name comes first. Text files have none."""
    kind: str = "text"
    """`text`; `messages` and `content`: a list of objects, given as its JSON text; `tokens`: a list
    of ids."""
    loss_mask: str | None = None
    """With `tokens`: the field that says which of them are learned."""
    id_limit: int = 2**32
    """With `tokens`: one more than the largest id that may occur."""


def wanted_content(dataset: DatasetRecipe, *, id_limit: int = 2**32) -> Content:
    """Return which field a data set's documents are in.

    Args:
        dataset: the data set.
        id_limit: size of the vocabulary, once it is known.
    """
    field = dataset.text
    if dataset.content_kind == "messages":
        field = dataset.messages or field
    elif dataset.content_kind == "content":
        field = dataset.content or field
    elif dataset.content_kind == "tokens":
        field = dataset.tokens or ""
    return Content(
        field=field, kind=dataset.content_kind, loss_mask=dataset.loss_mask, id_limit=id_limit
    )


def fields_of(content: Content) -> tuple[tuple[str, str], ...]:
    """Return (field, key of the recipe that names it) of all fields that are read."""
    fields = ((content.field, content.kind),)
    return fields if content.loss_mask is None else (*fields, (content.loss_mask, "loss_mask"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLists:
    """Documents that are tokens already, one behind the other.

    tokens: uint32[total]; offsets: int64[documents + 1], bounds of each document;
    learned: uint8[total], 1 for tokens that are learned, or None: all are.
    """

    tokens: npt.NDArray[np.uint32]
    offsets: IntArray
    learned: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """Documents as pieces: stretches of text, and special tokens that no text can forge.

    pieces: text of each piece, or the name of a special token; special: bool[pieces], which of
    them are tokens; bounds: int64[documents + 1], the pieces of each document; repeats:
    int64[pieces], how often a special token stands there, or None: once.
    """

    pieces: list[str]
    special: npt.NDArray[np.bool_]
    bounds: IntArray
    repeats: IntArray | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Quarantined:
    """A record that can never be read, set aside; its document is empty and keeps its place."""

    place: int
    """Place of its document among those of the part."""
    file: str
    """Name relative to the data set's root."""
    locator: int
    reason: str
    """One word for programs."""
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FileDocuments:
    """What a part takes from one file.

    texts: one for each document; of `messages` and `content`, JSON; of `tokens`, empty.
    locators: int64[documents].
    """

    texts: list[str]
    locators: IntArray
    tokens: TokenLists | None = None
    source_bytes: int | None = None
    """Expanded bytes that the part stands for; None: what the catalog says."""
    last: bool = True
    """False: the chunk goes on; only looked at where the catalog does not know its parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """One part; in source order as it is read. Immutable by convention.

    texts: the documents, each of which can be encoded as UTF-8; conversations as JSON; empty
        strings if `tokens` or, but for conversations, `spans` are given.
    files: uint32[documents], place of each document's file in the catalog.
    locators: int64[documents]. JSONL: byte offset of the line's first byte; Parquet: row number
        within the file; text files: 0.
    outputs: uint32[documents], number of the output of a transform that made several of one.
    """

    texts: list[str]
    files: npt.NDArray[np.uint32]
    locators: IntArray
    outputs: npt.NDArray[np.uint32]
    source_bytes: int
    """Bytes of source that this part stands for."""
    last: bool
    """Whether this is the last part of its chunk."""
    tokens: TokenLists | None = None
    spans: Spans | None = None
    """Of conversations: their images and videos, by type, with their numbers of placeholders."""
    quarantined: tuple[Quarantined, ...] = ()
    """In order of place."""

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.files)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What to read of a file: its share of one part of one chunk."""

    chunk: Chunk
    part: int
    part_rows: int
    """Rows of one part of a row group; 0 for formats whose chunks have one part."""
    content: Content = field(default_factory=Content)
    part_bytes: int = 0
    """Expanded bytes of one part of a file that is read from its start; 0 for other files."""

    def rows(self, file: str) -> tuple[int, int]:
        """Return (first row within the row group, number of rows) of a part of one.

        Args:
            file: name of the file, for messages.

        Raises:
            ValueError: the row group has no such part.
        """
        rows, first = self.chunk.stop - self.chunk.start, self.part * self.part_rows
        if not 0 <= self.part < count_parts(rows, self.part_rows):
            raise ValueError(f"chunk {self.chunk.chunk} of {file} has no part {self.part}")
        return first, min(self.part_rows, rows - first)


def take_documents(documents: Documents, order: Sequence[int] | IntArray) -> Documents:
    """Return some documents of a part in another order.

    Args:
        documents: the part.
        order: places of the documents to keep, each at most once.
    """
    places = np.asarray(order, dtype=np.int64)
    chosen = places.tolist()
    quarantined = documents.quarantined
    if quarantined:
        found = {entry.place: entry for entry in quarantined}
        quarantined = tuple(
            _moved(found[old], new) for new, old in enumerate(chosen) if old in found
        )
    texts = documents.texts
    return Documents(
        texts=[texts[place] for place in chosen],
        files=documents.files[places],
        locators=documents.locators[places],
        outputs=documents.outputs[places],
        source_bytes=documents.source_bytes,
        last=documents.last,
        tokens=_take_tokens(documents.tokens, places),
        spans=_take_spans(documents.spans, places),
        quarantined=quarantined,
    )


def _moved(entry: Quarantined, place: int) -> Quarantined:
    return Quarantined(
        place=place,
        file=entry.file,
        locator=entry.locator,
        reason=entry.reason,
        message=entry.message,
    )


def _take_tokens(lists: TokenLists | None, places: IntArray) -> TokenLists | None:
    if lists is None:
        return None
    offsets, taken = _take_ranges(lists.offsets, places)
    learned: Any = None if lists.learned is None else lists.learned[taken]
    return TokenLists(tokens=lists.tokens[taken], offsets=offsets, learned=learned)


def _take_spans(spans: Spans | None, places: IntArray) -> Spans | None:
    if spans is None:
        return None
    bounds, taken = _take_ranges(spans.bounds, places)
    pieces = [spans.pieces[piece] for piece in taken.tolist()]
    repeats: Any = None if spans.repeats is None else spans.repeats[taken]
    return Spans(pieces=pieces, special=spans.special[taken], bounds=bounds, repeats=repeats)


def _take_ranges(offsets: IntArray, places: IntArray) -> tuple[IntArray, IntArray]:
    """Return (offsets of some ranges behind one another, what is in them)."""
    starts = offsets[places]
    lengths = offsets[places + 1] - starts
    taken_offsets = np.zeros(len(places) + 1, dtype=np.int64)
    np.cumsum(lengths, out=taken_offsets[1:])
    shift = np.repeat(starts - taken_offsets[:-1], lengths)
    return taken_offsets, np.arange(int(taken_offsets[-1])) + shift
