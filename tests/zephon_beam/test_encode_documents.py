"""Documents with special tokens become ids piece by piece."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.demo_corpus import TOKENIZER_FILE
from transforms.tokenizers.hugging_face import HuggingFaceTokenizer
from zephon_beam.encode_documents import encode_documents
from zephon_beam.errors import RecipeError
from zephon_beam.sources.documents import Documents, Spans, take_documents

TOKENIZER = HuggingFaceTokenizer(TOKENIZER_FILE.read_bytes(), allow_special=False, name="demo")
TOKENS = {"<|endoftext|>": 0, "<|pad|>": 1}

Piece = tuple[str, bool]
pieces = st.one_of(
    st.tuples(st.text(max_size=6) | st.sampled_from(sorted(TOKENS)), st.just(False)),
    st.tuples(st.sampled_from(sorted(TOKENS)), st.just(True)),
)


def part(documents: Sequence[Sequence[Piece]]) -> Documents:
    """Return a part of documents made of pieces."""
    count = len(documents)
    flat = [piece for document in documents for piece in document]
    return Documents(
        texts=[""] * count,
        files=np.zeros(count, np.uint32),
        locators=np.arange(count, dtype=np.int64),
        outputs=np.zeros(count, np.uint32),
        source_bytes=0,
        last=True,
        spans=Spans(
            pieces=[text for text, _ in flat],
            special=np.array([special for _, special in flat], bool),
            bounds=np.cumsum([0, *map(len, documents)]),
        ),
    )


def expected(document: Sequence[Piece]) -> list[int]:
    """Encode one document slowly."""
    ids: list[int] = []
    for text, special in document:
        ids += [TOKENS[text]] if special else TOKENIZER.encode([text])[0].tolist()
    return ids


@given(st.lists(st.lists(pieces, max_size=5), max_size=4), st.randoms(use_true_random=False))
def test_pieces_are_encoded_each_for_itself_whatever_lies_beside_them(
    documents: list[list[Piece]], random: "object"
) -> None:
    """In any order of documents; a special token's text in a document stays text."""
    order = list(range(len(documents)))
    random.shuffle(order)  # type: ignore[attr-defined]
    taken = take_documents(part(documents), order)
    ids, offsets = encode_documents(TOKENIZER, taken)
    assert ids.dtype == np.uint32
    assert len(offsets) == len(documents) + 1
    bounds = offsets.tolist()
    found = [ids[a:b].tolist() for a, b in pairwise(bounds)]
    assert found == [expected(documents[place]) for place in order]


def test_the_text_of_a_special_token_is_not_that_token() -> None:
    """What a document says cannot become a control token."""
    ids, _ = encode_documents(TOKENIZER, part([[("<|pad|>", False)], [("<|pad|>", True)]]))
    assert ids.tolist().count(TOKENS["<|pad|>"]) == 1
    assert ids[-1] == TOKENS["<|pad|>"]
    assert len(ids) > 2


def test_an_unknown_special_token_is_refused() -> None:
    """It is never encoded as text instead."""
    with pytest.raises(RecipeError, match="must be in the tokenizer's vocabulary, got '<nope>'"):
        encode_documents(TOKENIZER, part([[("<nope>", True)]]))


def test_a_special_token_stands_as_often_as_its_piece_says() -> None:
    """Repeats of texts mean nothing; documents keep their bounds."""
    documents = part(
        [[("a", False), ("<|pad|>", True)], [], [("<|endoftext|>", True), ("b", False)]]
    )
    spans = documents.spans
    assert spans is not None
    repeated = replace(spans, repeats=np.array([9, 5, 2, 0]))
    ids, offsets = encode_documents(TOKENIZER, replace(documents, spans=repeated))
    (first,), (last,) = (TOKENIZER.encode([text])[0].tolist() for text in ("a", "b"))
    assert ids.tolist() == [first, 1, 1, 1, 1, 1, 0, 0, last]
    assert offsets.tolist() == [0, 6, 6, 9]
    reversed_ids, _ = encode_documents(
        TOKENIZER, take_documents(replace(documents, spans=repeated), [2, 0])
    )
    assert reversed_ids.tolist() == [0, 0, last, first, 1, 1, 1, 1, 1]
