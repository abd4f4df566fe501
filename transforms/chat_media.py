"""Images and videos in rendered conversations: from one placeholder an item to all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transforms.chat_encoder import ChatEncoder, EncodedTexts
from zephon_beam.chat.marks import Unmarked
from zephon_beam.chat.masks import tokens_within
from zephon_beam.errors import BadRecordError
from zephon_beam.media.placeholders import (
    describe_items,
    empty_documents,
    placeholder_counts,
    repeat_tokens,
)
from zephon_beam.recipe_media import MediaRecipe
from zephon_beam.sources.documents import Spans
from zephon_beam.tokenizer import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Expanded:
    """Conversations with all placeholders of their items; those at fault are empty."""

    tokens: Array
    learned: Array
    offsets: Array
    faults: tuple[tuple[int, BadRecordError], ...]
    """Places of conversations whose placeholders are not those of their items, and why."""


class ChatMedia:
    """Knows the tokens that stand for items in a conversation.

    Determinism: depends on the recipe, the tokenizer and each conversation alone.
    """

    def __init__(self, media: MediaRecipe, encoder: ChatEncoder) -> None:
        """Look the tokens up.

        Raises:
            RecipeError: one is not in the vocabulary.
        """
        self.tokens = media.tokens
        """Texts that only the template may write."""
        self._image = encoder.token_id(media.token("image"))
        self._video = encoder.token_id(media.token("video"))
        self._ids = [encoder.token_id(name) for name in self.tokens]

    def is_media(self, ids: Array) -> Array:
        """Say which tokens stand for items or around them, bool[total]; none is learned."""
        return np.isin(ids, self._ids)

    def forged(self, encoded: EncodedTexts, rendered: Sequence[Unmarked]) -> list[int]:
        """Return the places of conversations whose texts came out as tokens of items."""
        found = []
        for place, text in enumerate(rendered):
            if text.foreign:
                first, last = encoded.offsets[place : place + 2].tolist()
                shift = int(encoded.characters[place])
                touched = tokens_within(
                    encoded.starts[first:last] - shift,
                    encoded.ends[first:last] - shift,
                    np.array(text.foreign),
                )
                if bool((touched & self.is_media(encoded.ids[first:last])).any()):
                    found.append(place)
        return found

    def expand(
        self,
        tokens: Array,
        learned: Array,
        offsets: Array,
        items: Spans,
        forged: Sequence[int],
    ) -> Expanded:
        """Write each placeholder as often as its item has visual tokens.

        Args:
            tokens: dtype[total], with one placeholder for each item.
            learned: uint8[total].
            offsets: int64[documents + 1], bounds of each conversation.
            items: of each conversation.
            forged: what `forged` returned.
        """
        counts, wrong = placeholder_counts(
            tokens, offsets, items, image=self._image, video=self._video
        )
        faults: list[tuple[int, BadRecordError]] = []
        for place in np.flatnonzero(wrong).tolist():
            if offsets[place] < offsets[place + 1] and place not in forged:
                own = tokens[int(offsets[place]) : int(offsets[place + 1])]
                faults.append((place, self._mismatch(own, describe_items(items, place))))
        faults += [(place, _forgery()) for place in forged]
        wrong[list(forged)] = True
        new_offsets, (new_tokens, new_learned) = repeat_tokens(counts, offsets, tokens, learned)
        if bool(wrong.any()):
            new_learned, _ = empty_documents(new_learned, new_offsets, wrong)
            new_tokens, new_offsets = empty_documents(new_tokens, new_offsets, wrong)
        return Expanded(
            tokens=new_tokens,
            learned=new_learned,
            offsets=new_offsets,
            faults=tuple(sorted(faults, key=lambda fault: fault[0])),
        )

    def _mismatch(self, tokens: Array, expected: str) -> BadRecordError:
        images, videos = (int((tokens == token).sum()) for token in (self._image, self._video))
        if self._image == self._video:
            found = f"{images} of {self.tokens[0]!r}, which stands for both,"
        else:
            found = f"{images} of images and {videos} of videos"
        return BadRecordError(
            f"the chat template must write one placeholder for each item, got {found} for "
            f"{expected}; take the template of the model that media.preset stands for",
            reason="placeholders",
        )


def _forgery() -> BadRecordError:
    return BadRecordError(
        "texts must hold no placeholder of images and videos, got one that the tokenizer makes of "
        "plain text; make the token a special one",
        reason="forged",
    )
