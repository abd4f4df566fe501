"""One advance: the graph, and running it to its end."""

from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection

from pipelines.options import is_parallel
from pipelines.runners import running_pipeline
from transforms.decode_media import DecodeMedia
from transforms.pack_lanes import PackLanes
from transforms.probe_media import ProbeMedia
from transforms.read_documents import ReadDocuments
from transforms.stream_job import StreamJob
from transforms.supply_chunks import SupplyChunks
from transforms.tokenize_documents import TokenizeDocuments
from transforms.transform_documents import TransformDocuments
from transforms.write_shards import WriteShards
from zephon_beam.plan import Plan


def build_advance(
    pipeline: beam.Pipeline,
    job: StreamJob,
    plan: Plan,
    *,
    parallel: bool,
    drain_bytes: int,
    supply: "beam.PTransform[Any, Any] | None" = None,
) -> PCollection[Any]:
    """Wire the graph of an advance, or of an endless job.

    With one worker everything runs fused, so no token array is ever encoded for a shuffle. With
    several, a shuffle spreads the chunks over them, and another keeps the stateful stage from
    serialising the tokenizer. Where there are media, shards without pixels are spread once more,
    to be decoded and written.

    Args:
        pipeline: to put it into.
        job: what the workers open.
        plan: of the job.
        parallel: whether several workers run a stage.
        drain_bytes: bytes that gather for a lane before it packs.
        supply: from lanes to pointers; None: what the plan says.

    Returns:
        Names of the objects that were committed.
    """
    lanes = [entry.lane for entry in plan.lanes]
    items = (
        pipeline
        | "Lanes" >> beam.Create(lanes, reshuffle=parallel)
        | "SupplyChunks" >> (supply or SupplyChunks(job))
    )
    if parallel:
        items = items | "SpreadChunks" >> beam.Reshuffle()
    documents = items | "ReadDocuments" >> ReadDocuments(job)
    if any(dataset.transforms for dataset in job.recipe.datasets.values()):
        documents = documents | "TransformDocuments" >> TransformDocuments(job)
    if job.recipe.media is not None:
        documents = documents | "ProbeMedia" >> ProbeMedia(job)
    messages = documents | "TokenizeDocuments" >> TokenizeDocuments(job)
    if parallel:
        messages = messages | "GatherLanes" >> beam.Reshuffle()
    commits = messages | "PackLanes" >> PackLanes(job, drain_bytes=drain_bytes)
    if job.recipe.media is not None:
        if parallel:
            commits = commits | "SpreadShards" >> beam.Reshuffle()
        commits = commits | "DecodeMedia" >> DecodeMedia(job)
    return commits | "WriteShards" >> WriteShards(job)


def run_advance(job: StreamJob, plan: Plan, options: PipelineOptions, *, drain_bytes: int) -> None:
    """Run an advance and wait for its end.

    Raises:
        ZephonBeamError: what a worker met, named as it was there.
    """
    with running_pipeline(options) as pipeline:
        build_advance(pipeline, job, plan, parallel=is_parallel(options), drain_bytes=drain_bytes)
