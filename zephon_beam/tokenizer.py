"""The tokenizer protocol: flat arrays out, and the framing of documents by `bos` and `eos`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zephon_beam.errors import ZephonBeamError

Array = npt.NDArray[Any]


class UnencodableError(ZephonBeamError, ValueError):
    """A tokenizer can never encode one of the documents that it was given."""

    def __init__(self, message: str, *, place: int) -> None:
        super().__init__(message)
        self.place = place
        """Place of the document among those given."""

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the place when a worker process sends the error to its parent."""
        return _rebuild_unencodable, (str(self), self.place)


def _rebuild_unencodable(message: str, place: int) -> UnencodableError:
    return UnencodableError(message, place=place)


class Tokenizer(Protocol):
    """Turns text into ids, one document independent of the others."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    def token_id(self, token: str) -> int | None:
        """Return the id of a token's text, None if the vocabulary has no such token."""

    @property
    def pad_id(self) -> int | None:
        """The tokenizer's own padding id, None if it has none."""

    def encode(self, texts: Sequence[str]) -> tuple[Array, Array]:
        """Encode documents without adding special tokens.

        Returns:
            (ids uint32[total], offsets int64[len(texts) + 1], bounds of each document).

        Raises:
            UnencodableError: a document can never be encoded.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Framing:
    """Ids put before and after each document, None: nothing."""

    bos: int | None
    eos: int | None


def frame_documents(
    encoded: tuple[Array, Array], framing: Framing, dtype: Any, *, kept: Array | None = None
) -> tuple[Array, Array]:
    """Add `bos` and `eos` to every document and narrow the ids.

    Args:
        encoded: (ids uint32[total], offsets int64[documents + 1]).
        framing: what to add.
        dtype: type of the result, wide enough for the vocabulary.
        kept: bool[documents]; the others are empty and stay so. None: all are kept.

    Returns:
        (tokens dtype[total + added], offsets int64[documents + 1]).
    """
    ids, offsets = encoded
    before, after = int(framing.bos is not None), int(framing.eos is not None)
    if not before and not after:
        return ids.astype(dtype), offsets
    count = len(offsets) - 1
    shift = before + after
    framed = np.arange(count + 1, dtype=np.int64)
    if kept is not None:
        np.cumsum(kept, out=framed[1:])
    framed_offsets = offsets + shift * framed
    tokens = np.empty(len(ids) + shift * int(framed[-1]), dtype)
    inside = np.ones(len(tokens), bool)
    starts, ends = framed_offsets[:-1], framed_offsets[1:]
    if kept is not None:
        starts, ends = starts[kept], ends[kept]
    if framing.bos is not None:
        inside[starts] = False
        tokens[starts] = framing.bos
    if framing.eos is not None:
        inside[ends - 1] = False
        tokens[ends - 1] = framing.eos
    tokens[inside] = ids
    return tokens, framed_offsets
