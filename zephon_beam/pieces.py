"""Pieces: stretches of documents on their way into packs, and how they become arrays.

A piece is a plain tuple `(view, document, offset, length)`, the cheapest thing Python can make:
no token is copied until a shard or a state is written. `offset` counts from the start of the
document *within the view*.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.sequences import SequencePart

Array = npt.NDArray[Any]


class View:
    """The documents of a part, or the pieces of a restored state, as lists for fast access."""

    __slots__ = (
        "count",
        "datasets",
        "documents",
        "files",
        "lengths",
        "loss_mask",
        "nexts",
        "offsets",
        "outputs",
        "passes",
        "quarantined",
        "starts",
        "tokens",
    )

    def __init__(
        self,
        *,
        tokens: Array,
        loss_mask: Array | None,
        bounds: Array,
        columns: "PieceColumns",
        quarantined: Array | None = None,
    ) -> None:
        """Unpack arrays once.

        Args:
            tokens: uint16 or uint32 [tokens].
            loss_mask: uint8[tokens] or None.
            bounds: int64[documents + 1], bounds of each document's tokens.
            columns: one value per document; `offsets` and `nexts` say where in its document an
                entry begins and which token follows it.
            quarantined: bool[documents] or None: which documents were set aside, all empty.
        """
        self.tokens = tokens
        self.loss_mask = loss_mask
        self.count = len(bounds) - 1
        self.starts: list[int] = bounds[:-1].tolist()
        self.lengths: list[int] = np.diff(bounds).tolist()
        self.datasets: list[int] = columns.datasets.tolist()
        self.files: list[int] = columns.files.tolist()
        self.documents: list[int] = columns.documents.tolist()
        self.outputs: list[int] = columns.outputs.tolist()
        self.offsets: list[int] = columns.offsets.tolist()
        self.passes: list[int] = columns.passes.tolist()
        self.nexts: list[int] = columns.nexts.tolist()
        self.quarantined: list[bool] | None = None
        if quarantined is not None and bool(quarantined.any()):
            self.quarantined = quarantined.tolist()

    @classmethod
    def of_part(cls, part: SequencePart) -> "View":
        """View the whole documents of a part."""
        count = len(part)
        columns = PieceColumns(
            datasets=np.full(count, part.key.dataset, np.uint16),
            files=part.files,
            documents=part.locators,
            outputs=part.outputs,
            offsets=np.zeros(count, np.int32),
            passes=np.full(count, part.pass_number, np.uint32),
            nexts=np.full(count, -1, np.int32),
        )
        return cls(
            tokens=part.tokens,
            loss_mask=part.loss_mask,
            bounds=part.offsets,
            columns=columns,
            quarantined=part.quarantined,
        )


Piece = tuple[View, int, int, int]
"""(view, document in the view, first token in that document, tokens)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceColumns:
    """Where pieces come from, one value a piece."""

    datasets: Array
    files: Array
    documents: Array
    outputs: Array
    offsets: Array
    passes: Array
    nexts: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class GatheredPieces:
    """Pieces as arrays: `lengths` int32[pieces], flat `tokens`, and their columns."""

    lengths: Array
    tokens: Array
    loss_mask: Array | None
    columns: PieceColumns

    def pieces(self) -> list[Piece]:
        """Make the pieces again, over one view of these arrays."""
        bounds = np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))
        view = View(
            tokens=self.tokens, loss_mask=self.loss_mask, bounds=bounds, columns=self.columns
        )
        return [(view, place, 0, length) for place, length in enumerate(view.lengths)]


def gather_columns(pieces: Sequence[Piece]) -> PieceColumns:
    """Collect where pieces come from and which token follows each."""
    return PieceColumns(
        datasets=np.array([view.datasets[d] for view, d, _, _ in pieces], np.uint16),
        files=np.array([view.files[d] for view, d, _, _ in pieces], np.uint32),
        documents=np.array([view.documents[d] for view, d, _, _ in pieces], np.int64),
        outputs=np.array([view.outputs[d] for view, d, _, _ in pieces], np.uint32),
        offsets=np.array([view.offsets[d] + offset for view, d, offset, _ in pieces], np.int32),
        passes=np.array([view.passes[d] for view, d, _, _ in pieces], np.uint32),
        nexts=np.array([_next_token(piece) for piece in pieces], np.int32),
    )


def gather_pieces(pieces: Sequence[Piece], dtype: Any, has_loss_mask: bool) -> GatheredPieces:
    """Copy pieces one behind the other.

    Args:
        pieces: any pieces, in the order wanted.
        dtype: of the tokens; decides the type of an empty result.
        has_loss_mask: whether the stream has loss masks.
    """
    empty = np.empty(0, dtype)
    tokens = [_slice(view.tokens, view, d, offset, n) for view, d, offset, n in pieces]
    mask = None
    if has_loss_mask:
        masks = [_slice(view.loss_mask, view, d, offset, n) for view, d, offset, n in pieces]
        mask = np.concatenate([np.empty(0, np.uint8), *masks])
    return GatheredPieces(
        lengths=np.array([n for _, _, _, n in pieces], np.int32),
        tokens=np.concatenate([empty, *tokens]),
        loss_mask=mask,
        columns=gather_columns(pieces),
    )


def _slice(values: Any, view: View, document: int, offset: int, length: int) -> Array:
    start = view.starts[document] + offset
    part: Array = values[start : start + length]
    return part


def _next_token(piece: Piece) -> int:
    """Return the token behind a piece in its document, -1 at the document's end."""
    view, document, offset, length = piece
    end = offset + length
    if end < view.lengths[document]:
        return int(view.tokens[view.starts[document] + end])
    return view.nexts[document]
