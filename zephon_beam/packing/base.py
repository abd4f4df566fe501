"""What every packer shares: bins, the protocol, and the choice by name."""

from collections.abc import Iterable
from typing import Protocol

from zephon_beam.pieces import Piece


class Bin:
    """An open row. `created` numbers bins of a lane in order of creation."""

    __slots__ = ("created", "pieces", "space")

    def __init__(self, space: int, created: int) -> None:
        """Open an empty bin with room for `space` tokens."""
        self.space = space
        self.created = created
        self.pieces: list[Piece] = []


class Packs:
    """Finished packs of a lane in order of closing, and the numbers of its bins."""

    __slots__ = ("closed", "next_bin", "seq_len")

    def __init__(self, seq_len: int, next_bin: int = 0) -> None:
        """Continue numbering bins from `next_bin`."""
        self.seq_len = seq_len
        self.next_bin = next_bin
        self.closed: list[list[Piece]] = []

    def open_bin(self) -> Bin:
        """Open a bin of `seq_len` tokens with the next number."""
        created = self.next_bin
        self.next_bin = created + 1
        return Bin(self.seq_len, created)


class Packer(Protocol):
    """Puts pieces of at most `seq_len` tokens into bins and closes bins into `Packs.closed`.

    Determinism: where a piece goes depends on the pieces before it alone. Bins are closed only
    by the method's own rule or by the lane's end, so a checkpoint costs no padding.
    """

    def add(self, piece: Piece) -> None:
        """Place one piece of 1 to `seq_len` tokens."""

    def bins(self) -> list[Bin]:
        """Return the open bins in the order that `restore` expects."""

    def restore(self, bins: Iterable[Bin]) -> None:
        """Continue with bins that `bins` returned earlier."""
