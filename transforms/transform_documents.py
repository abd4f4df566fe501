"""TransformDocuments: the recipe's own functions and built-ins, between reading and tokenizing."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.pvalue import PCollection

from transforms.lane_items import LaneDocuments
from transforms.stream_job import StreamJob
from zephon_beam.quarantine import TRANSFORM, write_quarantine
from zephon_beam.sequences import PartKey
from zephon_beam.sources.documents import Documents
from zephon_beam.transforming.apply import apply_steps
from zephon_beam.transforming.importing import make_importable
from zephon_beam.transforming.part_work import PartContext
from zephon_beam.transforming.steps import load_steps, refuse_other_code


class TransformDocuments(beam.PTransform[Any, Any]):
    """Apply the transforms of each document's data set.

    Documents that a function fails on and that may be set aside are written to the stream's
    quarantine and leave an empty document. Parts of data sets without transforms pass untouched.

    Element types: in tuple[int, LaneDocuments], out tuple[int, LaneDocuments]; stateless.

    Raises:
        RecipeError: a worker cannot import what the recipe calls.
        DriftError: a worker finds other code than the stream was created with.
        BadRecordError, TransformError: as `zephon_beam.transforming.apply.apply_steps`.

    Determinism: each part depends on itself, the recipe and its functions alone.
    """

    def __init__(self, job: StreamJob) -> None:
        """Apply the transforms of the recipe of `job`."""
        super().__init__()
        self._job = job

    def expand(self, documents: PCollection[Any]) -> PCollection[Any]:
        """Transform a part at a time."""
        return documents | "TransformParts" >> beam.ParDo(_TransformParts(self._job))


class _TransformParts(beam.DoFn):
    def __init__(self, job: StreamJob) -> None:
        self._job = job
        self._gone = Metrics.counter("zephon_beam", "filtered_documents")

    def setup(self) -> None:
        self._store = self._job.store()
        self._catalogs = self._job.catalogs()
        self._orders = self._job.chunk_orders()
        make_importable(self._job.code_folders)
        self._steps = load_steps(self._job.recipe)
        refuse_other_code(self._steps, self._job.manifest().code_versions)

    def process(self, element: tuple[int, LaneDocuments]) -> Iterator[tuple[int, LaneDocuments]]:
        lane, item = element
        if item.documents is None or item.key is None or not self._steps[item.key.dataset]:
            yield element
            return
        documents = self._transform(item.key, item.pass_number, item.documents)
        self._write_faults(lane, item.key, item.documents, documents)
        yield lane, replace(item, documents=documents)

    def _transform(self, key: PartKey, pass_number: int, documents: Documents) -> Documents:
        recipe = self._job.recipe
        name = recipe.dataset_names[key.dataset]
        context = PartContext(
            dataset=name,
            seed=recipe.seed,
            pass_number=pass_number,
            content=recipe.datasets[name].content_kind,
            file_name=self._catalogs[key.dataset].file_name,
            quarantine=recipe.bad_records.action == "quarantine",
        )
        transformed = apply_steps(documents, self._steps[key.dataset], context)
        self._gone.inc(max(0, len(documents) - len(transformed)))
        return transformed

    def _write_faults(self, lane: int, key: PartKey, before: Documents, after: Documents) -> None:
        """Write what was set aside here; what was set aside before is written already."""
        known = len(before.quarantined)
        if len(after.quarantined) == known:
            return
        position = self._orders[key.dataset].position(lane, key.number)
        if position is None:
            raise ValueError(f"chunk {key.number} of data set {key.dataset} has no pass")
        earlier = {(entry.file, entry.locator) for entry in before.quarantined}
        write_quarantine(
            self._store,
            [entry for entry in after.quarantined if (entry.file, entry.locator) not in earlier],
            dataset=self._job.recipe.dataset_names[key.dataset],
            pass_=position[0],
            chunk=position[1],
            part=key.part,
            stage=TRANSFORM,
        )
