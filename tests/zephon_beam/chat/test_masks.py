"""Masks from spans, compared with what one writes down token by token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.chat.masks import loss_mask, tokens_within, whole_mask

lengths = st.lists(st.integers(0, 4), max_size=12)


@given(tokens=lengths, gaps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=6))
def test_a_token_is_learned_iff_it_shares_a_character_with_a_span(
    tokens: list[int], gaps: list[tuple[int, int]]
) -> None:
    """So a token that straddles an edge is learned, and an empty span learns nothing."""
    edges = np.concatenate(([0], np.cumsum(tokens))).astype(np.int64)
    spans = []
    place = 0
    for gap, length in gaps:
        spans.append((place + gap, place + gap + length))
        place += gap + length
    inside = {character for first, last in spans for character in range(first, last)}
    expected = [
        any(character in inside for character in range(first, last))
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    bounds = np.array(spans, np.int64).reshape(-1, 2)
    found = tokens_within(edges[:-1], edges[1:], bounds)
    filled = np.diff(edges) > 0
    assert found.dtype == bool
    assert found[filled].tolist() == np.array(expected, bool)[filled].tolist()


def test_all_tokens_of_one_character_are_learned_with_it() -> None:
    """A byte-level tokenizer makes several tokens of one rare character."""
    starts = np.array([0, 1, 1, 1, 2])
    ends = np.array([1, 2, 2, 2, 3])
    assert tokens_within(starts, ends, np.array([[1, 2]])).tolist() == [0, 1, 1, 1, 0]


@given(st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=6))
def test_the_mask_belongs_to_the_label_at_its_place(documents: list[list[int]]) -> None:
    """1 iff the token that follows in the same document is learned."""
    offsets = np.concatenate(([0], np.cumsum([len(document) for document in documents])))
    learned = np.array([value for document in documents for value in document], np.uint8)
    expected = [
        document[place + 1] if place + 1 < len(document) else 0
        for document in documents
        for place in range(len(document))
    ]
    offsets = offsets.astype(np.int64)
    assert loss_mask(learned, offsets).tolist() == expected
    ones = [int(place + 1 < len(d)) for d in documents for place in range(len(d))]
    assert whole_mask(offsets).tolist() == ones
