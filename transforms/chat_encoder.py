"""Encode rendered conversations: the template's special tokens become ids, a document's do not."""

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend

from zephon_beam.chat.marks import Unmarked
from zephon_beam.chat.masks import tokens_within
from zephon_beam.errors import RecipeError
from zephon_beam.tokenizer import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedTexts:
    """Tokens of several texts, one behind the other, and the characters they stand for.

    ids: uint32[total]; starts, ends: int64[total], characters in all texts joined together;
    offsets: int64[texts + 1], bounds of each text's tokens; characters: int64[texts + 1], bounds
    of each text in the joined text.
    """

    ids: Array
    starts: Array
    ends: Array
    offsets: Array
    characters: Array


class ChatEncoder:
    """Encodes renderings as `apply_chat_template` of Transformers does.

    Special-token text that a document brought stays text: where there is such text, the stretch
    between the template's own special tokens around it is encoded as plain text is elsewhere.

    Determinism: ids depend on the tokenizer's file and on each rendering alone.
    """

    def __init__(self, content: bytes, *, name: str) -> None:
        """Build the encoder from the content of a `tokenizer.json`.

        Raises:
            RecipeError: not a tokenizer file.
        """
        self._content = content
        self._name = name
        added = _build(content, name, True).get_added_tokens_decoder()
        special = {number: token.content for number, token in added.items() if token.special}
        self._is_special = np.zeros(max(special, default=-1) + 2, bool)
        self._is_special[list(special)] = True
        self.special_tokens = tuple(special[number] for number in sorted(special))
        """Text of each special token, by id."""

    def token_id(self, token: str) -> int:
        """Return the id of a token.

        Raises:
            RecipeError: the vocabulary does not have it.
        """
        found: int | None = _build(self._content, self._name, True).token_to_id(token)
        if found is None:
            raise RecipeError(
                f"token must be in the vocabulary of {self._name!r}, got {token!r}; it would be "
                "plain text; add it to the tokenizer, or name the token that it has"
            )
        return found

    def encode(self, texts: Sequence[Unmarked]) -> EncodedTexts:
        """Encode renderings whose marks were taken out."""
        batches = self._encode_batch([text.text for text in texts], special=True)
        for place, text in enumerate(texts):
            if text.foreign:
                batches[place] = self._plain_between(batches[place], text)
        counts = [len(ids) for ids, _ in batches]
        offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        lengths = [len(text.text) for text in texts]
        characters = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        ids, edges = array("I"), array("I")
        for found, places in batches:
            ids += found
            edges += places
        bounds = np.frombuffer(edges, np.uint32).reshape(-1, 2).astype(np.int64)
        bounds += np.repeat(characters[:-1], counts)[:, None]
        return EncodedTexts(
            ids=np.frombuffer(ids, np.uint32),
            starts=bounds[:, 0],
            ends=bounds[:, 1],
            offsets=offsets,
            characters=characters,
        )

    def _encode_batch(
        self, texts: list[str], *, special: bool
    ) -> list[tuple["array[int]", "array[int]"]]:
        """Return ids and (start, end) of each token, of every text."""
        backend = _build(self._content, self._name, special)
        encodings = backend.encode_batch(texts, add_special_tokens=False)
        return [
            (array("I", encoding.ids), array("I", chain.from_iterable(encoding.offsets)))
            for encoding in encodings
        ]

    def _plain_between(
        self, encoded: tuple["array[int]", "array[int]"], text: Unmarked
    ) -> tuple["array[int]", "array[int]"]:
        """Encode the stretches around foreign special tokens anew, without special tokens."""
        ids, edges = encoded
        numbers = np.frombuffer(ids, np.uint32)
        bounds = np.frombuffer(edges, np.uint32).reshape(-1, 2)
        special = self._is_special[np.minimum(numbers, len(self._is_special) - 1)]
        touched = tokens_within(bounds[:, 0], bounds[:, 1], np.array(text.foreign))
        foreign = special & (touched)
        own = np.flatnonzero(special & ~foreign)
        edges_of_own = np.concatenate(([-1], own, [len(numbers)]))
        new_ids, new_edges = array("I"), array("I")
        for left, right in zip(edges_of_own[:-1].tolist(), edges_of_own[1:].tolist(), strict=True):
            first, last = left + 1, right
            if foreign[first:last].any():
                start = int(bounds[left, 1]) if left >= 0 else 0
                end = int(bounds[right, 0]) if right < len(numbers) else len(text.text)
                plain, places = self._encode_batch([text.text[start:end]], special=False)[0]
                new_ids += plain
                new_edges += array("I", [place + start for place in places])
            else:
                new_ids += ids[first:last]
                new_edges += edges[2 * first : 2 * last]
            if right < len(numbers):
                new_ids.append(ids[right])
                new_edges += edges[2 * right : 2 * right + 2]
        return new_ids, new_edges


@lru_cache(maxsize=4)
def _build(content: bytes, name: str, special: bool) -> Any:
    """Build each backend once in a process; it is never changed, for threads share it."""
    try:
        json.loads(content)
        backend = Backend.from_buffer(content)
    except Exception as error:
        raise RecipeError(
            f"tokenizer.path must be a Hugging Face tokenizer.json when a data set has messages, "
            f"got {name!r}: {error}; name the folder that the model came in"
        ) from error
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = not special
    return backend
