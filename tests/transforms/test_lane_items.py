"""What crosses a shuffle comes out as it went in."""

import numpy as np
import pytest

from transforms.lane_items import LaneDocuments, LaneDocumentsCoder
from zephon_beam.sequences import PartKey
from zephon_beam.sources.documents import Documents

KEY = PartKey(dataset=1, number=5, part=2)


@pytest.mark.parametrize("texts", [[], ["", "a\x00b", "\U0001f600 \u6f22"]])
def test_documents_survive_encoding(texts: list[str]) -> None:
    """Every field is kept, also of an empty part."""
    count = len(texts)
    documents = Documents(
        texts=texts,
        files=np.arange(count, dtype=np.uint32),
        locators=np.arange(count, dtype=np.int64) << 33,
        source_bytes=12,
        last=True,
    )
    coder = LaneDocumentsCoder()
    again = coder.decode(coder.encode(LaneDocuments(key=KEY, pass_number=3, documents=documents)))
    assert again.head is None
    assert (again.key, again.pass_number) == (KEY, 3)
    assert again.documents is not None
    assert again.documents.texts == texts
    assert again.documents.files.tolist() == documents.files.tolist()
    assert again.documents.locators.tolist() == documents.locators.tolist()
    assert (again.documents.source_bytes, again.documents.last) == (12, True)


@pytest.mark.parametrize("head", [b"", b"carry"])
def test_heads_survive_encoding(head: bytes) -> None:
    """A head passes through, also that of a fresh lane, which is empty."""
    coder = LaneDocumentsCoder()
    assert coder.decode(coder.encode(LaneDocuments(head=head))) == LaneDocuments(head=head)
