"""Views: the arrays that the pieces of a lane lie in, and how pieces become arrays again.

A view is the flat tokens of one part, or of the pieces in a restored state. Views stand one behind
the other in one space of addresses, in the order in which they were added, so that the address of
a token finds its view, and its document in the document table, by bisection:

    view 0, documents of 3, 0, 2 tokens     addresses 0 … 4     starts 0 3 3
    view 1, documents of 4, 1 tokens        addresses 5 … 9     starts 5 9

All pieces of a shard are looked up at once; their tokens are joined in one pass.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zephon_beam.document_table import DocumentTable, Rows
from zephon_beam.pieces import (
    Array,
    GatheredPieces,
    Piece,
    PieceColumns,
    decode_pieces,
    encode_pieces,
)

_SPARE_VIEWS = 32
"""Views that may be kept in vain, besides as many as are needed."""


class View:
    """Flat tokens, and their loss mask if there is one."""

    __slots__ = ("base", "documents", "loss_mask", "tokens")

    def __init__(
        self, base: int, tokens: memoryview, loss_mask: memoryview | None, documents: int
    ) -> None:
        """Place arrays of one value a token at the address `base`.

        Args:
            base: address of the first token.
            tokens: of the stream's type.
            loss_mask: uint8 like tokens.
            documents: number of rows in the document table.
        """
        self.base = base
        self.tokens = tokens
        self.loss_mask = loss_mask
        self.documents = documents


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPieces:
    """Pieces with their sources, their tokens not yet copied."""

    lengths: Array
    """int64[pieces]."""
    columns: PieceColumns
    tokens: list[memoryview]
    """Of each piece, in place."""
    loss_masks: list[memoryview] | None
    """Of each piece, in place; None in a stream without masks."""


class Views:
    """The views that pieces of one lane may refer to.

    Determinism: what is found of a piece depends on the part that it lies in, never on addresses.
    """

    def __init__(self, dtype: Any, *, has_loss_mask: bool) -> None:
        """Start without a view.

        Args:
            dtype: of the stream's tokens.
            has_loss_mask: whether the stream has loss masks.
        """
        self._dtype = np.dtype(dtype)
        self._has_loss_mask = has_loss_mask
        self._table = DocumentTable()
        self._views: list[View] = []
        self._end = 0
        self._limit = _SPARE_VIEWS

    def __len__(self) -> int:
        """Return the number of views that are kept."""
        return len(self._views)

    def add(self, tokens: Array, loss_mask: Array | None, rows: Rows) -> View:
        """Place a view behind all others.

        Args:
            tokens: those of another type are converted.
            loss_mask: like tokens; None stands for ones in a stream that has masks.
            rows: of the documents in it.
        """
        base = self._end
        self._table.append(base, rows)
        mask = None
        if self._has_loss_mask:
            given = np.ones(len(tokens), np.uint8) if loss_mask is None else loss_mask
            mask = np.ascontiguousarray(given, np.uint8).data
        flat = np.ascontiguousarray(tokens, self._dtype).data
        view = View(base, flat, mask, len(rows.starts))
        self._views.append(view)
        self._end = base + len(tokens)
        return view

    def add_gathered(self, gathered: GatheredPieces) -> list[Piece]:
        """Place the pieces of a state in a view of their own, and return them."""
        lengths = gathered.lengths.astype(np.int64)
        stops = np.cumsum(lengths)
        starts = stops - lengths
        columns = gathered.columns
        rows = Rows(
            starts=starts,
            stops=stops,
            files=columns.files,
            documents=columns.documents,
            outputs=columns.outputs,
            dataset=columns.datasets,
            pass_number=columns.passes,
            offset=columns.offsets,
            following=columns.nexts,
        )
        base = self._end
        if len(lengths):
            self.add(gathered.tokens, gathered.loss_mask, rows)
        return encode_pieces(starts + base, lengths)

    def find(self, pieces: list[Piece]) -> FoundPieces:
        """Look up pieces that lie in views that were kept."""
        addresses, lengths = decode_pieces(pieces)
        rows = self._table.find(addresses)
        bases = self._bases()
        places = _last_at_most(bases, addresses)
        starts = addresses - bases[places]
        place_list = places.tolist()
        start_list = starts.tolist()
        stop_list = (starts + lengths).tolist()
        nexts = rows.following
        cut = np.flatnonzero(addresses + lengths < rows.stops)
        tokens = [view.tokens for view in self._views]
        nexts[cut] = [tokens[place_list[piece]][stop_list[piece]] for piece in cut.tolist()]
        masks = None
        if self._has_loss_mask:
            flat_masks = [view.loss_mask for view in self._views]
            masks = _slices(flat_masks, place_list, start_list, stop_list)
        offsets = rows.offset + (addresses - rows.starts).astype(np.int32)
        return FoundPieces(
            lengths=lengths,
            columns=PieceColumns(
                datasets=rows.dataset,
                files=rows.files,
                documents=rows.documents,
                outputs=rows.outputs,
                offsets=offsets,
                passes=rows.pass_number,
                nexts=nexts,
            ),
            tokens=_slices(tokens, place_list, start_list, stop_list),
            loss_masks=masks,
        )

    def gather(self, pieces: list[Piece]) -> GatheredPieces:
        """Copy pieces one behind the other, in the order given."""
        found = self.find(pieces)
        masks = found.loss_masks
        return GatheredPieces(
            lengths=found.lengths.astype(np.int32),
            tokens=np.frombuffer(b"".join(found.tokens), self._dtype),
            loss_mask=None if masks is None else np.frombuffer(b"".join(masks), np.uint8),
            columns=found.columns,
        )

    @property
    def is_crowded(self) -> bool:
        """Whether enough views were added since the last call of `keep` to call it again."""
        return len(self._views) > self._limit

    def keep(self, pieces: list[Piece], views: Iterable[View]) -> None:
        """Forget all views but those that these pieces lie in, and the given ones."""
        addresses, _ = decode_pieces(pieces)
        bases = self._bases()
        is_kept = np.zeros(len(self._views), np.bool_)
        is_kept[_last_at_most(bases, addresses)] = True
        # Views without a token have the base of the view behind them; the last one counts.
        is_kept[_last_at_most(bases, np.array([view.base for view in views], np.int64))] = True
        self._table.keep(np.repeat(is_kept, [view.documents for view in self._views]))
        self._views = [self._views[place] for place in np.flatnonzero(is_kept).tolist()]
        self._limit = 2 * len(self._views) + _SPARE_VIEWS

    def _bases(self) -> Array:
        return np.array([view.base for view in self._views], np.int64)


def _last_at_most(sorted_values: Array, wanted: Array) -> Array:
    """Return the place of the last value that is at most each of those wanted."""
    return np.searchsorted(sorted_values, wanted, side="right") - 1


def _slices(
    arrays: Sequence[Any], places: list[int], starts: list[int], stops: list[int]
) -> list[memoryview]:
    """Return [start, stop) of the array at each place."""
    spans = zip(places, starts, stops, strict=True)
    return [arrays[place][start:stop] for place, start, stop in spans]
