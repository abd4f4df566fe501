"""ReadDocuments: from pointers to the documents of a part, in the order of its permutation."""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.pvalue import PCollection

from transforms.lane_items import (
    HEAD_ITEM,
    NUDGE_ITEM,
    LaneDocuments,
    SupplyItem,
    drained_parts,
)
from transforms.stream_job import StreamJob
from zephon_beam.chunk_order import document_order
from zephon_beam.errors import BadRecordError, DriftError, SourceError
from zephon_beam.holdout import take_share
from zephon_beam.quarantine import READ, write_quarantine
from zephon_beam.sequences import PartKey
from zephon_beam.sources.documents import take_documents, wanted_content
from zephon_beam.sources.read_part import read_part


class ReadDocuments(beam.PTransform[Any, Any]):
    """Read each supplied part once, and load each lane's head.

    Documents that belong to the other share of a holdout are left out; records that can never be
    read and may be set aside are written to the stream's quarantine and leave an empty document.

    Element types: in tuple[int, SupplyItem], out tuple[int, LaneDocuments]; stateless.

    Raises:
        SourceError: a file is missing or unreadable.
        BadRecordError: a document can never be read.
        DriftError: a file is not what the catalog says.

    Determinism: a part depends on its source, the seed, the pass and its place alone.
    """

    def __init__(self, job: StreamJob) -> None:
        """Read the sources of `job`."""
        super().__init__()
        self._job = job

    def expand(self, items: PCollection[Any]) -> PCollection[Any]:
        """Read where the pointers are."""
        return items | "ReadParts" >> beam.ParDo(_ReadParts(self._job))


class _ReadParts(beam.DoFn):
    def __init__(self, job: StreamJob) -> None:
        self._job = job
        self._source_bytes = Metrics.counter("zephon_beam", "source_bytes")
        self._documents = Metrics.counter("zephon_beam", "documents")

    def setup(self) -> None:
        self._store = self._job.store()
        self._plan = self._job.plan()
        self._catalogs = self._job.catalogs()
        self._orders = self._job.chunk_orders()
        id_limit = self._job.manifest().vocab_size
        datasets = self._job.recipe.datasets.values()
        self._contents = [wanted_content(dataset, id_limit=id_limit) for dataset in datasets]

    def process(self, element: tuple[int, SupplyItem]) -> Iterator[tuple[int, LaneDocuments]]:
        lane, item = element
        if item == HEAD_ITEM:
            name = self._plan.lane(lane).head_name
            yield lane, LaneDocuments(head=self._store.get(name) if name else b"")
            return
        if item == NUDGE_ITEM:
            yield lane, LaneDocuments()
            return
        all_parts = drained_parts(item)
        if all_parts is not None:
            yield lane, LaneDocuments(all_parts=all_parts)
            return
        dataset, number, first_part, part_count = item
        for part in range(first_part, first_part + part_count):
            documents = self._read(lane, PartKey(dataset=dataset, number=number, part=part))
            yield lane, documents
            if documents.documents is not None and documents.documents.last:
                return

    def _read(self, lane: int, key: PartKey) -> LaneDocuments:
        job = self._job
        name = job.recipe.dataset_names[key.dataset]
        position = self._orders[key.dataset].position(lane, key.number)
        if position is None:
            raise ValueError(f"plan supplies chunk {key.number} beyond the last pass of {name!r}")
        pass_number, chunk = position
        try:
            documents = read_part(
                self._catalogs[key.dataset],
                job.roots[key.dataset],
                chunk,
                key.part,
                content=self._contents[key.dataset],
                quarantine=job.recipe.bad_records.action == "quarantine",
            )
        except BadRecordError as error:
            raise BadRecordError(
                f"datasets.{name}: {error}",
                file=error.file,
                locator=error.locator,
                reason=error.reason,
            ) from error
        except (DriftError, SourceError) as error:
            raise type(error)(f"datasets.{name}: {error}") from error
        if job.recipe.holdout is not None:
            file_name = self._catalogs[key.dataset].file_name
            documents = take_share(documents, job.recipe.holdout, dataset=name, file_name=file_name)
        write_quarantine(
            self._store,
            documents.quarantined,
            dataset=name,
            pass_=pass_number,
            chunk=chunk,
            part=key.part,
            stage=READ,
        )
        order = document_order(
            seed=job.recipe.seed,
            dataset=name,
            pass_=pass_number,
            chunk=chunk,
            part=key.part,
            count=len(documents),
            shuffle=job.recipe.shuffle.documents,
        )
        self._source_bytes.inc(documents.source_bytes)
        self._documents.inc(len(documents))
        return LaneDocuments(
            key=key, pass_number=pass_number, documents=take_documents(documents, order)
        )
