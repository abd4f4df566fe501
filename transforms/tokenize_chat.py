"""Tokenize conversations: render, encode, and say which tokens are learned."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from transforms.chat_encoder import ChatEncoder, EncodedTexts
from transforms.chat_media import ChatMedia
from transforms.chat_template import ChatTemplate
from transforms.tokenizers.backends import tokenizer_file
from zephon_beam.chat.framing import missing_ends, widen
from zephon_beam.chat.marks import Unmarked, choose_marks, mark_foreign, special_pattern, unmark
from zephon_beam.chat.masks import loss_mask, tokens_within
from zephon_beam.chat.messages import all_text, parse_conversation, refuse_spelt_tokens
from zephon_beam.chat.spans import render_learned
from zephon_beam.chat.template_files import TemplateFiles, read_template
from zephon_beam.errors import BadRecordError, DriftError, RecipeError
from zephon_beam.recipe import Recipe
from zephon_beam.sources.documents import Documents, Quarantined
from zephon_beam.sources.faults import RecordFaults
from zephon_beam.tokenizer import Array, Framing

CODE_VERSION = "chat_template"
"""Name of the chat template's content among the manifest's `code_versions`."""

_NOTHING = Unmarked(text="", foreign=(), learned=())
_REPAIR = (
    "correct or remove the conversation, or set bad_records.action: quarantine, and run the "
    "recipe into a new place"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedConversations:
    """The conversations of one part.

    tokens: dtype[total]; loss_mask: uint8[total], belongs to the label at its place;
    offsets: int64[documents + 1]; faults: those set aside now, by place.
    """

    tokens: Array
    loss_mask: Array
    offsets: Array
    faults: tuple[Quarantined, ...]
    unlearned: int
    """Conversations without one learned token, e.g. without a turn of the assistant."""


class ChatTokenizer:
    """Turns conversations into tokens and loss masks, a part at a time.

    Determinism: depends on the tokenizer's folder, the recipe and each conversation alone.
    """

    def __init__(self, recipe: Recipe, *, framing: Framing, dtype: "np.dtype[np.generic]") -> None:
        """Load the template and the tokenizer.

        Args:
            recipe: with a data set that has messages.
            framing: ids of the recipe's `bos` and `eos`.
            dtype: of the stream's tokens.

        Raises:
            RecipeError: the tokenizer's folder has no usable template.
        """
        files = read_chat_template(recipe)
        path = tokenizer_file(recipe.tokenizer)
        self._template = ChatTemplate(files)
        self._encoder = ChatEncoder(path.read_bytes(), name=str(path))
        self._media = None if recipe.media is None else ChatMedia(recipe.media, self._encoder)
        # With `allow_special` nothing is foreign; recipes with media do not have it.
        guarded = () if recipe.tokenizer.allow_special else self._encoder.special_tokens
        if self._media is not None:
            guarded = tuple(dict.fromkeys((*guarded, *self._media.tokens)))
        self._special = special_pattern(guarded)
        self._loss_on = recipe.chat.loss_on
        self._quarantine = recipe.bad_records.action == "quarantine"
        self._framing = framing
        self._dtype = dtype

    def tokenize(
        self, documents: Documents, *, dataset: str, file_name: Callable[[int], str]
    ) -> TokenizedConversations:
        """Tokenize the conversations of a part; what is set aside keeps its place, empty.

        Args:
            documents: with conversations as JSON in `texts`, and in `spans` their items, if the
                recipe has media.
            dataset: name of the data set, for messages.
            file_name: from the place of a file in the catalog to its name.

        Raises:
            BadRecordError: a conversation can never be rendered, and is not to be set aside.
        """
        faults = RecordFaults(quarantine=self._quarantine)
        gone = frozenset(entry.place for entry in documents.quarantined)

        def report(error: BadRecordError, place: int) -> None:
            file = file_name(int(documents.files[place]))
            locator = int(documents.locators[place])
            faults.report(_placed(error, dataset, file, locator), place)

        rendered = []
        for place, text in enumerate(documents.texts):
            rendered.append(_NOTHING)
            if place not in gone:
                try:
                    rendered[place] = self.render(text)
                except BadRecordError as error:
                    report(error, place)
        encoded = self._encoder.encode(rendered)
        learned = self._learned(encoded, rendered)
        sums = np.concatenate(([0], np.cumsum(learned, dtype=np.int64)))
        unlearned = np.diff(sums[encoded.offsets]) == 0
        tokens, learned, offsets = self._framed(encoded, learned, rendered)
        if self._media is not None and documents.spans is not None:
            forged = self._media.forged(encoded, rendered)
            expanded = self._media.expand(tokens, learned, offsets, documents.spans, forged)
            tokens, learned, offsets = expanded.tokens, expanded.learned, expanded.offsets
            for place, fault in expanded.faults:
                report(fault, place)
                unlearned[place] = True
        lost = len(gone) + len(faults.found)
        return TokenizedConversations(
            tokens=tokens,
            loss_mask=loss_mask(learned, offsets),
            offsets=offsets,
            faults=tuple(sorted(faults.found, key=lambda entry: entry.place)),
            unlearned=int(unlearned.sum()) - lost,
        )

    def render(self, text: str) -> Unmarked:
        """Render one conversation, given as JSON.

        Returns:
            The rendering, where in it special-token text of the document stands, and what of it is
            learned.

        Raises:
            BadRecordError: it is no conversation, or the template refuses it.
        """
        messages = parse_conversation(text, with_media=self._media is not None)
        content = all_text(messages)
        refuse_spelt_tokens(messages, self._special)
        marks = choose_marks(self._template.own_text, content)
        has_foreign = self._special.search(content) is not None
        if has_foreign:
            messages = mark_foreign(messages, self._special, marks)
        marked = render_learned(self._template, messages, self._loss_on, marks)
        found = unmark(marked, self._special, marks, has_foreign=has_foreign)
        if self._loss_on == "all":
            return replace(found, learned=((0, len(found.text)),))
        return found

    def _learned(self, encoded: EncodedTexts, rendered: list[Unmarked]) -> Array:
        """Say which tokens are learned, uint8[total]; what stands for items is not."""
        spans = [
            (first + shift, last + shift)
            for text, shift in zip(rendered, encoded.characters[:-1].tolist(), strict=True)
            for first, last in text.learned
        ]
        bounds = np.array(spans, np.int64).reshape(-1, 2)
        learned = tokens_within(encoded.starts, encoded.ends, bounds).astype(np.uint8)
        if self._media is not None:
            learned[self._media.is_media(encoded.ids)] = 0
        return learned

    def _framed(
        self, encoded: EncodedTexts, learned: Array, rendered: list[Unmarked]
    ) -> tuple[Array, Array, Array]:
        """Add `bos` and `eos` where the template did not; `eos` is learned if everything is."""
        ends = [len(text.text.rstrip()) for text in rendered] + encoded.characters[:-1]
        last_written = np.searchsorted(encoded.starts, ends, side="left") - 1
        before, after = missing_ends(encoded.ids, encoded.offsets, last_written, self._framing)
        tokens, offsets = widen(
            encoded.ids.astype(self._dtype),
            encoded.offsets,
            before,
            after,
            first=self._framing.bos or 0,
            last=self._framing.eos or 0,
        )
        eos_learned = int(self._loss_on == "all")
        learned, _ = widen(learned, encoded.offsets, before, after, first=0, last=eos_learned)
        return tokens, learned, offsets


def read_chat_template(recipe: Recipe) -> TemplateFiles:
    """Read the chat template beside the recipe's tokenizer.

    Raises:
        RecipeError: there is none, or the tokenizer is a rank file.
    """
    path = tokenizer_file(recipe.tokenizer)
    if recipe.tokenizer.pattern is not None:
        raise RecipeError(
            f"tokenizer.path must be a Hugging Face folder when a data set has messages, got the "
            f"rank file {str(path)!r}; a rank file has no chat template; name the folder that the "
            "model came in"
        )
    return read_template(path.parent)


def chat_code_versions(recipe: Recipe) -> dict[str, str]:
    """Return what stands for the chat template in the fingerprint; nothing without messages.

    Raises:
        RecipeError: a data set has messages, and there is no usable template.
    """
    if all(dataset.content_kind != "messages" for dataset in recipe.datasets.values()):
        return {}
    files = read_chat_template(recipe)
    ChatTemplate(files)
    return {CODE_VERSION: files.digest}


def load_chat_tokenizer(
    recipe: Recipe,
    *,
    framing: Framing,
    dtype: "np.dtype[np.generic]",
    expected_digest: str | None,
) -> ChatTokenizer:
    """Load what tokenizes the conversations of a stream.

    Raises:
        DriftError: the template is not the one that the stream was created with.
    """
    files = read_chat_template(recipe)
    if files.digest != expected_digest:
        raise DriftError(
            f"chat template: expected {expected_digest}, found {files.digest} ({files.path}); with "
            "another one the stream would go on with other tokens; restore the file, or start a "
            "new stream"
        )
    return ChatTokenizer(recipe, framing=framing, dtype=dtype)


def _placed(error: BadRecordError, dataset: str, file: str, locator: int) -> BadRecordError:
    """Name the place of a conversation that cannot be rendered."""
    return BadRecordError(
        f"datasets.{dataset}: {file!r}, document at {locator}: {error}; every run would "
        f"stop here, for no document is skipped silently; {_REPAIR}",
        file=file,
        locator=locator,
        reason=error.reason,
    )
