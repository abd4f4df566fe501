"""TokenizeDocuments: from documents to flat token arrays."""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.pvalue import PCollection

from transforms.lane_items import LaneDocuments
from transforms.lane_messages import LaneMessage
from transforms.stream_job import StreamJob
from transforms.tokenize_chat import CODE_VERSION, load_chat_tokenizer
from transforms.tokenizers.backends import load_tokenizer
from zephon_beam.chat.masks import whole_mask
from zephon_beam.encode_documents import special_id
from zephon_beam.errors import BadRecordError
from zephon_beam.media.placeholders import empty_documents, forged_documents, media_loss_mask
from zephon_beam.quarantine import TOKENIZE, write_quarantine
from zephon_beam.sequences import PartKey, SequencePart
from zephon_beam.sources.documents import Documents, Quarantined
from zephon_beam.token_framing import frame_token_lists
from zephon_beam.tokenizer import Array, Framing, Tokenizer, frame_documents
from zephon_beam.unencodable import encode_or_set_aside

_LOGGER = logging.getLogger(__name__)
_MANY_CONVERSATIONS = 8
"""So many that teach nothing are no coincidence."""


class TokenizeDocuments(beam.PTransform[Any, Any]):
    """Tokenize the documents of each part and frame them by `bos` and `eos`.

    Conversations are rendered first; documents that are tokens already are only framed. In a
    stream with loss masks every part has one.

    Element types: in tuple[int, LaneDocuments], out tuple[int, LaneMessage]; stateless.

    Raises:
        DriftError: the tokenizer's files are not those that the stream was created with.
        BadRecordError: the tokenizer or the chat template gives a document up, and the recipe sets
            none aside.

    Determinism: each sequence depends on its document's text and the tokenizer alone.
    """

    def __init__(self, job: StreamJob) -> None:
        """Use the tokenizer of `job`."""
        super().__init__()
        self._job = job

    def expand(self, documents: PCollection[Any]) -> PCollection[Any]:
        """Tokenize a part at a time."""
        return documents | "TokenizeParts" >> beam.ParDo(_TokenizeParts(self._job))


class _TokenizeParts(beam.DoFn):
    def __init__(self, job: StreamJob) -> None:
        self._job = job
        self._tokens = Metrics.counter("zephon_beam", "tokens")
        self._unlearned = Metrics.counter("zephon_beam", "unlearned_conversations")

    def setup(self) -> None:
        manifest = self._job.manifest()
        self._tokenizer: Tokenizer = load_tokenizer(
            self._job.recipe.tokenizer,
            backend=self._job.backend,
            expected_digest=manifest.tokenizer_digest,
        )
        self._warned: set[int] = set()
        self._dtype = np.dtype(manifest.token_dtype)
        self._framing = Framing(bos=manifest.bos_id, eos=manifest.eos_id)
        self._has_loss_mask = manifest.has_loss_mask
        self._contents = [dataset.content_kind for dataset in self._job.recipe.datasets.values()]
        media = self._job.recipe.media
        if media is not None:
            self._media_ids = [special_id(self._tokenizer, token) for token in media.tokens]
        if "messages" in self._contents:
            self._chat = load_chat_tokenizer(
                self._job.recipe,
                framing=self._framing,
                dtype=self._dtype,
                expected_digest=manifest.code_versions.get(CODE_VERSION),
            )

    def process(self, element: tuple[int, LaneDocuments]) -> Iterator[tuple[int, LaneMessage]]:
        lane, item = element
        documents = item.documents
        if documents is None or item.key is None:
            yield lane, LaneMessage(head=item.head, all_parts=item.all_parts)
            return
        mask: Array | None
        if self._contents[item.key.dataset] == "messages":
            tokens, offsets, mask, set_aside = self._converse(documents, item.key.dataset)
        elif documents.tokens is not None:
            set_aside = ()
            kept = _kept(documents, set_aside)
            tokens, offsets, mask = frame_token_lists(
                documents.tokens, self._framing, self._dtype, kept=kept
            )
        else:
            tokens, offsets, set_aside = self._encode(documents, item.key.dataset)
            mask = None
            if self._contents[item.key.dataset] == "content":
                mask = media_loss_mask(tokens, offsets, self._media_ids)
        if mask is None and self._has_loss_mask:
            mask = whole_mask(offsets)
        if set_aside:
            self._write_quarantine(lane, item.key, item.pass_number, set_aside)
        kept = _kept(documents, set_aside)
        self._tokens.inc(len(tokens))
        part = SequencePart(
            key=item.key,
            last=documents.last,
            pass_number=item.pass_number,
            source_bytes=documents.source_bytes,
            tokens=tokens,
            offsets=offsets,
            files=documents.files,
            locators=documents.locators,
            outputs=documents.outputs,
            loss_mask=mask,
            quarantined=None if kept.all() else ~kept,
        )
        yield lane, LaneMessage(part=part)

    def _encode(
        self, documents: Documents, dataset: int
    ) -> tuple[Array, Array, tuple[Quarantined, ...]]:
        encoded, set_aside = encode_or_set_aside(
            self._tokenizer,
            documents,
            quarantine=self._job.recipe.bad_records.action == "quarantine",
            file_name=partial(self._file_name, dataset),
        )
        if self._contents[dataset] == "content":
            encoded, set_aside = self._refuse_forged(encoded, documents, dataset, set_aside)
        kept = _kept(documents, set_aside)
        return *frame_documents(encoded, self._framing, self._dtype, kept=kept), set_aside

    def _refuse_forged(
        self,
        encoded: tuple[Array, Array],
        documents: Documents,
        dataset: int,
        set_aside: tuple[Quarantined, ...],
    ) -> tuple[tuple[Array, Array], tuple[Quarantined, ...]]:
        """Set documents aside whose text came out as a token that only images may have."""
        if documents.spans is None:
            raise ValueError("documents with media were not probed")
        forged = forged_documents(*encoded, documents.spans, self._media_ids)
        forged[[entry.place for entry in (*documents.quarantined, *set_aside)]] = False
        found = []
        for place in np.flatnonzero(forged).tolist():
            file = self._file_name(dataset, int(documents.files[place]))
            locator = int(documents.locators[place])
            message = (
                f"{file!r}, document at {locator}: text must hold no placeholder of images and "
                "videos, got one that the tokenizer makes of plain text; the stream cannot go on "
                "without the document; mend it, or make the token a special one"
            )
            if self._job.recipe.bad_records.action != "quarantine":
                raise BadRecordError(message, file=file, locator=locator, reason="forged")
            found.append(
                Quarantined(
                    place=place, file=file, locator=locator, reason="forged", message=message
                )
            )
        if found:
            encoded = empty_documents(*encoded, forged)
        both = sorted((*set_aside, *found), key=lambda entry: entry.place)
        return encoded, tuple(both)

    def _converse(
        self, documents: Documents, dataset: int
    ) -> tuple[Array, Array, Array, tuple[Quarantined, ...]]:
        found = self._chat.tokenize(
            documents,
            dataset=self._job.recipe.dataset_names[dataset],
            file_name=partial(self._file_name, dataset),
        )
        self._unlearned.inc(found.unlearned)
        set_aside = len(documents.quarantined) + len(found.faults)
        if found.unlearned >= max(_MANY_CONVERSATIONS, len(documents) - set_aside):
            self._warn_of_unlearned(dataset, found.unlearned)
        return found.tokens, found.offsets, found.loss_mask, found.faults

    def _warn_of_unlearned(self, dataset: int, count: int) -> None:
        """Say once that conversations teach nothing, which is rarely what was meant."""
        if dataset not in self._warned:
            self._warned.add(dataset)
            _LOGGER.warning(
                "datasets.%s: none of %d conversations that were read together has a token that is "
                "learned; check that turns have the role assistant, and chat.loss_on (%s)",
                self._job.recipe.dataset_names[dataset],
                count,
                self._job.recipe.chat.loss_on,
            )

    def _file_name(self, dataset: int, file: int) -> str:
        return self._job.catalogs()[dataset].file_name(file)

    def _write_quarantine(
        self, lane: int, key: PartKey, pass_number: int, found: tuple[Quarantined, ...]
    ) -> None:
        position = self._job.chunk_orders()[key.dataset].position(lane, key.number)
        write_quarantine(
            self._job.store(),
            found,
            dataset=self._job.recipe.dataset_names[key.dataset],
            pass_=pass_number,
            chunk=position[1] if position is not None else 0,
            part=key.part,
            stage=TOKENIZE,
        )


def _kept(documents: Documents, set_aside: tuple[Quarantined, ...]) -> Array:
    """Say which documents were set aside neither before nor now, bool[documents]."""
    kept = np.ones(len(documents), bool)
    if not documents.quarantined and not set_aside:
        return kept
    kept[[entry.place for entry in (*documents.quarantined, *set_aside)]] = False
    return kept
