"""Pieces: stretches of documents on their way into packs, and how they become arrays.

A piece is a plain tuple `(length, view, start, source)`, the cheapest thing Python can make:

    length   tokens
    view     the flat tokens (and loss mask) that it lies in
    start    its first token in the view
    source   where it comes from and what follows it, one encoded `SOURCE_RECORD`

No token is copied until a shard or a state is written; then all tokens are joined in one pass, and
all sources in another, so that nothing is done column by column for each piece.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SOURCE_RECORD = np.dtype(
    [
        ("length", "<i4"),
        ("next", "<i4"),
        ("offset", "<i4"),
        ("dataset", "<u2"),
        ("file", "<u4"),
        ("document", "<i8"),
        ("output", "<u4"),
        ("pass", "<u4"),
    ]
)
"""Where a piece comes from. `next` is the token behind it, -1 at the end of its document; `offset`
its first token within its document. What a cut changes stands first."""

_CUT_FIELDS = Struct("<iii")


class View:
    """Flat tokens, and their loss mask if there is one, that pieces refer to without copying."""

    __slots__ = ("loss_mask", "tokens")

    def __init__(self, tokens: Array, loss_mask: Array | None, dtype: Any) -> None:
        """View arrays of one value a token; tokens of another type are converted to `dtype`."""
        self.tokens: memoryview = np.ascontiguousarray(tokens, dtype).data
        self.loss_mask: memoryview | None = None
        if loss_mask is not None:
            self.loss_mask = np.ascontiguousarray(loss_mask, np.uint8).data


Piece = tuple[int, View, int, bytes]
"""(tokens, view, first token in the view, encoded source)."""


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
        records = np.empty(len(self.lengths), SOURCE_RECORD)
        records["length"] = self.lengths
        columns = self.columns
        records["next"], records["offset"] = columns.nexts, columns.offsets
        records["dataset"], records["file"] = columns.datasets, columns.files
        records["document"], records["output"] = columns.documents, columns.outputs
        records["pass"] = columns.passes
        view = View(self.tokens, self.loss_mask, self.tokens.dtype.newbyteorder("="))
        lengths = self.lengths.astype(np.int64)
        starts: list[int] = (np.cumsum(lengths) - lengths).tolist()
        sources = encode_sources(records)
        return [
            (length, view, start, source)
            for length, start, source in zip(lengths.tolist(), starts, sources, strict=True)
        ]


def encode_sources(records: Array) -> list[bytes]:
    """Return each of the records `SOURCE_RECORD`[pieces] as bytes."""
    encoded: list[bytes] = records.view(f"V{SOURCE_RECORD.itemsize}").tolist()
    return encoded


def is_first_of_document(piece: Piece) -> bool:
    """Say whether a piece that was not cut since holds the first token of its document."""
    return bool(_CUT_FIELDS.unpack_from(piece[3])[2] == 0)


def cut_document(piece: Piece, size: int) -> list[bytes]:
    """Return the sources of the pieces of `size` tokens, the last one shorter, of a document."""
    length, view, start, source = piece
    common = source[_CUT_FIELDS.size :]
    last = (length - 1) // size * size
    sources = [
        _CUT_FIELDS.pack(size, view.tokens[start + offset + size], offset) + common
        for offset in range(0, last, size)
    ]
    sources.append(_CUT_FIELDS.pack(length - last, -1, last) + common)
    return sources


def cut_piece(piece: Piece, count: int) -> tuple[Piece, Piece]:
    """Split a piece behind its first `count` tokens, less than it has."""
    length, view, start, source = piece
    _, following, offset = _CUT_FIELDS.unpack_from(source)
    rest = source[_CUT_FIELDS.size :]
    middle = start + count
    left = _CUT_FIELDS.pack(count, view.tokens[middle], offset) + rest
    right = _CUT_FIELDS.pack(length - count, following, offset + count) + rest
    return (count, view, start, left), (length - count, view, middle, right)


def shorten_piece(piece: Piece, count: int) -> Piece:
    """Keep the first `count` tokens of a piece as if its document ended there."""
    _, view, start, source = piece
    offset = _CUT_FIELDS.unpack_from(source)[2]
    return count, view, start, _CUT_FIELDS.pack(count, -1, offset) + source[_CUT_FIELDS.size :]


def decode_sources(sources: Iterable[bytes]) -> Array:
    """Return encoded sources as `SOURCE_RECORD`[pieces]."""
    return np.frombuffer(b"".join(sources), SOURCE_RECORD)


def columns_of(records: Array) -> PieceColumns:
    """Take records apart, one contiguous array a column."""
    return PieceColumns(
        datasets=np.ascontiguousarray(records["dataset"]),
        files=np.ascontiguousarray(records["file"]),
        documents=np.ascontiguousarray(records["document"]),
        outputs=np.ascontiguousarray(records["output"]),
        offsets=np.ascontiguousarray(records["offset"]),
        passes=np.ascontiguousarray(records["pass"]),
        nexts=np.ascontiguousarray(records["next"]),
    )


def gather_pieces(pieces: Sequence[Piece], dtype: Any, has_loss_mask: bool) -> GatheredPieces:
    """Copy pieces one behind the other.

    Args:
        pieces: any pieces, in the order wanted.
        dtype: of the tokens.
        has_loss_mask: whether the stream has loss masks.
    """
    records = decode_sources([source for _, _, _, source in pieces])
    tokens = b"".join([view.tokens[start : start + n] for n, view, start, _ in pieces])
    mask = None
    if has_loss_mask:
        mask = np.frombuffer(b"".join([mask_of(piece) for piece in pieces]), np.uint8)
    return GatheredPieces(
        lengths=np.ascontiguousarray(records["length"]),
        tokens=np.frombuffer(tokens, dtype),
        loss_mask=mask,
        columns=columns_of(records),
    )


def mask_of(piece: Piece) -> memoryview:
    """Return the loss mask of a piece in a stream that has masks; without one all ones."""
    length, view, start, _ = piece
    if view.loss_mask is None:
        return memoryview(b"\1" * length)
    return view.loss_mask[start : start + length]
