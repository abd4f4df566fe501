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
        self._multiple = packs.multiple
        self._open_bins = open_bins
        self._max_segments = max_segments
        self._bins: list[Bin] = []
        self._spaces: list[int] = []

    def add(self, piece: Piece) -> None:
        """Place one piece of 1 to `seq_len` tokens."""
        spaces = self._spaces
        length = piece[0]
        size = length + -length % self._multiple
        for place, space in enumerate(spaces):  # noqa: B007 - the loop is the search
            if space >= size:
                break
        else:
            if len(spaces) == self._open_bins:
                self._close(spaces.index(min(spaces)))
            place, space = len(spaces), self._packs.seq_len
            self._bins.append(self._packs.open_bin())
            spaces.append(space)
        row = self._bins[place]
        row.pieces.append(piece)
        row.space = spaces[place] = space - size
        if space == size or len(row.pieces) == self._max_segments:
            self._close(place)

    def bins(self) -> list[Bin]:
        """Return the open bins, oldest first."""
        return list(self._bins)

    def restore(self, bins: Iterable[Bin]) -> None:
        """Continue with bins in that order."""
        self._bins = list(bins)
        self._spaces = [row.space for row in self._bins]

    def _close(self, place: int) -> None:
        del self._spaces[place]
        self._packs.closed.append(self._bins.pop(place).pieces)
