"""ProbeMedia: from interleaved content to texts and placeholders, before anything is packed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.pvalue import PCollection

from transforms.lane_items import LaneDocuments
from transforms.media.records import (
    MEDIA_KINDS,
    archive_name,
    document_key,
    refuse_compressed_archive,
)
from transforms.media.versions import refuse_other_libraries
from transforms.stream_job import StreamJob
from zephon_beam.errors import BadRecordError
from zephon_beam.media.content import MediaFault
from zephon_beam.quarantine import PROBE, write_quarantine
from zephon_beam.sequences import PartKey
from zephon_beam.sources.documents import Documents, Quarantined, Spans

if TYPE_CHECKING:
    from transforms.media.documents import ProbedDocument


class ProbeMedia(beam.PTransform[Any, Any]):
    """Learn how many placeholders stand for each image and video; no pixels go on from here.

    Content becomes texts and placeholders. Conversations stay texts, from which the items are
    taken and go beside them as spans; the chat template says where they stand. Documents with
    media that can never be used are set aside like other bad records. Parts of other data sets
    pass untouched.

    Element types: in tuple[int, LaneDocuments], out tuple[int, LaneDocuments]; stateless.

    Raises:
        DriftError: PyAV, FFmpeg or Pillow are not those that the stream was created with.
        BadRecordError: an item can never be used, and the recipe sets none aside.

    Determinism: each document depends on its content and the files it names alone.
    """

    def __init__(self, job: StreamJob) -> None:
        """Probe for the recipe of `job`."""
        super().__init__()
        self._job = job

    def expand(self, documents: PCollection[Any]) -> PCollection[Any]:
        """Probe a part at a time."""
        return documents | "ProbeParts" >> beam.ParDo(_ProbeParts(self._job))


class _ProbeParts(beam.DoFn):
    def __init__(self, job: StreamJob) -> None:
        self._job = job
        self._probed = Metrics.counter("zephon_beam", "probed_documents")

    def setup(self) -> None:
        from transforms.media.documents import probe_document

        self._probe = probe_document
        refuse_other_libraries(self._job.manifest())
        self._store = self._job.store()
        self._catalogs = self._job.catalogs()
        self._orders = self._job.chunk_orders()
        datasets = self._job.recipe.datasets.values()
        self._kinds = [dataset.content_kind for dataset in datasets]
        self._changed = [bool(dataset.transforms) for dataset in datasets]

    def process(self, element: tuple[int, LaneDocuments]) -> Iterator[tuple[int, LaneDocuments]]:
        lane, item = element
        if (
            item.documents is None
            or item.key is None
            or self._kinds[item.key.dataset] not in MEDIA_KINDS
        ):
            yield element
            return
        documents, faults = self._probe_part(item.documents, item.key, item.pass_number)
        self._write_faults(lane, item.key, item.pass_number, faults)
        yield lane, replace(item, documents=documents)

    def _probe_part(
        self, documents: Documents, key: PartKey, pass_number: int
    ) -> tuple[Documents, list[Quarantined]]:
        """Return the part as spans, and what was set aside here."""
        gone = {entry.place for entry in documents.quarantined}
        faults: list[Quarantined] = []
        texts: list[str] = []
        pieces: list[tuple[str, bool, int]] = []
        bounds = [0]
        for place, text in enumerate(documents.texts):
            texts.append("")
            if place not in gone:
                try:
                    found = self._probe_document(text, documents, place, key.dataset, pass_number)
                    texts[place] = found.text
                    pieces += found.pieces
                except MediaFault as fault:
                    faults.append(self._set_aside(documents, place, key.dataset, fault))
            bounds.append(len(pieces))
        spans = Spans(
            pieces=[piece for piece, _, _ in pieces],
            special=np.array([special for _, special, _ in pieces], np.bool_),
            bounds=np.array(bounds, np.int64),
            repeats=np.array([count for _, _, count in pieces], np.int64),
        )
        quarantined = sorted((*documents.quarantined, *faults), key=lambda entry: entry.place)
        probed = replace(documents, texts=texts, spans=spans, quarantined=tuple(quarantined))
        return probed, faults

    def _probe_document(
        self, text: str, documents: Documents, place: int, dataset: int, pass_number: int
    ) -> "ProbedDocument":
        """Probe a document with the key by which it will be decoded."""
        job, catalog, kind = self._job, self._catalogs[dataset], self._kinds[dataset]
        if job.recipe.media is None:
            raise ValueError("recipe has no media")
        name = catalog.file_name(int(documents.files[place]))
        archive = archive_name(catalog.format, name)
        source = job.recipe.dataset_names[dataset], name, int(documents.locators[place])
        key = document_key(job.recipe.seed, *source, pass_number)
        found = self._probe(text, job.roots[dataset], job.recipe.media, archive, key, kind)
        if found.pieces:
            self._probed.inc()
            refuse_compressed_archive(catalog.format, name)
            if self._changed[dataset]:
                # Decoding reads them again from the source, which a function may have changed.
                raise MediaFault("transforms", "items must be in data sets without `transforms`")
        return found

    def _set_aside(
        self, documents: Documents, place: int, dataset: int, fault: MediaFault
    ) -> Quarantined:
        name = self._job.recipe.dataset_names[dataset]
        file = self._catalogs[dataset].file_name(int(documents.files[place]))
        locator = int(documents.locators[place])
        message = (
            f"datasets.{name}: {file!r}, document at {locator}: {fault}; every run would stop "
            "here, for no document is skipped silently; mend the document or its file, or set "
            "bad_records.action: quarantine, then run the recipe into a new place"
        )
        if self._job.recipe.bad_records.action != "quarantine":
            raise BadRecordError(message, file=file, locator=locator, reason=fault.reason)
        return Quarantined(
            place=place, file=file, locator=locator, reason=fault.reason, message=message
        )

    def _write_faults(
        self, lane: int, key: PartKey, pass_number: int, faults: list[Quarantined]
    ) -> None:
        position = self._orders[key.dataset].position(lane, key.number)
        write_quarantine(
            self._store,
            faults,
            dataset=self._job.recipe.dataset_names[key.dataset],
            pass_=pass_number,
            chunk=position[1] if position is not None else 0,
            part=key.part,
            stage=PROBE,
        )
