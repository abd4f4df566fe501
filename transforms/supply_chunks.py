"""SupplyChunks: from lanes to the parts that an advance supplies to each of them."""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import TimestampedValue

from transforms.lane_items import HEAD_ITEM, SupplyItem
from transforms.stream_job import StreamJob


class SupplyChunks(beam.PTransform[Any, Any]):
    """Emit a lane's head and its share of the plan, as pointers.

    Element types: in int (lane), out tuple[int, SupplyItem]; bounded. The event time of every
    element is the number of the advance: one round.

    Determinism: depends on the immutable plan alone.
    """

    def __init__(self, job: StreamJob) -> None:
        """Supply what the plan of `job.advance` says."""
        super().__init__()
        self._job = job

    def expand(self, lanes: PCollection[Any]) -> PCollection[Any]:
        """Read the plan where the lanes are processed."""
        return lanes | "ReadPlan" >> beam.ParDo(_SupplyLane(self._job))


class _SupplyLane(beam.DoFn):
    def __init__(self, job: StreamJob) -> None:
        self._job = job

    def setup(self) -> None:
        self._plan = self._job.plan()

    def process(self, lane: int) -> Iterator[tuple[int, SupplyItem]]:
        round_number = self._job.advance
        # Beam unwraps timestamps; its type hints name what is inside.
        yield TimestampedValue((lane, HEAD_ITEM), round_number)  # type: ignore[misc]
        for entry in self._plan.lane(lane).supply:
            item = (entry.dataset, entry.number, entry.first_part, entry.part_count)
            yield TimestampedValue((lane, item), round_number)  # type: ignore[misc]
