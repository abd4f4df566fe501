"""An open part: its documents as entries of a queue, made all at once when the part is opened.

A document of at most a row's length is one piece, and its entry is that piece. An entry without
a length is *marked*: the document gives no piece (empty, dropped, quarantined) or several:

    documents   0: 5 tokens   1: none     2: 20 tokens, rows of 8
    entries     5 tokens      marked      marked
    pieces      5             -           8 8 4

A channel counts documents, and what was consumed follows from that; marked ones are few.
"""

from typing import Any

import numpy as np

from zephon_beam.document_table import Rows
from zephon_beam.errors import SourceError
from zephon_beam.pieces import Array, encode_pieces
from zephon_beam.sequences import SequencePart
from zephon_beam.views import Views

_MAX_TOKENS = 2**31 - 1
"""Offsets in a document are stored in 32 bits."""


class OpenPart:
    """The documents of one part under a policy for those that are longer than a row.

    Determinism: depends on the part, the row length and the policy.
    """

    __slots__ = (
        "_kept",
        "_lost",
        "_quarantined",
        "bounds",
        "count",
        "entries",
        "holds_quarantined",
        "view",
    )

    def __init__(
        self,
        part: SequencePart,
        views: Views,
        *,
        seq_len: int,
        overlong: str,
        whole_ids: tuple[int, ...] = (),
    ) -> None:
        """Open a part.

        Args:
            part: with at least one document.
            views: of the lane, which keep the tokens.
            seq_len: longest piece, tokens.
            overlong: `split`, `truncate` or `drop` for longer documents.
            whole_ids: of tokens among which no cut falls: what is truncated ends before a run of
                them that would be cut, and what would be split is dropped if it has any.

        Raises:
            SourceError: the part has more tokens than offsets can count.
        """
        offsets = part.offsets
        starts, stops = offsets[:-1], offsets[1:]
        lengths = stops - starts
        is_overlong = lengths > seq_len
        kept = kept_lengths(
            part.tokens, starts, lengths, seq_len=seq_len, overlong=overlong, whole_ids=whole_ids
        )
        pieces = np.where(kept > seq_len, 0, kept)
        self._kept: Array | None = None
        self._lost: list[int] | None = None
        if len(part.tokens) > _MAX_TOKENS and bool(is_overlong.any()):
            _refuse_huge(part)
        if bool((kept < lengths).any()):
            self._kept = kept
            self._lost = _sums(lengths - kept)
            stops = starts + kept
        rows = Rows(
            starts=starts,
            stops=stops,
            files=part.files,
            documents=part.locators,
            outputs=part.outputs,
            dataset=part.key.dataset,
            pass_number=part.pass_number,
        )
        self.view = views.add(part.tokens, part.loss_mask, rows)
        addresses = offsets + self.view.base
        self.count = len(part)
        """Number of documents."""
        self.bounds: list[int] = addresses.tolist()
        """Address of each document, and of the end of the part's tokens."""
        self.entries = encode_pieces(addresses[:-1], pieces)
        """Each document as a piece, of no tokens if it is marked."""
        self._quarantined = _sums(part.quarantined)
        self.holds_quarantined = self._quarantined is not None

    def stop_of(self, document: int) -> int:
        """Return the address of the end of what a document delivers."""
        if self._kept is None:
            return self.bounds[document + 1]
        return self.bounds[document] + int(self._kept[document])

    def tokens_between(self, first: tuple[int, int], last: tuple[int, int]) -> tuple[int, int]:
        """Return (tokens, tokens of them that gave no piece) between two places.

        Args:
            first: document, and tokens of it that lie before the place.
            last: the same, not before `first`.
        """
        lost = self._lost[last[0]] - self._lost[first[0]] if self._lost else 0
        document, before = first
        if before and last[0] > document:
            # After a fork it may lie behind what the document delivers now, or behind its end.
            start = self.bounds[document]
            before = min(before, self.bounds[document + 1] - start)
            lost -= max(0, before - (self.stop_of(document) - start))
        return self.bounds[last[0]] + last[1] - self.bounds[document] - before, lost

    def quarantined_between(self, first: int, last: int) -> int:
        """Return how many documents [first, last) were set aside."""
        return self._quarantined[last] - self._quarantined[first] if self._quarantined else 0


def kept_lengths(
    tokens: Array,
    starts: Array,
    lengths: Array,
    *,
    seq_len: int,
    overlong: str,
    whole_ids: tuple[int, ...] = (),
) -> Array:
    """Return how many tokens are kept of documents, int64[documents].

    Args:
        tokens: of all documents.
        starts: int64[documents], where each begins.
        lengths: int64[documents].
        seq_len: longest piece, tokens.
        overlong: what happens to longer documents.
        whole_ids: see `OpenPart`.
    """
    is_overlong = lengths > seq_len
    kept = lengths.astype(np.int64)
    if overlong != "split":
        kept[is_overlong] = seq_len if overlong == "truncate" else 0
    if whole_ids:
        for document in np.flatnonzero(is_overlong).tolist():
            start = int(starts[document])
            own = tokens[start : start + int(lengths[document])]
            kept[document] = _whole_length(own, int(kept[document]), whole_ids, overlong)
    return kept


def _whole_length(tokens: Array, length: int, whole_ids: tuple[int, ...], overlong: str) -> int:
    """Return how many tokens of a document longer than a row can be kept without a forbidden cut.

    Args:
        tokens: of the document.
        length: how many would be kept otherwise.
        whole_ids: see `OpenPart`.
        overlong: what happens to longer documents.
    """
    if overlong == "split":
        return 0 if bool(np.isin(tokens, whole_ids).any()) else length
    is_whole = np.isin(tokens[: length + 1], whole_ids)
    while 0 < length < len(is_whole) and is_whole[length] and is_whole[length - 1]:
        length -= 1
    return length


def _sums(values: Any) -> list[int] | None:
    """Return the sums of all beginnings of an array; None if every value is 0."""
    if values is None or not bool(values.any()):
        return None
    sums: list[int] = np.concatenate(([0], np.cumsum(values, dtype=np.int64))).tolist()
    return sums


def _refuse_huge(part: SequencePart) -> None:
    key = part.key
    raise SourceError(
        f"a part must have at most {_MAX_TOKENS} tokens, data set {key.dataset}, chunk number "
        f"{key.number}, part {key.part} has {len(part.tokens)}; places in a document are "
        "stored in 32 bits; split its longest documents in the source"
    )
