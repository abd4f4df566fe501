"""`bos` and `eos` are added where a template has not written them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.chat.framing import missing_ends, widen
from zephon_beam.tokenizer import Framing


def missing(
    documents: list[list[int]], last_written: list[int], bos: int | None, eos: int | None
) -> tuple[list[bool], list[bool]]:
    """Ask about documents; `last_written` is a place inside each."""
    offsets = np.concatenate(([0], np.cumsum([len(d) for d in documents]))).astype(np.int64)
    ids = np.array([token for document in documents for token in document], np.uint32)
    places = offsets[:-1] + np.array(last_written)
    before, after = missing_ends(ids, offsets, places, Framing(bos=bos, eos=eos))
    return before.tolist(), after.tolist()


def test_each_end_is_missing_only_where_the_rendering_lacks_it() -> None:
    """White space behind the last token does not hide it."""
    documents = [[1, 5, 2, 9], [5, 2], [1, 5], [], [2, 9]]
    before, after = missing(documents, [2, 1, 1, 0, 0], bos=1, eos=2)
    assert before == [False, True, False, False, True]
    assert after == [False, False, True, False, False]


def test_nothing_is_missing_of_what_the_recipe_does_not_ask_for() -> None:
    """Null means nothing, not token 0."""
    assert missing([[0, 5], [5]], [1, 0], bos=None, eos=None) == ([False] * 2, [False] * 2)


documents = st.lists(
    st.tuples(st.lists(st.integers(3, 9), max_size=4), st.booleans(), st.booleans())
)


@given(documents)
def test_widening_puts_values_at_the_ends_of_those_asked_for(
    entries: list[tuple[list[int], bool, bool]],
) -> None:
    """And moves nothing else."""
    offsets = np.concatenate(([0], np.cumsum([len(d) for d, _, _ in entries]))).astype(np.int64)
    values = np.array([token for d, _, _ in entries for token in d], np.uint16)
    before = np.array([first for _, first, _ in entries], bool)
    after = np.array([last for _, _, last in entries], bool)
    widened, new_offsets = widen(values, offsets, before, after, first=1, last=2)
    expected = [[1] * first + d + [2] * last for d, first, last in entries]
    found = [
        widened[new_offsets[place] : new_offsets[place + 1]].tolist()
        for place in range(len(entries))
    ]
    assert found == expected
    assert widened.dtype == np.uint16
