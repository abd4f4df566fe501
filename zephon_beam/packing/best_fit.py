"""`best_fit` and `best_fit_split`: each piece goes where it leaves the least room.

Open bins are kept sorted by space, those of equal space in the order of reaching it, so the
tightest bin that still fits is one bisection away, for any row length:

    spaces      3  3  9  40        a piece of 5 tokens → the bin of 9, which moves behind the 3s
    bins        b  d  a  c
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from zephon_beam.packing.base import Bin, Packs
from zephon_beam.pieces import Piece, cut_piece


class BestFit:
    """Keep `open_bins` bins; a piece goes into the fullest one that still holds it.

    Among equal spaces the bin that reached it first goes first. If none fits, a bin is opened;
    if `open_bins` are open, the fullest is closed first. With `split`, that bin is filled by the
    first tokens of the piece before it closes: no padding, at most one cut for each pack.

    Source: best-fit packing after Ding et al., "Fewer Truncations Improve Language Modeling"
        (2024), made online by bounding the open bins.
    """

    def __init__(
        self, packs: Packs, open_bins: int, *, split: bool, max_segments: int | None = None
    ) -> None:
        """Close rows into `packs`, also when they reach `max_segments`."""
        self._packs = packs
        self._multiple = packs.multiple
        self._open_bins = open_bins
        self._split = split
        self._max_segments = max_segments
        self._spaces: list[int] = []
        self._bins: list[Bin] = []

    def add(self, piece: Piece, length: int) -> None:
        """Place one piece of `length` tokens, 1 to `seq_len`."""
        spaces, bins = self._spaces, self._bins
        size = length if self._multiple == 1 else length + -length % self._multiple
        place = bisect_left(spaces, size)
        if place < len(spaces):
            space = spaces[place] - size
            row = bins[place]
            row.pieces.append(piece)
            del spaces[place], bins[place]
        elif len(spaces) < self._open_bins:
            space = self._packs.seq_len - size
            row = self._packs.open_bin(piece)
        else:
            self._close_fullest(piece, length)
            return
        if space and len(row.pieces) != self._max_segments:
            place = bisect_right(spaces, space)
            spaces.insert(place, space)
            bins.insert(place, row)
        else:
            self._packs.closed.append(row.pieces)

    def bins(self) -> list[Bin]:
        """Return the open bins, fullest first."""
        return list(self._bins)

    def restore(self, bins: Iterable[Bin]) -> None:
        """Continue with bins in that order."""
        self._bins = list(bins)
        self._spaces = [self._packs.space_of(row) for row in self._bins]

    def _close_fullest(self, piece: Piece, length: int) -> None:
        """Make room for a piece that no bin holds, and place it."""
        space, fullest = self._spaces.pop(0), self._bins.pop(0)
        if self._split:
            first, piece = cut_piece(piece, space)
            length -= space
            fullest.pieces.append(first)
        self._packs.closed.append(fullest.pieces)
        self.add(piece, length)
