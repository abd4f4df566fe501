"""`concat`: pieces one behind the other, cut wherever a row is full; nothing is padded."""

from collections.abc import Iterable

from zephon_beam.packing.base import Bin, Packs
from zephon_beam.pieces import Piece


class Concat:
    """Fill one row at a time; a piece that does not fit is cut and goes on in the next row."""

    def __init__(self, packs: Packs, max_segments: int | None = None) -> None:
        """Close rows into `packs`, also when they reach `max_segments`."""
        self._packs = packs
        self._max_segments = max_segments
        self._bin: Bin | None = None

    def add(self, piece: Piece) -> None:
        """Append a piece, in as many cuts as rows end within it."""
        view, document, offset, length = piece
        while length:
            row = self._bin
            if row is None:
                row = self._bin = self._packs.open_bin()
            fitting = min(length, row.space)
            row.pieces.append((view, document, offset, fitting))
            row.space -= fitting
            offset += fitting
            length -= fitting
            if row.space == 0 or len(row.pieces) == self._max_segments:
                self._packs.closed.append(row.pieces)
                self._bin = None

    def bins(self) -> list[Bin]:
        """Return the row that is being filled, if any."""
        return [self._bin] if self._bin is not None else []

    def restore(self, bins: Iterable[Bin]) -> None:
        """Continue with that row."""
        self._bin = next(iter(bins), None)
