"""Framing of documents that are tokens already, against a slow reference."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.sources.documents import TokenLists
from zephon_beam.token_framing import frame_token_lists
from zephon_beam.tokenizer import Framing

ids = st.one_of(st.none(), st.integers(0, 2))
rows = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1)), max_size=5), st.booleans()),
    max_size=8,
)


def reference(document: list[tuple[int, int]], framing: Framing) -> tuple[list[int], list[int]]:
    """Return (tokens, loss mask) of one document, token by token."""
    framed = list(document)
    if framing.bos is not None and (not document or document[0][0] != framing.bos):
        framed.insert(0, (framing.bos, 0))
    if framing.eos is not None and (not document or document[-1][0] != framing.eos):
        framed.append((framing.eos, 1))
    tokens = [token for token, _ in framed]
    return tokens, [learned for _, learned in framed[1:]] + [0] * bool(framed)


@given(rows, ids, ids)
def test_documents_are_framed_once_and_masks_moved_to_the_labels(
    rows: list[tuple[list[tuple[int, int]], bool]], bos: int | None, eos: int | None
) -> None:
    """Those set aside are empty and stay so."""
    framing = Framing(bos=bos, eos=eos)
    documents = [document if kept else [] for document, kept in rows]
    flat = [pair for document in documents for pair in document]
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    tokens = np.array([token for token, _ in flat], np.uint32)
    learned = np.array([mark for _, mark in flat], np.uint8)
    kept = np.array([keep for _, keep in rows], bool)
    lists = TokenLists(tokens=tokens, offsets=offsets, learned=learned)
    found, bounds, mask = frame_token_lists(lists, framing, np.uint16, kept=kept)
    assert mask is not None
    assert found.dtype == np.uint16
    spans = pairwise(bounds.tolist())
    expected = [
        reference(d, framing) if k else ([], []) for d, (_, k) in zip(documents, rows, strict=True)
    ]
    assert [(found[a:b].tolist(), mask[a:b].tolist()) for a, b in spans] == expected
    plain = TokenLists(tokens=tokens, offsets=offsets)
    again, same, none = frame_token_lists(plain, framing, np.uint16, kept=kept)
    assert none is None
    np.testing.assert_array_equal(again, found)
    np.testing.assert_array_equal(same, bounds)
