"""Each document is in one share, for ever, whatever lies beside it."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.holdout import held_out, take_share
from zephon_beam.keyed import keyed_int
from zephon_beam.recipe import HoldoutRecipe
from zephon_beam.sources.documents import Documents, Quarantined

NAMES = ("a.jsonl", "b/c.jsonl", "d.jsonl")
FRACTIONS = st.integers(1, 999).map(lambda n: str(Decimal(n) / 1000))
PLACES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2**40)), unique=True, max_size=30
).map(sorted)


def part(places: list[tuple[int, int]], bad: tuple[int, ...] = ()) -> Documents:
    """Return a part of documents at (file, locator)."""
    return Documents(
        texts=[f"{file}:{locator}" for file, locator in places],
        files=np.array([file for file, _ in places], np.uint32),
        locators=np.array([locator for _, locator in places], np.int64),
        outputs=np.zeros(len(places), np.uint32),
        source_bytes=5,
        last=True,
        quarantined=tuple(
            Quarantined(
                place=place,
                file=NAMES[places[place][0]],
                locator=places[place][1],
                reason="json",
                message="",
            )
            for place in bad
        ),
    )


def share(documents: Documents, fraction: str, take: str, dataset: str = "web") -> Documents:
    """Take a share of a part."""
    holdout = HoldoutRecipe(fraction=fraction, take=take)
    return take_share(documents, holdout, dataset=dataset, file_name=NAMES.__getitem__)


@given(PLACES, FRACTIONS, st.data())
def test_the_shares_hold_every_document_once_and_in_order(
    places: list[tuple[int, int]], fraction: str, data: st.DataObject
) -> None:
    """Also those that were set aside, whose places move with them."""
    bad = data.draw(st.sets(st.sampled_from(range(len(places)))) if places else st.just(set()))
    documents = part(places, tuple(sorted(bad)))
    train, held = (share(documents, fraction, take) for take in ("train", "eval"))
    for found in (train, held):
        assert found.texts == [text for text in documents.texts if text in found.texts]
        assert (found.source_bytes, found.last) == (5, True)
        for entry in found.quarantined:
            assert found.texts[entry.place] == f"{NAMES.index(entry.file)}:{entry.locator}"
    assert sorted(train.texts + held.texts) == sorted(documents.texts)
    assert len(train.quarantined) + len(held.quarantined) == len(bad)


@given(PLACES, FRACTIONS)
def test_a_document_is_decided_alone_and_exactly(
    places: list[tuple[int, int]], fraction: str
) -> None:
    """By one comparison of integers: hash < fraction · 2^64."""
    exact = Fraction(fraction)
    expected = [
        keyed_int("holdout", "web", NAMES[file], locator) * exact.denominator
        < exact.numerator * 2**64
        for file, locator in places
    ]
    holdout = HoldoutRecipe(fraction=fraction)
    found = held_out(part(places), holdout, dataset="web", file_name=NAMES.__getitem__)
    assert found.tolist() == expected


def test_the_choice_is_pinned() -> None:
    """A training run of years ago and an evaluation of today agree."""
    documents = part([(file, 100 * n) for file in range(2) for n in range(30)])
    assert share(documents, "0.1", "eval").texts == PINNED
    assert share(documents, "0.1", "eval", "other").texts != PINNED


PINNED = ["0:900", "1:800", "1:1700", "1:1800", "1:2500", "1:2700"]


@pytest.mark.parametrize(("fraction", "low", "high"), [("0.5", 4800, 5200), ("0.01", 70, 130)])
def test_about_the_fraction_is_held_out(fraction: str, low: int, high: int) -> None:
    """And a larger fraction holds out the same documents and more."""
    documents = part([(0, 17 * n) for n in range(10_000)])
    held = share(documents, fraction, "eval").texts
    assert low < len(held) < high
    assert set(held) < set(share(documents, "0.6", "eval").texts)


def test_a_part_that_is_taken_whole_is_not_copied() -> None:
    """A recipe pays for what it leaves out only."""
    documents = part([(0, 5)])
    taken = [share(documents, "0.5", take) for take in ("train", "eval")]
    assert [found is documents for found in taken].count(True) == 1
