"""From documents to ids, also of documents that hold special tokens between their texts."""

from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.errors import RecipeError
from zephon_beam.sources.documents import Documents, Spans
from zephon_beam.tokenizer import Tokenizer, UnencodableError

Array = npt.NDArray[Any]


def encode_documents(tokenizer: Tokenizer, documents: Documents) -> tuple[Array, Array]:
    """Encode the documents of a part.

    Pieces of text are encoded each for itself and special tokens become their ids, so that the
    text of a special token inside a document stays text.

    Returns:
        (ids uint32[total], offsets int64[documents + 1], bounds of each document).

    Raises:
        RecipeError: a special token is not in the vocabulary.
        UnencodableError: a document can never be encoded.

    Determinism: each document's ids depend on its content and the tokenizer alone.
    """
    if documents.spans is None:
        return tokenizer.encode(documents.texts)
    return _encode_spans(tokenizer, documents.spans)


def _encode_spans(tokenizer: Tokenizer, spans: Spans) -> tuple[Array, Array]:
    r"""Encode all texts at once and put the special ids between them.

    pieces   <pre>  "def f("  <suf>  "x)"  <mid>  "..."
    lengths      1         3      1     2      1      1
    """
    special = spans.special
    texts = [text for text, token in zip(spans.pieces, special.tolist(), strict=True) if not token]
    names = [text for text, token in zip(spans.pieces, special.tolist(), strict=True) if token]
    try:
        ids, offsets = tokenizer.encode(texts)
    except UnencodableError as error:
        piece = int(np.flatnonzero(~special)[error.place])
        document = int(np.searchsorted(spans.bounds, piece, side="right")) - 1
        raise UnencodableError(str(error), place=document) from error
    lengths = np.ones(len(spans.pieces), np.int64)
    if spans.repeats is not None:
        lengths[:] = spans.repeats
    lengths[~special] = np.diff(offsets)
    ends = np.cumsum(lengths)
    inside = np.repeat(~special, lengths)
    joined = np.empty(len(inside), np.uint32)
    joined[inside] = ids
    known = {name: special_id(tokenizer, name) for name in dict.fromkeys(names)}
    joined[~inside] = np.repeat([known[name] for name in names], lengths[special])
    piece_offsets = np.zeros(len(ends) + 1, np.int64)
    piece_offsets[1:] = ends
    return joined, piece_offsets[spans.bounds]


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a special token.

    Raises:
        RecipeError: the vocabulary has no such token.
    """
    found = tokenizer.token_id(token)
    if found is None:
        raise RecipeError(
            f"special token must be in the tokenizer's vocabulary, got {token!r}; it would be "
            "plain text; add it to the tokenizer, or name the token that it has"
        )
    return found
