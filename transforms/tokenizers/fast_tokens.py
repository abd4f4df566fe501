"""The fastokens backend: much faster than `tokenizers`, for the files that the gate admits."""

import json
import os
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from transforms.tokenizers.allow_list import encoding_part
from transforms.tokenizers.hugging_face import padding_id
from zephon_beam.errors import ZephonBeamError

Array = npt.NDArray[Any]


class FastTokenizer:
    """Encodes with fastokens; what it says of the vocabulary it reads from the file.

    Determinism: ids equal those of `HuggingFaceTokenizer` for a file that
    `transforms.tokenizers.gate` admits; without its verdict nothing is promised.
    """

    def __init__(self, content: bytes, *, allow_special: bool, name: str) -> None:
        """Build the tokenizer from the content of a `tokenizer.json`.

        Raises:
            ImportError: fastokens is not installed.
            ZephonBeamError: fastokens cannot use the file.
        """
        self._allow_special, self._name = allow_special, name
        # A Beam worker is the unit of parallelism. The library's own threads cost a third more
        # processor time for less than a worker's gain, and cut documents where one thread does
        # not; they are counted once, when the first text is encoded.
        os.environ["FASTOKENS_BPE_THREADS"] = "1"
        from fastokens import Tokenizer as Backend

        description = json.loads(content)
        with_file = f"fastokens must be able to load {name!r}"
        self._backend = _guarded(with_file, Backend.from_json_str, encoding_part(description))
        self._ids: dict[str, int] = dict(description["model"]["vocab"])
        # An added token may be one of the vocabulary; the gate refuses another id for it.
        for token in description.get("added_tokens") or []:
            self._ids[token["content"]] = token["id"]
        self._padding = description.get("padding")

    def allowing_special(self, allow: bool) -> "FastTokenizer":
        """Return the same tokenizer with special-token text in documents allowed, or not."""
        other = copy(self)
        other._allow_special = allow
        return other

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self._ids.values(), default=-1) + 1

    @property
    def pad_id(self) -> int | None:
        """The padding id that the file names, or that of a token named like a padding token."""
        return padding_id(self._padding, self.token_id)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token's text, None if there is no such token."""
        return self._ids.get(token)

    def encode(self, texts: Sequence[str]) -> tuple[Array, Array]:
        """Encode documents; see `zephon_beam.tokenizer.Tokenizer.encode`."""
        ids, offsets = _guarded(
            f"fastokens must be able to encode with {self._name!r}",
            self._backend.encode_batch_flat,
            list(texts),
            split_special_tokens=not self._allow_special,
        )
        return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<u8").astype(np.int64)


def _guarded(rule: str, call: Any, *args: Any, **options: Any) -> Any:
    """Call into the library and name what went wrong.

    A panic of its Rust code is no `Exception`; in a worker's thread it would end the thread and
    leave the job waiting.
    """
    try:
        return call(*args, **options)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ZephonBeamError(
            f"{rule}, got {type(error).__name__}: {error}; nothing is lost; run again with "
            "--backend hf, which gives the same tokens"
        ) from error
