"""`best_fit` and `best_fit_split`: each piece goes where it leaves the least room.

Open bins are kept sorted by (space, order of reaching it) as single integers, so the tightest
bin that still fits is one bisection away, for any row length:

    space      3·0   3·1   9·0   40·0        a piece of 5 tokens → bin 9·0, which becomes 4·0
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

from zephon_beam.packing.base import Bin, Packs
from zephon_beam.pieces import Piece, cut_piece

_ORDER_BITS = 48


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
        self._keys: list[int] = []
        self._bins: dict[int, Bin] = {}
        self._order = 0

    def add(self, piece: Piece) -> None:
        """Place one piece of 1 to `seq_len` tokens."""
        keys = self._keys
        length = piece[0]
        size = length + -length % self._multiple
        place = bisect_left(keys, size << _ORDER_BITS)
        if place < len(keys):
            row = self._bins.pop(keys.pop(place))
        elif len(keys) < self._open_bins:
            row = self._packs.open_bin()
        else:
            self._close_fullest(piece)
            return
        pieces = row.pieces
        pieces.append(piece)
        row.space = space = row.space - size
        if space and len(pieces) != self._max_segments:
            key = space << _ORDER_BITS | self._order
            self._order += 1
            insort(keys, key)
            self._bins[key] = row
        else:
            self._packs.closed.append(pieces)

    def bins(self) -> list[Bin]:
        """Return the open bins, fullest first."""
        return [self._bins[key] for key in self._keys]

    def restore(self, bins: Iterable[Bin]) -> None:
        """Continue with bins in that order; only their order among equal spaces matters."""
        for row in bins:
            key = row.space << _ORDER_BITS | self._order
            self._order += 1
            insort(self._keys, key)
            self._bins[key] = row

    def _close_fullest(self, piece: Piece) -> None:
        """Make room for a piece that no bin holds, and place it."""
        fullest = self._bins.pop(self._keys.pop(0))
        if self._split:
            first, piece = cut_piece(piece, fullest.space)
            fullest.pieces.append(first)
        self._packs.closed.append(fullest.pieces)
        self.add(piece)
