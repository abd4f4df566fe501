"""`first_fit`: each piece goes into the oldest bin that still holds it."""

from collections.abc import Iterable

from zephon_beam.packing.base import Bin, Packs
from zephon_beam.pieces import Piece


class FirstFit:
    """Keep `open_bins` bins in order of creation; the first one with enough room takes a piece.

    If none fits, a bin is opened; if `open_bins` are open, the fullest (the oldest among equals)
    is closed first.
    """

    def __init__(self, packs: Packs, open_bins: int, max_segments: int | None = None) -> None:
        """Close rows into `packs`, also when they reach `max_segments`."""
        self._packs = packs
        self._open_bins = open_bins
        self._max_segments = max_segments
        self._bins: list[Bin] = []

    def add(self, piece: Piece) -> None:
        """Place one piece of 1 to `seq_len` tokens."""
        length = piece[3]
        row = next((row for row in self._bins if row.space >= length), None)
        if row is None:
            if len(self._bins) == self._open_bins:
                fullest = min(self._bins, key=lambda candidate: candidate.space)
                self._close(fullest)
            row = self._packs.open_bin()
            self._bins.append(row)
        row.pieces.append(piece)
        row.space -= length
        if row.space == 0 or len(row.pieces) == self._max_segments:
            self._close(row)

    def bins(self) -> list[Bin]:
        """Return the open bins, oldest first."""
        return list(self._bins)

    def restore(self, bins: Iterable[Bin]) -> None:
        """Continue with bins in that order."""
        self._bins = list(bins)

    def _close(self, row: Bin) -> None:
        self._bins.remove(row)
        self._packs.closed.append(row.pieces)
