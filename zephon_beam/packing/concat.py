"""`concat`: pieces one behind the other, cut wherever a row is full; nothing is padded.

With `segment_multiple` m a cut falls on a multiple of m, because every segment starts at one, so
a document costs at most m - 1 tokens of padding, behind its last piece.
"""

from collections.abc import Iterable

from zephon_beam.packing.base import Bin, Packs
from zephon_beam.pieces import Piece, cut_piece


class Concat:
    """Fill one row at a time; a piece that does not fit is cut and goes on in the next row."""

    def __init__(self, packs: Packs, max_segments: int | None = None) -> None:
        """Close rows into `packs`, also when they reach `max_segments`."""
        self._packs = packs
        self._multiple = packs.multiple
        self._max_segments = max_segments
        self._bin: Bin | None = None
        self._space = 0

    def add(self, piece: Piece, length: int) -> None:
        """Append a piece of at most a row's length, cut where the row ends within it."""
        row, space = self._bin, self._space
        while row is not None and length > space:
            first, piece = cut_piece(piece, space)
            length -= space
            row.pieces.append(first)
            self._packs.closed.append(row.pieces)
            row, space = None, self._packs.seq_len
        if row is None:
            row, space = self._packs.open_bin(piece), self._packs.seq_len
        else:
            row.pieces.append(piece)
        space -= length if self._multiple == 1 else length + -length % self._multiple
        if space and len(row.pieces) != self._max_segments:
            self._bin, self._space = row, space
        else:
            self._packs.closed.append(row.pieces)
            self._bin = None

    def bins(self) -> list[Bin]:
        """Return the row that is being filled, if any."""
        return [self._bin] if self._bin is not None else []

    def restore(self, bins: Iterable[Bin]) -> None:
        """Continue with that row."""
        for row in bins:
            self._bin, self._space = row, self._packs.space_of(row)
