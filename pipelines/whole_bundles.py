"""Keep engines from dividing what a worker does with a key's state, and the polls of lanes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from apache_beam.portability.api import beam_fn_api_pb2, beam_runner_api_pb2
from apache_beam.runners.worker.bundle_processor import BundleProcessor

from pipelines.process_wide import process_wide
from transforms.supply_endless import POLL_LABEL


@process_wide
@contextmanager
def undivided_states() -> Iterator[None]:
    """Let workers in this process decline to split bundles of some stages.

    Prism 2.77 splits a bundle that takes its time also between two elements of one key, and runs
    the rest at once. Then both halves begin with the state that was there before, and what one of
    them writes is lost. And of a bundle of polls, which waits, it would make one for each lane, and
    leave no room beside them, as it runs eight at once. A worker may always decline, and other
    stages still split.
    """
    usual = BundleProcessor.try_split

    def try_split(
        self: BundleProcessor, request: beam_fn_api_pb2.ProcessBundleSplitRequest
    ) -> beam_fn_api_pb2.ProcessBundleSplitResponse:
        if _keeps_states(self.process_bundle_descriptor) or _polls(self.process_bundle_descriptor):
            return beam_fn_api_pb2.ProcessBundleSplitResponse()
        return usual(self, request)

    BundleProcessor.try_split = try_split  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        BundleProcessor.try_split = usual  # type: ignore[method-assign]


def _keeps_states(descriptor: Any) -> bool:
    """Say whether a part of a graph has a function with states."""
    return any(
        beam_runner_api_pb2.ParDoPayload.FromString(step.spec.payload).state_specs
        for step in descriptor.transforms.values()
        if step.spec.urn == "beam:transform:pardo:v1"
    )


def _polls(descriptor: Any) -> bool:
    """Say whether a part of a graph is the source of an endless job."""
    return any(POLL_LABEL in step.unique_name for step in descriptor.transforms.values())
