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

    def add(self, piece: Piece) -> None:
        """Append a piece, in as many cuts as rows end within it."""
        while True:
            row = self._bin
            if row is None:
                row = self._bin = self._packs.open_bin()
            length = piece[0]
            if length > row.space:
                first, piece = cut_piece(piece, row.space)
                row.pieces.append(first)
                self._close(row)
                continue
            row.pieces.append(piece)
            row.space -= length + -length % self._multiple
            if row.space == 0 or len(row.pieces) == self._max_segments:
                self._close(row)
            return

    def bins(self) -> list[Bin]:
        """Return the row that is being filled, if any."""
        return [self._bin] if self._bin is not None else []

    def restore(self, bins: Iterable[Bin]) -> None:
        """Continue with that row."""
        self._bin = next(iter(bins), None)

    def _close(self, row: Bin) -> None:
        self._packs.closed.append(row.pieces)
        self._bin = None
