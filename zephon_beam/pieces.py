"""Pieces: stretches of documents on their way into packs, each one plain integer.

Every token that a lane opens has an address (see `zephon_beam.views`), and a piece is the address
of its first token and its length:

    piece    address · 2^24 | length        63 … 24 | 23 … 0

Where it comes from and what follows it is looked up from the address, so a cut is arithmetic, and
packing moves integers only: nothing is counted, copied or traced by Python's garbage collector
until a shard or a state is written. A recipe's rows are shorter than 2^24 tokens; the addresses
left are 2^39 tokens of one lane process, about 10^12 bytes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

Piece = int
"""Address of the first token, shifted by `LENGTH_BITS`, and the number of tokens below that."""

LENGTH_BITS = 24
LENGTH_MASK = (1 << LENGTH_BITS) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceColumns:
    """Where pieces come from, one value a piece.

    `offsets` is a piece's first token within its document; `nexts` the token behind it, -1 at the
    end of its document.
    """

    datasets: Array
    files: Array
    documents: Array
    outputs: Array
    offsets: Array
    passes: Array
    nexts: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class GatheredPieces:
    """Pieces as arrays: `lengths` int32[pieces], flat `tokens`, and their columns."""

    lengths: Array
    tokens: Array
    loss_mask: Array | None
    columns: PieceColumns


def make_piece(address: int, length: int) -> Piece:
    """Return the piece of so many tokens from an address on."""
    return address << LENGTH_BITS | length


def length_of(piece: Piece) -> int:
    """Return the number of tokens of a piece."""
    return piece & LENGTH_MASK


def address_of(piece: Piece) -> int:
    """Return the address of a piece's first token."""
    return piece >> LENGTH_BITS


def cut_piece(piece: Piece, count: int) -> tuple[Piece, Piece]:
    """Split a piece behind its first `count` tokens, less than it has."""
    rest = (piece & LENGTH_MASK) - count
    return piece - rest, piece + (count << LENGTH_BITS) - count


def decode_pieces(pieces: list[Piece]) -> tuple[Array, Array]:
    """Return (addresses, lengths) of pieces, int64[pieces] each."""
    codes = np.array(pieces, np.int64)
    return codes >> LENGTH_BITS, codes & LENGTH_MASK


def encode_pieces(addresses: Array, lengths: Array) -> list[Piece]:
    """Return the pieces of int64 addresses and lengths."""
    encoded: list[Piece] = (addresses << LENGTH_BITS | lengths).tolist()
    return encoded
