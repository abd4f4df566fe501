"""The Hugging Face `tokenizers` backend: the definition of right for a `tokenizer.json`."""

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as Backend

from zephon_beam.errors import RecipeError

Array = npt.NDArray[Any]


def padding_id(
    stored: Mapping[str, Any] | None, token_id: Callable[[str], int | None]
) -> int | None:
    """Return the padding id that a file stores, or that of a token named like a padding token."""
    found = (stored or {}).get("pad_id")
    if isinstance(found, int):
        return found
    named = (token_id(token) for token in ("<|pad|>", "<pad>", "[PAD]"))
    return next((token for token in named if token is not None), None)


class HuggingFaceTokenizer:
    """Encodes with `tokenizers`; stored truncation and padding are switched off.

    Special-token text inside documents stays plain text unless `allow_special`.

    Determinism: ids depend on the file and the text alone; a file with dropout is refused.
    """

    def __init__(self, content: bytes, *, allow_special: bool, name: str) -> None:
        """Build the tokenizer from the content of a `tokenizer.json`.

        Raises:
            RecipeError: not a tokenizer file, or one that is random.
        """
        try:
            description = json.loads(content)
            self._backend = Backend.from_buffer(content)
        except Exception as error:
            raise RecipeError(
                f"tokenizer.path must be a Hugging Face tokenizer.json, got {name!r}: {error}; "
                "save one with `tokenizer.save(...)`"
            ) from error
        if (description.get("model") or {}).get("dropout"):
            raise RecipeError(
                f"tokenizer.path must be a tokenizer without dropout, got {name!r}; with dropout "
                "the same text has other ids each time; set model.dropout to null"
            )
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = not allow_special
        ids = self._backend.get_vocab(with_added_tokens=True).values()
        self._vocab_size = max(ids, default=-1) + 1
        self._padding = description.get("padding")

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return self._vocab_size

    @property
    def pad_id(self) -> int | None:
        """The padding id that the file names, or that of a token named like a padding token."""
        return padding_id(self._padding, self.token_id)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token's text, None if there is no such token."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def encode(self, texts: Sequence[str]) -> tuple[Array, Array]:
        """Encode documents; see `zephon_beam.tokenizer.Tokenizer.encode`."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        # The library gives lists; an array of C integers takes one three times as fast as NumPy.
        ids = array("I")
        ends = [0]
        for encoding in encodings:
            ids += array("I", encoding.ids)
            ends.append(len(ids))
        return np.frombuffer(ids, np.uint32), np.array(ends, np.int64)
