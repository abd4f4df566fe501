"""The tiktoken backend: the definition of right for a rank file."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from transforms.tokenizers.rank_files import parse_ranks
from zephon_beam.errors import RecipeError
from zephon_beam.tokenizer import UnencodableError

Array = npt.NDArray[Any]

INSTALL = "pip install tiktoken"
_PAD_NAMES = ("<|pad|>", "<pad>", "[PAD]")


class TiktokenTokenizer:
    """Encodes as `tiktoken.Encoding.encode_ordinary` does; nothing is ever downloaded.

    With `allow_special` it encodes as `encode(text, allowed_special="all")` does.

    Determinism: ids depend on the ranks, the pattern, the special tokens and the text alone.
    """

    def __init__(
        self,
        content: bytes,
        *,
        pattern: str,
        special: Mapping[str, int],
        allow_special: bool,
        name: str,
    ) -> None:
        """Build the tokenizer from the content of a rank file.

        Raises:
            RecipeError: the file, the pattern or a special token is wrong, or tiktoken is not
                installed.
        """
        ranks = parse_ranks(content, name=name)
        _check_special(special, ranks)
        try:
            from tiktoken import Encoding
        except ImportError as error:
            raise RecipeError(
                f"tokenizer.path must be a tokenizer.json when tiktoken is not installed, got "
                f"{name!r}; a rank file cannot be used without it; {INSTALL}"
            ) from error
        try:
            self._backend = Encoding(
                name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=dict(special)
            )
        except ValueError as error:
            raise RecipeError(
                f"tokenizer.pattern must be a regular expression of tiktoken, got {pattern!r}: "
                f"{error}; text could not be split; write the pattern that belongs to {name!r}"
            ) from error
        self._ranks, self._special, self._name = ranks, dict(special), name
        self._allowed = frozenset(special) if allow_special else frozenset()

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max([*self._ranks.values(), *self._special.values()]) + 1

    @property
    def pad_id(self) -> int | None:
        """The id of a special token named like a padding token, None if there is none."""
        return next((self._special[name] for name in _PAD_NAMES if name in self._special), None)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token's text, None if there is no such token."""
        found = self._special.get(token)
        return self._ranks.get(token.encode()) if found is None else found

    def encode(self, texts: Sequence[str]) -> tuple[Array, Array]:
        """Encode documents; see `zephon_beam.tokenizer.Tokenizer.encode`.

        Raises:
            UnencodableError: tiktoken gives a document up: its split pattern goes back at most a
                million times, which e.g. a million spaces in a row need.
        """
        pieces = [np.empty(0, np.uint32)]
        offsets = np.zeros(len(texts) + 1, np.int64)
        for place, text in enumerate(texts):
            pieces.append(self._encode_one(place, text))
            offsets[place + 1] = offsets[place] + len(pieces[-1])
        return np.concatenate(pieces), offsets

    def _encode_one(self, place: int, text: str) -> Array:
        try:
            found: Array = self._backend.encode_to_numpy(
                text, allowed_special=self._allowed, disallowed_special=()
            )
        except ValueError as error:
            raise self._unencodable(place, error) from error
        except BaseException as error:
            # A panic of Rust code is no `Exception`; in a worker's thread it would end the thread
            # and leave the job waiting.
            if type(error).__name__ != "PanicException":
                raise
            raise self._unencodable(place, error) from error
        return found

    def _unencodable(self, place: int, error: BaseException) -> UnencodableError:
        return UnencodableError(
            f"text must be one that tiktoken can encode with {self._name!r}, got an error: {error}",
            place=place,
        )


def _check_special(special: Mapping[str, int], ranks: Mapping[bytes, int]) -> None:
    """Refuse ids that two tokens would share."""
    tokens: dict[int, object] = {rank: token for token, rank in ranks.items()}
    for text, number in special.items():
        if number in tokens:
            raise RecipeError(
                f"tokenizer.special.{text} must be an id of its own, got {number!r}, which "
                f"{tokens[number]!r} has; nobody could tell the two apart; the first free id is "
                f"{max([*ranks.values(), *special.values()]) + 1}"
            )
        tokens[number] = text
