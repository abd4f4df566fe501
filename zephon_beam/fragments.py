"""Fragments: the documents of a part, cut into pieces all at once when the part is opened.

A part becomes a list of *steps*. Most documents are one step, one longer than a row is a step a
row, and one that gives no piece (empty, dropped or quarantined) is a step of no tokens:

    documents   0: 5 tokens   1: none   2: 20 tokens, cut at 8
    steps       0·5           1·0       2·8  2·8  2·4
    ends        yes           yes       no   no   yes

A channel then only counts steps: what was consumed of a part follows from the number of the step.
Documents become pieces with arrays, all at once; only the few long ones are cut one by one.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import numpy as np

from zephon_beam.errors import SourceError
from zephon_beam.pieces import (
    SOURCE_RECORD,
    Array,
    View,
    cut_document,
    encode_sources,
    shorten_piece,
)
from zephon_beam.sequences import SequencePart

_MAX_TOKENS = 2**31 - 1
"""Offsets in a document are stored in 32 bits."""


class Fragments:
    """The steps of one part under a policy for documents that are longer than a row.

    Determinism: depends on the part, the row length and the policy.
    """

    __slots__ = (
        "_lost",
        "_quarantined",
        "count",
        "documents",
        "ends",
        "holds_quarantined",
        "lengths",
        "sources",
        "starts",
        "view",
    )

    def __init__(self, part: SequencePart, *, seq_len: int, overlong: str, dtype: Any) -> None:
        """Cut a part.

        Args:
            part: with at least one document.
            seq_len: longest piece, tokens.
            overlong: `split`, `truncate` or `drop` for longer documents.
            dtype: of the stream's tokens.

        Raises:
            SourceError: the part has more tokens than offsets can count.
        """
        offsets = part.offsets
        lengths = offsets[1:] - offsets[:-1]
        self.view = View(part.tokens, part.loss_mask, dtype)
        self.lengths: list[int] = lengths.tolist()
        """Tokens of each step's piece; 0: the step gives none."""
        self.starts: list[int] = offsets.tolist()
        """First token of each step, and the end of the part's tokens."""
        self.sources = _sources_of_documents(part, lengths)
        self.documents = list(range(len(part)))
        """Document of each step."""
        self.ends = [True] * len(part)
        """Whether each step is the last one of its document."""
        self._lost: list[int] | None = None
        self._quarantined = _sums(part.quarantined)
        self.holds_quarantined = self._quarantined is not None
        overlong_documents = (lengths > seq_len).nonzero()[0].tolist()
        if overlong_documents:
            _refuse_huge(part)
            if overlong == "split":
                for document in reversed(overlong_documents):
                    self._split(document, seq_len)
            else:
                self._shorten(overlong_documents, seq_len if overlong == "truncate" else 0)
        self.count = len(self.lengths)
        """Number of steps."""

    def step_at(self, document: int, offset: int, seq_len: int) -> int:
        """Return the step at a place that `place_of` returned."""
        return bisect_left(self.documents, document) + offset // seq_len

    def place_of(self, step: int) -> tuple[int, int]:
        """Return (document in the part, tokens of it in earlier steps) of a step."""
        document = self.documents[step]
        first = bisect_left(self.documents, document)
        return document, self.starts[step] - self.starts[first]

    def documents_before(self, step: int) -> int:
        """Return how many documents end before a step."""
        return self.documents[-1] + 1 if step == self.count else self.documents[step]

    def tokens_between(self, first: int, last: int) -> tuple[int, int]:
        """Return (tokens, tokens of them that gave no piece) of the steps [first, last)."""
        lost = self._lost[last] - self._lost[first] if self._lost else 0
        return self.starts[last] - self.starts[first], lost

    def _split(self, document: int, seq_len: int) -> None:
        """Cut one document into a step a row; those before it are not cut yet."""
        length, start = self.lengths[document], self.starts[document]
        sources = cut_document((length, self.view, start, self.sources[document]), seq_len)
        count = len(sources)
        place = slice(document, document + 1)
        self.lengths[place] = [seq_len] * (count - 1) + [length - (count - 1) * seq_len]
        self.starts[place] = range(start, start + length, seq_len)
        self.sources[place] = sources
        self.documents[place] = [document] * count
        self.ends[place] = [False] * (count - 1) + [True]

    def _shorten(self, documents: Iterable[int], length: int) -> None:
        """Leave each of these documents its first tokens only, or none."""
        lost = np.zeros(len(self.lengths), np.int64)
        for document in documents:
            lost[document] = self.lengths[document] - length
            if length:
                piece = (self.lengths[document], self.view, 0, self.sources[document])
                self.sources[document] = shorten_piece(piece, length)[3]
            self.lengths[document] = length
        self._lost = _sums(lost)

    def quarantined_between(self, first: int, last: int) -> int:
        """Return how many documents [first, last) were set aside."""
        return self._quarantined[last] - self._quarantined[first] if self._quarantined else 0


def _sources_of_documents(part: SequencePart, lengths: Array) -> list[bytes]:
    """Return the encoded source of every document as one piece."""
    template = np.zeros(1, SOURCE_RECORD)
    template["next"], template["dataset"], template["pass"] = -1, part.key.dataset, part.pass_number
    records = np.frombuffer(bytearray(template.tobytes() * len(part)), SOURCE_RECORD)
    records["length"], records["file"] = lengths, part.files
    records["document"], records["output"] = part.locators, part.outputs
    return encode_sources(records)


def _sums(values: Array | None) -> list[int] | None:
    """Return the sums of all beginnings of an array; None if every value is 0."""
    if values is None or not bool(values.any()):
        return None
    sums: list[int] = np.concatenate(([0], np.cumsum(values, dtype=np.int64))).tolist()
    return sums


def _refuse_huge(part: SequencePart) -> None:
    if len(part.tokens) > _MAX_TOKENS:
        key = part.key
        raise SourceError(
            f"a part must have at most {_MAX_TOKENS} tokens, data set {key.dataset}, chunk number "
            f"{key.number}, part {key.part} has {len(part.tokens)}; places in a document are "
            "stored in 32 bits; split its longest documents in the source"
        )
