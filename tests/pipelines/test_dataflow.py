"""What is submitted to Dataflow: a small graph of a few named stages, with plain coders."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from apache_beam.coders import Coder
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.pipeline_context import PipelineContext

from pipelines.advance import run_advance
from pipelines.options import parse_beam_options
from pipelines.recipe_file import load_recipe
from tests.pipelines.recording_cloud import RecordingCloud, recording_cloud
from tests.pipelines.small_streams import SmallStream
from transforms.lane_messages import LaneMessageCoder
from transforms.stream_job import StreamJob
from zephon_beam.layout import plan_name
from zephon_beam.manifest import read_manifest
from zephon_beam.position import read_plan
from zephon_beam.store.base import open_store

STAGES = {
    *("Lanes", "SupplyChunks", "SpreadChunks", "ReadDocuments"),
    *("TokenizeDocuments", "GatherLanes", "PackLanes", "WriteShards"),
}
LARGEST_JOB_BYTES = 20 * 1000 * 1000
EVENT_TIME = beam_runner_api_pb2.TimeDomain.EVENT_TIME


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingCloud]:
    """Let the Dataflow runner of this process talk to a server of ours, and to nobody else."""
    with recording_cloud() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
        yield server


def submit(cloud: RecordingCloud, finite: SmallStream, datasets: int = 0) -> Any:
    """Submit the first advance of a stream, and return the graph as it was staged."""
    store = open_store(str(finite.folder))
    recipe = load_recipe(finite.recipe)
    if datasets:
        (first, *_) = recipe.datasets.values()
        recipe = replace(recipe, datasets={f"source-{n:04d}": first for n in range(datasets)})
    roots = tuple("/a/folder/of/some/length" for _ in recipe.datasets)
    job = StreamJob(stream=str(finite.folder), advance=0, recipe=recipe, roots=roots)
    flags = [
        *("--runner=DataflowRunner", "--no_auth", f"--dataflow_endpoint={cloud.address}"),
        *("--project=p", "--region=r", "--job_name=advance", "--sdk_location=container"),
        *("--temp_location=gs://bucket/tmp", "--staging_location=gs://bucket/staging"),
    ]
    plan = read_plan(store, read_manifest(store), plan_name(0))
    run_advance(job, plan, parse_beam_options(flags), drain_bytes=1)
    (graph,) = [data for name, data in cloud.objects.items() if name.endswith("pipeline.pb")]
    return beam_runner_api_pb2.Pipeline.FromString(graph)


def spell(graph: Any, coder: str) -> str:
    """Spell a coder with its parts, e.g. `kv(varint,bytes)`."""
    found = graph.components.coders[coder]
    name = found.spec.urn.removeprefix("beam:coder:").removesuffix(":v1")
    parts = ",".join(spell(graph, part) for part in found.component_coder_ids)
    return f"{name}({parts})" if parts else name


def steps(graph: Any) -> dict[str, Any]:
    """Return the steps that call functions, by name: (step, what it says of its function)."""
    return {
        step.unique_name: (
            step,
            beam_runner_api_pb2.ParDoPayload.FromString(step.spec.payload),
        )
        for step in graph.components.transforms.values()
        if step.spec.urn == "beam:transform:pardo:v1"
    }


def test_the_job_is_a_batch_job_of_few_named_stages(
    cloud: RecordingCloud, finite: SmallStream
) -> None:
    """Their names are what users see, and what metrics are kept under."""
    graph = submit(cloud, finite)
    (job,) = cloud.jobs
    assert job["type"] in ("JOB_TYPE_BATCH", 1)
    names = {step.unique_name for step in graph.components.transforms.values()}
    found = {name.partition("/")[0] for name in names if not name.startswith("ref_")}
    assert found == STAGES


def test_keys_and_state_have_plain_coders_and_nothing_is_a_side_input(
    cloud: RecordingCloud, finite: SmallStream
) -> None:
    """Pickled keys would depend on versions, and a side input breaks checkpoints of Flink."""
    graph = submit(cloud, finite)
    found = steps(graph)
    assert not [name for name, (_, function) in found.items() if function.side_inputs]
    keyed = [
        spell(graph, graph.components.pcollections[source].coder_id)
        for step in graph.components.transforms.values()
        if step.spec.urn == "beam:transform:group_by_key:v1"
        for source in step.inputs.values()
    ]
    assert keyed
    assert all(re.match(r"kv\(varint,", coder) for coder in keyed), keyed
    stateful = {name: entry for name, entry in found.items() if entry[1].state_specs}
    ((step, function),) = stateful.values()
    assert set(stateful) == {"PackLanes/MixAndPack"}
    (source,) = step.inputs.values()
    coder = graph.components.pcollections[source].coder_id
    assert re.fullmatch(r"kv\(varint,\w+\)", spell(graph, coder))
    state = function.state_specs
    assert spell(graph, state["state"].read_modify_write_spec.coder_id) == "bytes"
    parts = graph.components.coders[state["parts"].bag_spec.element_coder_id]
    assert isinstance(Coder.from_runner_api(parts, PipelineContext()), LaneMessageCoder)
    counts = spell(graph, state["gathered"].read_modify_write_spec.coder_id)
    assert counts == "tuple(varint,varint,varint)"
    assert set(state) == {"state", "parts", "gathered"}
    (timer,) = function.timer_family_specs.values()
    assert timer.time_domain == EVENT_TIME


def test_the_size_of_a_job_does_not_grow_with_files_or_chunks(
    cloud: RecordingCloud, finite: SmallStream
) -> None:
    """It holds the recipe, a few times: 300 data sets are far from Dataflow's limit."""
    graph = submit(cloud, finite, datasets=300)
    assert graph.ByteSize() < LARGEST_JOB_BYTES / 10
