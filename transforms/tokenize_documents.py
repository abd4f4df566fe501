"""TokenizeDocuments: from documents to flat token arrays."""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.pvalue import PCollection

from transforms.lane_items import HEAD, PART, LaneDocuments, LaneMessage
from transforms.stream_job import StreamJob
from transforms.tokenizers.backends import load_tokenizer
from zephon_beam.encode_documents import encode_documents
from zephon_beam.sequences import SequencePart, encode_part
from zephon_beam.tokenizer import Framing, Tokenizer, frame_documents


class TokenizeDocuments(beam.PTransform[Any, Any]):
    """Tokenize the documents of each part and frame them by `bos` and `eos`.

    Element types: in tuple[int, LaneDocuments], out tuple[int, LaneMessage]; stateless.

    Raises:
        DriftError: the tokenizer file is not the one that the stream was created with.

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

    def setup(self) -> None:
        manifest = self._job.manifest()
        self._tokenizer: Tokenizer = load_tokenizer(
            self._job.recipe.tokenizer,
            backend=self._job.backend,
            expected_digest=manifest.tokenizer_digest,
        )
        self._dtype = np.dtype(manifest.token_dtype)
        self._framing = Framing(bos=manifest.bos_id, eos=manifest.eos_id)

    def process(self, element: tuple[int, LaneDocuments]) -> Iterator[tuple[int, LaneMessage]]:
        lane, item = element
        documents = item.documents
        if documents is None or item.key is None:
            yield lane, (HEAD, item.head or b"")
            return
        kept = np.ones(len(documents), bool)
        kept[[entry.place for entry in documents.quarantined]] = False
        encoded = encode_documents(self._tokenizer, documents)
        tokens, offsets = frame_documents(encoded, self._framing, self._dtype, kept=kept)
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
            quarantined=None if kept.all() else ~kept,
        )
        yield lane, (PART, encode_part(part))
