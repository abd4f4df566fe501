"""ShuffleArrivals: what a careless network could do to the messages of lanes, done on purpose."""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from transforms.lane_messages import LaneMessage
from zephon_beam.keyed import Permutation, keyed_int


class ShuffleArrivals(beam.PTransform[Any, Any]):
    """Deliver the elements of each bundle in another order, and a third of them twice.

    A lane must make the same bytes of them. Holds a bundle in memory: for self-tests only.

    Element types: in and out tuple[int, LaneMessage]; any order.

    Determinism: the order depends on the seed and on how the engine cuts bundles.
    """

    def __init__(self, seed: int) -> None:
        """Shuffle by `seed`."""
        super().__init__()
        self._seed = seed

    def expand(self, messages: PCollection[Any]) -> PCollection[Any]:
        """Shuffle each bundle when it ends."""
        return messages | "ShuffleBundle" >> beam.ParDo(_ShuffleBundle(self._seed))


class _ShuffleBundle(beam.DoFn):
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def start_bundle(self) -> None:
        self._arrived: list[tuple[tuple[int, LaneMessage], Any]] = []

    def process(
        self, element: tuple[int, LaneMessage], timestamp: Any = beam.DoFn.TimestampParam
    ) -> Iterator[tuple[int, LaneMessage]]:
        self._arrived.append((element, timestamp))
        yield from ()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        count = len(self._arrived)
        twice = [place for place in range(count) if keyed_int(self._seed, place) % 3 == 0]
        places = [*range(count), *twice]
        for place in Permutation(len(places), self._seed, "arrivals").all().tolist():
            element, timestamp = self._arrived[places[place]]
            yield WindowedValue(element, timestamp, (GlobalWindow(),))
