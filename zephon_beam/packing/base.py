"""What every packer shares: bins, finished packs and the protocol.

With `segment_multiple` m a piece takes up its length rounded up to a multiple of m, so that the
next segment of its row starts at one; spaces of bins are multiples of m throughout.
"""

from collections.abc import Iterable
from typing import Protocol

from zephon_beam.pieces import Piece, length_of


class Bin:
    """An open row. `created` numbers bins of a lane in order of creation."""

    __slots__ = ("created", "pieces")

    def __init__(self, created: int, pieces: list[Piece]) -> None:
        """Open a bin that holds these pieces."""
        self.created = created
        self.pieces = pieces


class Packs:
    """Finished packs of a lane in order of closing, and the numbers of its bins."""

    __slots__ = ("closed", "multiple", "next_bin", "seq_len")

    def __init__(self, seq_len: int, multiple: int = 1, next_bin: int = 0) -> None:
        """Continue numbering bins from `next_bin`; segments start at multiples of `multiple`."""
        self.seq_len = seq_len
        self.multiple = multiple
        self.next_bin = next_bin
        self.closed: list[list[Piece]] = []

    def open_bin(self, piece: Piece) -> Bin:
        """Open a bin with the next number for a first piece."""
        created = self.next_bin
        self.next_bin = created + 1
        return Bin(created, [piece])

    def space_of(self, row: Bin) -> int:
        """Return how many tokens a bin has room for."""
        lengths = [length_of(piece) for piece in row.pieces]
        return self.seq_len - sum(length + -length % self.multiple for length in lengths)


class Packer(Protocol):
    """Puts pieces of at most `seq_len` tokens into bins and closes bins into `Packs.closed`.

    Determinism: where a piece goes depends on the pieces before it alone. Bins are closed only
    by the method's own rule or by the lane's end, so a checkpoint costs no padding.
    """

    def add(self, piece: Piece, length: int) -> None:
        """Place one piece of `length` tokens, 1 to `seq_len`."""

    def bins(self) -> list[Bin]:
        """Return the open bins in the order that `restore` expects."""

    def restore(self, bins: Iterable[Bin]) -> None:
        """Continue with bins that `bins` returned earlier."""
