"""What crosses a shuffle comes out as it went in."""

import numpy as np
import pytest

from transforms.lane_items import LaneDocuments, LaneDocumentsCoder
from zephon_beam.sequences import PartKey
from zephon_beam.sources.documents import Documents, Quarantined, Spans, TokenLists

KEY = PartKey(dataset=1, number=5, part=2)


QUARANTINED = Quarantined(place=1, file='a "b"', locator=-5, reason="utf8", message="\u6f22\n")
LISTS = TokenLists(
    tokens=np.array([70_000, 1, 2], np.uint32),
    offsets=np.array([0, 0, 3], np.int64),
    learned=np.array([0, 1, 0], np.uint8),
)


@pytest.mark.parametrize(
    ("texts", "lists"),
    [([], None), (["", "a\x00b", "\U0001f600 \u6f22"], None), (["", ""], LISTS)],
)
def test_documents_survive_encoding(texts: list[str], lists: TokenLists | None) -> None:
    """Every field is kept, also of an empty part."""
    count = len(texts)
    documents = Documents(
        texts=texts,
        files=np.arange(count, dtype=np.uint32),
        locators=np.arange(count, dtype=np.int64) << 33,
        outputs=np.arange(count, dtype=np.uint32) * 2,
        source_bytes=12,
        last=True,
        tokens=lists,
        quarantined=(QUARANTINED,) * count,
    )
    coder = LaneDocumentsCoder()
    again = coder.decode(coder.encode(LaneDocuments(key=KEY, pass_number=3, documents=documents)))
    assert again.head is None
    assert (again.key, again.pass_number) == (KEY, 3)
    assert again.documents is not None
    assert again.documents.texts == texts
    assert again.documents.files.tolist() == documents.files.tolist()
    assert again.documents.locators.tolist() == documents.locators.tolist()
    assert again.documents.outputs.tolist() == documents.outputs.tolist()
    assert (again.documents.source_bytes, again.documents.last) == (12, True)
    assert again.documents.quarantined == documents.quarantined
    if lists is None:
        assert again.documents.tokens is None
    else:
        found = again.documents.tokens
        assert found is not None
        assert found.learned is not None
        assert lists.learned is not None
        assert found.tokens.tolist() == lists.tokens.tolist()
        assert found.offsets.tolist() == lists.offsets.tolist()
        assert found.learned.tolist() == lists.learned.tolist()


@pytest.mark.parametrize("head", [b"", b"carry"])
def test_heads_survive_encoding(head: bytes) -> None:
    """A head passes through, also that of a fresh lane, which is empty."""
    coder = LaneDocumentsCoder()
    assert coder.decode(coder.encode(LaneDocuments(head=head))) == LaneDocuments(head=head)


@pytest.mark.parametrize("repeats", [None, np.array([300, 0, 0, 1], np.int64)])
def test_spans_survive_encoding(repeats: np.ndarray | None) -> None:
    """Pieces, what they are, how often and whose; also of a document without any."""
    spans = Spans(
        pieces=["<a>", "x \U0001f600", "", "<b>"],
        special=np.array([True, False, False, True]),
        bounds=np.array([0, 3, 3, 4], np.int64),
        repeats=repeats,
    )
    documents = Documents(
        texts=[""] * 3,
        files=np.zeros(3, np.uint32),
        locators=np.zeros(3, np.int64),
        outputs=np.zeros(3, np.uint32),
        source_bytes=1,
        last=False,
        spans=spans,
    )
    coder = LaneDocumentsCoder()
    again = coder.decode(coder.encode(LaneDocuments(key=KEY, documents=documents)))
    assert again.documents is not None
    found = again.documents.spans
    assert found is not None
    assert found.pieces == spans.pieces
    assert (found.repeats is None) == (repeats is None)
    assert found.repeats is None or found.repeats.tolist() == [300, 0, 0, 1]
    assert found.special.tolist() == spans.special.tolist()
    assert found.bounds.tolist() == spans.bounds.tolist()
