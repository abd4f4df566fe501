"""Fill in the middle loses nothing, in the orders that models are trained on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.built_ins.fill_in_the_middle import FillInTheMiddle, Piece
from zephon_beam.errors import RecipeError

KEYS = st.integers(0, 2**64 - 1)
PRE, SUF, MID = ("<fim_prefix>", True), ("<fim_suffix>", True), ("<fim_middle>", True)


def reassemble(pieces: list[Piece]) -> str:
    """Return the document that some pieces are of, by their special tokens alone."""
    if len(pieces) == 1:
        ((text, is_special),) = pieces
        assert not is_special
        return text
    if pieces[1] == SUF:
        assert [pieces[place] for place in (0, 1, 3)] == [PRE, SUF, MID]
        (suffix, _), (prefix, _), (middle, _) = (pieces[place] for place in (2, 4, 5))
    else:
        assert [pieces[place] for place in (0, 2, 4)] == [PRE, SUF, MID]
        (prefix, _), (suffix, _), (middle, _) = (pieces[place] for place in (1, 3, 5))
    assert len(pieces) == 6
    assert sum(is_special for _, is_special in pieces) == 3
    return prefix + middle + suffix


@given(st.text(max_size=12), KEYS, st.sampled_from(["psm", "spm", "mixed"]))
def test_the_pieces_hold_the_document(document: str, key: int, mode: str) -> None:
    """Whatever it is, wherever it is cut; of an empty document there is nothing to cut."""
    pieces = FillInTheMiddle(rate=1, mode=mode)(document, key=key)
    assert reassemble(pieces) == document
    assert len(pieces) == (6 if document else 1)


def test_the_orders_are_those_of_the_paper() -> None:
    """Pinned: a document, its key and where it is cut."""
    document = "0123456789"
    psm, spm = (FillInTheMiddle(rate=1, mode=mode)(document, key=5) for mode in ("psm", "spm"))
    (prefix, _), (suffix, _), (middle, _) = psm[1], psm[3], psm[5]
    assert psm == [PRE, (prefix, False), SUF, (suffix, False), MID, (middle, False)]
    assert spm == [PRE, SUF, (suffix, False), MID, (prefix, False), (middle, False)]
    assert (prefix, middle, suffix) == PINNED


PINNED = ("0123456", "7", "89")


def test_cuts_are_uniform_and_modes_even() -> None:
    """Every pair of places occurs, both ends included, and both modes."""
    step = FillInTheMiddle(rate=1)
    made = [step("ab", key=key) for key in range(3000)]
    cuts: dict[tuple[str, ...], int] = {}
    for pieces in made:
        texts = [text for text, is_special in pieces if not is_special]
        prefix, middle = (texts[1], texts[2]) if pieces[1] == SUF else (texts[0], texts[2])
        cuts[prefix, middle] = cuts.get((prefix, middle), 0) + 1
    assert len(cuts) == 6
    for (_, middle), count in cuts.items():
        expected = 3000 / 9 * (2 if middle else 1)
        assert abs(count - expected) < 0.25 * expected
    spm = sum(pieces[1] == SUF for pieces in made)
    assert 1350 < spm < 1650


@pytest.mark.parametrize(("rate", "low", "high"), [("0", 0, 0), (0.25, 400, 600), (1, 2000, 2000)])
def test_the_rate_is_the_share_that_is_cut(rate: float, low: int, high: int) -> None:
    """Decided by the key; others stay one text."""
    step = FillInTheMiddle(rate=rate)
    cut = sum(len(step("abc", key=key << 40)) == 6 for key in range(2000))
    assert low <= cut <= high


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 1.5}, "rate must be from 0 to 1"),
        ({"rate": True}, "rate must be a decimal"),
        ({"mode": "psmm"}, "mode must be one of psm, spm, mixed.*did you mean 'psm'"),
        ({"middle": ""}, "middle must be a non-empty text"),
        ({"middle": "<fim_prefix>"}, "another token than"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    """With their name."""
    with pytest.raises(RecipeError, match=message):
        FillInTheMiddle(**options)
