"""Documents that the tokenizer gives up: set aside, or the end of the run, as the recipe says."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.encode_documents import encode_documents
from zephon_beam.errors import BadRecordError
from zephon_beam.sources.documents import Documents, Quarantined
from zephon_beam.tokenizer import Tokenizer, UnencodableError

Array = npt.NDArray[Any]

UNENCODABLE = "unencodable"
"""Reason of documents that the tokenizer cannot encode."""


def encode_or_set_aside(
    tokenizer: Tokenizer,
    documents: Documents,
    *,
    quarantine: bool,
    file_name: Callable[[int], str],
) -> tuple[tuple[Array, Array], tuple[Quarantined, ...]]:
    """Encode the documents of a part; those that cannot be encoded are set aside.

    Args:
        tokenizer: what encodes.
        documents: the part.
        quarantine: whether a document may be set aside; it then has no tokens.
        file_name: name of a file of the catalog, relative to the data set's root.

    Returns:
        ((ids uint32[total], offsets int64[documents + 1]), what was set aside, in order of place).

    Raises:
        BadRecordError: a document cannot be encoded and may not be set aside.
    """
    found: list[Quarantined] = []
    while True:
        try:
            encoded = encode_documents(tokenizer, documents)
        except UnencodableError as error:
            place = error.place
            entry = Quarantined(
                place=place,
                file=file_name(int(documents.files[place])),
                locator=int(documents.locators[place]),
                reason=UNENCODABLE,
                message=str(error),
            )
            if not quarantine:
                raise BadRecordError(
                    f"{entry.file!r}, document at {entry.locator}: {error}; the stream cannot go "
                    "on without it; mend the document, or set bad_records.action: quarantine",
                    file=entry.file,
                    locator=entry.locator,
                    reason=entry.reason,
                ) from error
            found.append(entry)
            documents = _emptied(documents, place)
        else:
            return encoded, tuple(sorted(found, key=lambda entry: entry.place))


def _emptied(documents: Documents, place: int) -> Documents:
    """Return the part with nothing left of one document's content."""
    if documents.spans is None:
        texts = list(documents.texts)
        texts[place] = ""
        return replace(documents, texts=texts)
    spans = documents.spans
    first, end = spans.bounds[place : place + 2].tolist()
    pieces = list(spans.pieces)
    pieces[first:end] = [""] * (end - first)
    special: npt.NDArray[np.bool_] = spans.special.copy()
    special[first:end] = False
    return replace(documents, spans=replace(spans, pieces=pieces, special=special))
