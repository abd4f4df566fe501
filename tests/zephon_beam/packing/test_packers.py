"""Packers: where pieces go, and that saved bins go on as if nothing had happened."""

import pytest

from zephon_beam.packing.base import Packer, Packs
from zephon_beam.packing.best_fit import BestFit
from zephon_beam.packing.concat import Concat
from zephon_beam.packing.first_fit import FirstFit
from zephon_beam.pieces import Piece, address_of, cut_piece, length_of, make_piece

APART = 1000
"""Addresses between the first tokens of two documents."""


def add_all(packer: Packer, lengths: list[int]) -> None:
    """Add whole documents, which are told apart by their addresses."""
    for document, length in enumerate(lengths):
        packer.add(make_piece(document * APART, length), length)


def spans(pack: list[Piece]) -> list[tuple[int, int, int]]:
    """Return (document, offset, length) of a pack's pieces."""
    return [(*divmod(address_of(piece), APART), length_of(piece)) for piece in pack]


def spaces(packs: Packs, packer: Packer) -> list[int]:
    """Return the room in each open bin."""
    return [packs.space_of(row) for row in packer.bins()]


def test_best_fit_takes_the_tightest_bin_that_fits() -> None:
    """Of spaces 2 and 5, a piece of 2 goes into the 2 and fills it."""
    packs = Packs(8)
    add_all(BestFit(packs, 4, split=False), [6, 3, 2])
    assert [spans(pack) for pack in packs.closed] == [[(0, 0, 6), (2, 0, 2)]]


def test_best_fit_prefers_the_bin_that_reached_a_space_first() -> None:
    """Bin 1 has 2 left before bin 0 does, so it gets the piece of 2, also after a restore."""
    for restored in (False, True):
        packs = Packs(8)
        packer = BestFit(packs, 4, split=False)
        add_all(packer, [3, 6])
        packer.add(make_piece(2 * APART, 3), 3)
        if restored:
            saved = packer.bins()
            packer = BestFit(packs, 4, split=False)
            packer.restore(saved)
        packer.add(make_piece(3 * APART, 2), 2)
        assert [spans(pack) for pack in packs.closed] == [[(1, 0, 6), (3, 0, 2)]]


def test_best_fit_closes_the_fullest_bin_when_none_fits() -> None:
    """With two bins open and no room, the fuller one is closed, padded."""
    packs = Packs(8)
    packer = BestFit(packs, 2, split=False)
    add_all(packer, [5, 6, 7])
    assert [spans(pack) for pack in packs.closed] == [[(1, 0, 6)]]
    assert spaces(packs, packer) == [1, 3]


def test_best_fit_split_fills_the_closing_bin() -> None:
    """The closing bin takes the first tokens of the piece; the rest goes into a bin of its own."""
    packs = Packs(8)
    packer = BestFit(packs, 2, split=True)
    add_all(packer, [5, 6, 7])
    assert [spans(pack) for pack in packs.closed] == [[(1, 0, 6), (2, 0, 2)]]
    assert sorted(spaces(packs, packer)) == [3, 3]


def test_first_fit_takes_the_oldest_bin_that_fits() -> None:
    """Of two bins with room the older one is taken, although the other is tighter."""
    packs = Packs(8)
    packer = FirstFit(packs, 4)
    add_all(packer, [4, 5, 3])
    assert spaces(packs, packer) == [1, 3]


def test_first_fit_closes_the_fullest_bin_when_none_fits() -> None:
    """Not the oldest one: of spaces 3 and 2 the 2 is closed, and of equals the oldest."""
    packs = Packs(8)
    packer = FirstFit(packs, 2)
    add_all(packer, [5, 6, 7])
    assert [spans(pack) for pack in packs.closed] == [[(1, 0, 6)]]
    packs = Packs(8)
    add_all(FirstFit(packs, 2), [5, 5, 7])
    assert [spans(pack) for pack in packs.closed] == [[(0, 0, 5)]]


@pytest.mark.parametrize("method", ["best_fit", "first_fit", "best_fit_split", "concat"])
def test_a_piece_takes_up_its_length_rounded_up_to_the_multiple(method: str) -> None:
    """With multiple 4, pieces of 3 and 5 tokens fill 12 places, and a cut falls on a multiple."""
    packs = Packs(12, 4)
    packer: Packer = {
        "best_fit": BestFit(packs, 2, split=False),
        "best_fit_split": BestFit(packs, 1, split=True),
        "first_fit": FirstFit(packs, 2),
        "concat": Concat(packs),
    }[method]
    add_all(packer, [3, 5])
    assert [spans(pack) for pack in packs.closed] == [[(0, 0, 3), (1, 0, 5)]]
    add_all(packer, [3, 11])
    rows = [spans(pack) for pack in packs.closed[1:]]
    is_cut = method in ("concat", "best_fit_split")
    assert rows == ([[(0, 0, 3), (1, 0, 8)]] if is_cut else [[(1, 0, 11)]])


def test_concat_cuts_wherever_a_row_ends() -> None:
    """Rows are full and pieces go on in the next one."""
    packs = Packs(4)
    packer = Concat(packs)
    add_all(packer, [3, 4, 2])
    assert [spans(pack) for pack in packs.closed] == [
        [(0, 0, 3), (1, 0, 1)],
        [(1, 1, 3), (2, 0, 1)],
    ]
    assert [spans(row.pieces) for row in packer.bins()] == [[(2, 1, 1)]]


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_max_segments_closes_a_row_early(method: str) -> None:
    """A row never holds more segments than allowed."""
    packs = Packs(8)
    packer = (
        Concat(packs, 2) if method == "concat" else BestFit(packs, 2, split=False, max_segments=2)
    )
    add_all(packer, [1, 1, 1, 1, 1])
    assert [len(pack) for pack in packs.closed] == [2, 2]


def test_the_published_example_cuts_three_documents_or_one() -> None:
    """Length 8, documents 14, 7, 5, 2, 3: concat cuts 3 of 5 documents, best_fit 1 of 5.

    Source: the worked example of "Fewer Truncations Improve Language Modeling" (2024).
    """
    pieces = [*cut_piece(make_piece(0, 14), 8)]
    pieces += [make_piece(number * APART, size) for number, size in enumerate([7, 5, 2, 3], 1)]
    cut = {}
    for method in ("concat", "best_fit"):
        packs = Packs(8)
        packer = Concat(packs) if method == "concat" else BestFit(packs, 8, split=False)
        for piece in pieces:
            packer.add(piece, length_of(piece))
        rows = packs.closed + [row.pieces for row in packer.bins()]
        placed = [document for row in rows for document in {span[0] for span in spans(row)}]
        cut[method] = sum(placed.count(document) > 1 for document in range(5))
    assert cut == {"concat": 3, "best_fit": 1}
