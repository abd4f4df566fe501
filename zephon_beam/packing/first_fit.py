"""`first_fit`: each piece goes into the oldest bin that still holds it.

Open bins are kept sorted by space; those that hold a piece are then the last ones, and the oldest
of them has the least number. Most bins are nearly full, so they are few:

    spaces      3  3  9  40  2048        a piece of 5 tokens → the least of 7, 4, 8: bin 4
    created     2  5  7   4     8
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from zephon_beam.packing.base import Bin, Packs
from zephon_beam.pieces import Piece


class FirstFit:
    """Keep `open_bins` bins; the first one in order of creation with enough room takes a piece.

    If none fits, a bin is opened; if `open_bins` are open, the fullest (the oldest among equals)
    is closed first.
    """

    def __init__(self, packs: Packs, open_bins: int, max_segments: int | None = None) -> None:
        """Close rows into `packs`, also when they reach `max_segments`."""
        self._packs = packs
        self._multiple = packs.multiple
        self._open_bins = open_bins
        self._max_segments = max_segments
        self._spaces: list[int] = []
        self._created: list[int] = []
        self._bins: list[Bin] = []

    def add(self, piece: Piece, length: int) -> None:
        """Place one piece of `length` tokens, 1 to `seq_len`."""
        spaces, created = self._spaces, self._created
        size = length if self._multiple == 1 else length + -length % self._multiple
        place = bisect_left(spaces, size)
        if place < len(spaces):
            place = created.index(min(created[place:]), place)
            space = spaces.pop(place) - size
            del created[place]
            row = self._bins.pop(place)
            row.pieces.append(piece)
        else:
            if len(spaces) == self._open_bins:
                del spaces[0], created[0]
                self._packs.closed.append(self._bins.pop(0).pieces)
            space = self._packs.seq_len - size
            row = self._packs.open_bin(piece)
        if space and len(row.pieces) != self._max_segments:
            self._insert(row, space)
        else:
            self._packs.closed.append(row.pieces)

    def bins(self) -> list[Bin]:
        """Return the open bins, oldest first."""
        return sorted(self._bins, key=lambda row: row.created)

    def restore(self, bins: Iterable[Bin]) -> None:
        """Continue with bins in any order."""
        for row in bins:
            self._insert(row, self._packs.space_of(row))

    def _insert(self, row: Bin, space: int) -> None:
        spaces, created = self._spaces, self._created
        place = bisect_left(spaces, space)
        place = bisect_left(created, row.created, place, bisect_right(spaces, space, place))
        spaces.insert(place, space)
        created.insert(place, row.created)
        self._bins.insert(place, row)
