"""Views: pieces are found again from their addresses, also after others were forgotten."""

import numpy as np

from zephon_beam.document_table import Rows
from zephon_beam.pieces import Piece, cut_piece, make_piece
from zephon_beam.views import View, Views


def add_view(views: Views, lengths: list[int], first_token: int) -> View:
    """Add documents of consecutive tokens; each comes from the file of its first token."""
    stops = np.cumsum(np.array(lengths, np.int64))
    starts = stops - lengths
    rows = Rows(
        starts=starts,
        stops=stops,
        files=(first_token + starts).astype(np.uint32),
        documents=np.arange(len(lengths), dtype=np.int64),
        outputs=np.zeros(len(lengths), np.uint32),
        dataset=1,
        pass_number=2,
    )
    return views.add(np.arange(first_token, first_token + stops[-1]), None, rows)


def found(views: Views, piece: Piece) -> tuple[list[int], int, int, int]:
    """Return (tokens, file, offset, next) of a piece."""
    gathered = views.gather([piece])
    columns = gathered.columns
    file, offset, following = (
        int(column[0]) for column in (columns.files, columns.offsets, columns.nexts)
    )
    return gathered.tokens.tolist(), file, offset, following


def test_a_piece_and_its_cuts_are_found_beside_documents_and_views_without_tokens() -> None:
    """The last of the rows that start at an address is the one with tokens."""
    views = Views("uint16", has_loss_mask=False)
    add_view(views, [0, 0], 900)
    add_view(views, [0, 3, 0, 0, 2], 100)
    add_view(views, [0], 900)
    view = add_view(views, [4], 200)
    assert found(views, make_piece(0, 3)) == ([100, 101, 102], 100, 0, -1)
    assert found(views, make_piece(3, 2)) == ([103, 104], 103, 0, -1)
    left, right = cut_piece(make_piece(view.base, 4), 3)
    assert found(views, left) == ([200, 201, 202], 200, 0, 203)
    assert found(views, right) == ([203], 200, 3, -1)


def test_forgetting_keeps_what_pieces_and_open_parts_lie_in() -> None:
    """What is left is found as before, and views that are added later, too."""
    views = Views("uint16", has_loss_mask=False)
    added = [add_view(views, [2, 3], 100 * number) for number in range(1, 6)]
    held = make_piece(added[1].base + 2, 3)
    views.keep([held], [added[3]])
    assert len(views) == 2
    later = add_view(views, [1], 900)
    assert found(views, held) == ([202, 203, 204], 202, 0, -1)
    assert found(views, make_piece(added[3].base, 2)) == ([400, 401], 400, 0, -1)
    assert found(views, make_piece(later.base, 1)) == ([900], 900, 0, -1)


def test_views_are_crowded_only_when_most_of_them_may_be_in_vain() -> None:
    """So looking for them costs little, and they never outnumber twice those needed by much."""
    views = Views("uint16", has_loss_mask=False)
    kept = 0
    for number in range(1000):
        view = add_view(views, [1], number)
        if views.is_crowded:
            views.keep([], [view])
            kept += 1
        assert len(views) <= 40
    assert kept <= 30


def test_pieces_of_a_state_are_placed_again_with_their_places_in_their_documents() -> None:
    """A second cut of a piece from a state goes on from its offset and its next token."""
    views = Views("uint16", has_loss_mask=True)
    base = add_view(views, [6], 50).base
    gathered = views.gather([make_piece(base + 1, 3)])
    again = Views("uint16", has_loss_mask=True)
    (piece,) = again.add_gathered(gathered)
    assert found(again, piece) == ([51, 52, 53], 50, 1, 54)
    left, right = cut_piece(piece, 1)
    assert found(again, left) == ([51], 50, 1, 52)
    assert found(again, right) == ([52, 53], 50, 2, 54)
    mask = again.gather([piece]).loss_mask
    assert mask is not None
    assert mask.tolist() == [1, 1, 1]
