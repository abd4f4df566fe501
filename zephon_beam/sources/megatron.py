r"""Megatron's indexed data sets: tokens in `.bin`, where they begin and end in `.idx`.

    .idx   MMIDIDX\0\0 | version 1 | type of a token | sequences | entries of the last column
           tokens of each sequence, int32 | its first byte in .bin, int64
           first sequence of each document, int64, and behind the last one the number of sequences

The `.bin` is cut by byte ranges; a document belongs to the range that holds its first byte, which
the index tells by bisection, so nothing of it is read in advance. Its sequences lie one behind the
other and are joined. A document's locator is its number.

Source: `MMapIndexedDataset` of Megatron-LM, later `IndexedDataset` of Megatron Core.
"""

import os
from bisect import bisect_left
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.errors import SourceError
from zephon_beam.sources.documents import Content, FileDocuments, Part, TokenLists
from zephon_beam.sources.faults import RecordFaults, bad_record
from zephon_beam.sources.open_source import SourceFile, open_companion, unchecked_source
from zephon_beam.sources.places import opened_file
from zephon_beam.sources.token_lists import range_fault

Array = npt.NDArray[Any]

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = Struct("<QBQQ")
_VERSION = 1
_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}
_RERUN = "then run the recipe into a new place"


def read(source: SourceFile, part: Part, faults: RecordFaults) -> FileDocuments:
    """Read the documents whose first byte is in the byte range of a chunk.

    Raises:
        BadRecordError: a document holds an id that the vocabulary does not have, and faults raise.
        SourceError: the index is missing, damaged, or not that of the file.
        DriftError: a file is not that of the catalog.
    """
    chunk = part.chunk
    with open_companion(source, index_path(source.path), index_path(source.name)) as opened:
        index = _Index(opened, source.size)
        first, last = index.documents(chunk.start, chunk.stop)
        place, lengths = index.tokens(first, last)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    data = source.read(place, int(offsets[-1]) * index.dtype.itemsize)
    ids = np.frombuffer(data, index.dtype)
    locators = np.arange(first, last, dtype=np.int64)
    lists = _checked(ids, offsets, locators, part.content, faults, source.name)
    return FileDocuments(texts=[""] * len(locators), locators=locators, tokens=lists)


def check_field(path: str, _content: Content) -> None:
    """Look at the index of a file: a `.bin` has no fields.

    Raises:
        SourceError: there is none, it is damaged, not that of the file, or of no integers.
    """
    index = index_path(path)
    try:
        with unchecked_source(index) as source, opened_file(path) as file:
            _Index(source, file.size)
    except FileNotFoundError as error:
        raise SourceError(
            f"{path}: expected the index {os.path.basename(index)!r} beside it, found none; where "
            "its documents begin cannot be known; copy it there, or leave the file out of `files`"
        ) from error


def index_path(path: str) -> str:
    """Return the path, or name, of the index that belongs to a `.bin`.

    Raises:
        SourceError: the file is named otherwise.
    """
    stem, ending = os.path.splitext(path)
    if ending != ".bin":
        raise SourceError(
            f"{path}: expected files that end in '.bin', found {ending!r}; each stands for itself "
            "and the '.idx' beside it; write e.g. files: data/*.bin"
        )
    return f"{stem}.idx"


class _Index:
    """An open index, of which only what is asked for is read."""

    def __init__(self, source: SourceFile, bin_size: int) -> None:
        self._source = source
        self._bin_size = bin_size
        head = source.read(0, min(source.size, len(_MAGIC) + _HEADER.size))
        if not head.startswith(_MAGIC) or len(head) < len(_MAGIC) + _HEADER.size:
            raise self._wrong(f"it starts with {head[: len(_MAGIC)]!r}")
        version, code, sequences, entries = _HEADER.unpack_from(head, len(_MAGIC))
        if version != _VERSION:
            raise self._wrong(f"version {version} instead of {_VERSION}")
        if code not in _TYPES:
            raise self._wrong(f"tokens of type {_FLOATS.get(code, code)}, which are no ids")
        self.dtype = np.dtype(_TYPES[code])
        self.document_count = entries - 1
        self._sequence_count = sequences
        self._sizes = len(head)
        self._pointers = self._sizes + 4 * sequences
        self._bounds = self._pointers + 8 * sequences
        end = self._bounds + 8 * entries
        # Behind it there may be a mode for each sequence, one byte, which text has no use for.
        if entries < 1 or source.size not in (end, end + sequences):
            raise self._wrong(f"{source.size} bytes instead of {end}")
        edges = (int(self.bounds(0, 1)[0]), int(self.bounds(entries - 1, entries)[0]))
        if edges != (0, sequences) or self._first_byte(0) != 0:
            raise self._wrong("documents that are not all sequences")

    def documents(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of documents whose first byte is in [start, stop).

        Documents without tokens at the end of the file belong to its last range.
        """
        every = range(self.document_count)
        first = bisect_left(every, start, key=self._first_byte)
        if stop == self._bin_size:
            return first, self.document_count
        return first, bisect_left(every, stop, key=self._first_byte)

    def tokens(self, first: int, last: int) -> tuple[int, Array]:
        """Return (first byte, int64[documents] tokens of each) of documents [first, last).

        Raises:
            SourceError: they do not lie one behind the other, up to the next document.
        """
        bounds = self.bounds(first, last + 1)
        low, high = int(bounds[0]), int(bounds[-1])
        if (np.diff(bounds) < 0).any() or not 0 <= low <= high <= self._sequence_count:
            raise self._wrong(f"documents out of order from number {first} on")
        sizes = self._column(self._sizes, low, high, "<i4").astype(np.int64)
        ends = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        place = self._pointer(low)
        expected = place + ends * self.dtype.itemsize
        found = np.append(self._column(self._pointers, low, high, "<i8"), self._pointer(high))
        if (sizes < 0).any() or not np.array_equal(found, expected):
            raise self._wrong(f"sequences that do not follow each other from number {low} on")
        if expected[-1] > self._bin_size:
            raise self._wrong(f"{expected[-1]} bytes of tokens, but the file has {self._bin_size}")
        return place, np.diff(ends[bounds - low])

    def bounds(self, first: int, last: int) -> Array:
        """Return the first sequence of documents [first, last), int64."""
        return self._column(self._bounds, first, last, "<i8")

    def _first_byte(self, document: int) -> int:
        return self._pointer(int(self.bounds(document, document + 1)[0]))

    def _pointer(self, sequence: int) -> int:
        """Return the first byte of a sequence; behind the last one, the size of the file."""
        if not 0 <= sequence < self._sequence_count:
            return self._bin_size
        return int(self._column(self._pointers, sequence, sequence + 1, "<i8")[0])

    def _column(self, place: int, first: int, last: int, dtype: str) -> Array:
        width = np.dtype(dtype).itemsize
        data = self._source.read(place + first * width, (last - first) * width)
        return np.frombuffer(data, dtype).astype(dtype[1:], copy=False)

    def _wrong(self, found: str) -> SourceError:
        return SourceError(
            f"{self._source.name}: expected the index of the '.bin' beside it, found {found}; "
            "its documents cannot be told apart; write both again, or leave them out of `files`"
        )


def _checked(
    ids: Array,
    offsets: Array,
    locators: Array,
    content: Content,
    faults: RecordFaults,
    file: str,
) -> TokenLists:
    """Return the documents; those with an id that is none come out empty."""
    limit = content.id_limit
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= limit):
        wide = ids.astype(np.int64)
        wrong = np.flatnonzero((wide < 0) | (wide >= limit))
        places, firsts = np.unique(
            np.searchsorted(offsets, wrong, side="right") - 1, return_index=True
        )
        for place, id_ in zip(places.tolist(), wide[wrong[firsts]].tolist(), strict=True):
            number = int(locators[place])
            rule, found, reason = range_fault("tokens", id_, limit)
            where, repair = f"document {number}", f"use the tokenizer that wrote it, {_RERUN}"
            faults.report(
                bad_record(
                    file, number, where, rule=rule, found=found, reason=reason, repair=repair
                ),
                place,
            )
        good = np.ones(len(locators), bool)
        good[places] = False
        lengths = np.diff(offsets)
        ids = ids[np.repeat(good, lengths)]
        offsets = np.zeros(len(offsets), np.int64)
        np.cumsum(np.where(good, lengths, 0), out=offsets[1:])
    tokens = ids.view(np.uint32) if ids.dtype.itemsize == 4 else ids.astype(np.uint32)
    return TokenLists(tokens=tokens, offsets=offsets)
