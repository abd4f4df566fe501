"""Placeholders among tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.media.placeholders import empty_documents, forged_documents, media_loss_mask
from zephon_beam.sources.documents import Spans

documents = st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=6)


def flat(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return documents as (ids, offsets)."""
    ids = np.array([token for tokens in lists for token in tokens], np.uint32)
    return ids, np.cumsum([0, *map(len, lists)]).astype(np.int64)


@given(documents)
def test_a_label_counts_unless_it_is_a_placeholder(lists: list[list[int]]) -> None:
    """The mask belongs to the token that follows in the same document."""
    ids, offsets = flat(lists)
    expected = [
        int(place + 1 < len(tokens) and tokens[place + 1] not in (0, 1))
        for tokens in lists
        for place in range(len(tokens))
    ]
    assert media_loss_mask(ids, offsets, [0, 1]).tolist() == expected


@given(documents, st.data())
def test_emptying_leaves_the_other_documents(lists: list[list[int]], data: st.DataObject) -> None:
    """In their places."""
    chosen = data.draw(st.lists(st.booleans(), min_size=len(lists), max_size=len(lists)))
    ids, offsets = empty_documents(*flat(lists), np.array(chosen))
    kept = [[] if gone else tokens for gone, tokens in zip(chosen, lists, strict=True)]
    assert ids.tolist() == flat(kept)[0].tolist()
    assert offsets.tolist() == flat(kept)[1].tolist()


def test_a_document_with_more_placeholders_than_items_is_forged() -> None:
    """Those that items bring are expected, however often they stand there."""
    spans = Spans(
        pieces=["a", "<image>", "b", "c"],
        special=np.array([False, True, False, False]),
        bounds=np.array([0, 2, 2, 4]),
        repeats=np.array([0, 3, 0, 0]),
    )
    ids = np.array([5, 1, 1, 1, 6, 1, 7])
    offsets = np.array([0, 4, 4, 7])
    assert forged_documents(ids, offsets, spans, [1]).tolist() == [False, False, True]
    ids[5] = 8
    assert not forged_documents(ids, offsets, spans, [1]).any()
