"""`best_fit` and `best_fit_split`: each piece goes where it leaves the least room.

Open bins are kept sorted by (space, order of reaching it) as single integers, so the tightest
bin that still fits is one bisection away, for any row length:

    space      3·0   3·1   9·0   40·0        a piece of 5 tokens → bin 9·0, which becomes 4·0
"""

from bisect import bisect_left
from collections.abc import Iterable

from zephon_beam.packing.base import Bin, Packs
from zephon_beam.pieces import Piece

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
        self._open_bins = open_bins
        self._split = split
        self._max_segments = max_segments
        self._keys: list[int] = []
        self._bins: list[Bin] = []
        self._order = 0

    def add(self, piece: Piece) -> None:
        """Place one piece of 1 to `seq_len` tokens."""
        keys, bins = self._keys, self._bins
        place = bisect_left(keys, piece[3] << _ORDER_BITS)
        if place < len(keys):
            del keys[place]
            self._put(bins.pop(place), piece)
            return
        if len(keys) == self._open_bins:
            fullest = bins.pop(0)
            del keys[0]
            if self._split:
                piece = _fill(fullest, piece)
            self._packs.closed.append(fullest.pieces)
            if self._split:
                self.add(piece)
                return
        self._put(self._packs.open_bin(), piece)

    def bins(self) -> list[Bin]:
        """Return the open bins, fullest first."""
        return list(self._bins)

    def restore(self, bins: Iterable[Bin]) -> None:
        """Continue with bins in that order; only their order among equal spaces matters."""
        for row in bins:
            self._insert(row)

    def _put(self, row: Bin, piece: Piece) -> None:
        row.pieces.append(piece)
        row.space -= piece[3]
        if row.space == 0 or len(row.pieces) == self._max_segments:
            self._packs.closed.append(row.pieces)
        else:
            self._insert(row)

    def _insert(self, row: Bin) -> None:
        key = row.space << _ORDER_BITS | self._order
        self._order += 1
        place = bisect_left(self._keys, key)
        self._keys.insert(place, key)
        self._bins.insert(place, row)


def _fill(row: Bin, piece: Piece) -> Piece:
    """Move the first tokens of a piece into the space that is left; return the rest."""
    view, document, offset, length = piece
    row.pieces.append((view, document, offset, row.space))
    return view, document, offset + row.space, length - row.space
