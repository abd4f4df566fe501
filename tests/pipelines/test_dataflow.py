"""What is submitted to Dataflow: a small graph of a few named stages, with plain coders.

Every submission is a real one of Beam's Dataflow runner, to a server of the test's own.
"""

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.coders import Coder
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.dataflow import dataflow_runner
from apache_beam.runners.pipeline_context import PipelineContext

from pipelines.advance import run_advance
from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.engine_defaults import STATE_CACHE_MB
from pipelines.engines.software import BEAM_VERSION
from pipelines.options import parse_beam_options
from pipelines.recipe_file import load_recipe
from tests.pipelines.dataflow_jobs import (
    IMAGE,
    cloud_flags,
    enter_cloud,
    run_job,
    staged_graph,
)
from tests.pipelines.recording_cloud import RecordingCloud, recording_cloud
from tests.pipelines.small_streams import SmallStream, run, write_recipe
from transforms.lane_messages import LaneMessageCoder
from transforms.stream_job import StreamJob
from zephon_beam.errors import BadRecordError
from zephon_beam.layout import plan_name
from zephon_beam.manifest import read_manifest
from zephon_beam.position import read_plan
from zephon_beam.store.base import open_store

STAGES = {
    *("Lanes", "SupplyChunks", "SpreadChunks", "ReadDocuments"),
    *("TokenizeDocuments", "GatherLanes", "PackLanes", "WriteShards"),
}
WORK = {
    *("SupplyChunks/ReadPlan", "ReadDocuments/ReadParts", "TokenizeDocuments/TokenizeParts"),
    *("PackLanes/MixAndPack", "WriteShards/Commit"),
}
"""The steps that do our work, among those that spread it."""
PLAIN_CODERS = {"kv", "tuple", "varint", "bytes", "string_utf8"}
LARGEST_JOB_BYTES = 20 * 1000 * 1000
EVENT_TIME = beam_runner_api_pb2.TimeDomain.EVENT_TIME


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingCloud]:
    """Let the Dataflow runner of this process talk to a server of ours, and to nobody else."""
    with recording_cloud() as server:
        yield enter_cloud(server, monkeypatch)


def submit(cloud: RecordingCloud, finite: SmallStream, *flags: str) -> Any:
    """Submit the first advance of a stream, and return the graph as it was staged."""
    store = open_store(str(finite.folder))
    recipe = load_recipe(finite.recipe)
    roots = tuple("/a/folder/of/some/length" for _ in recipe.datasets)
    job = StreamJob(stream=str(finite.folder), advance=0, recipe=recipe, roots=roots)
    plan = read_plan(store, read_manifest(store), plan_name(0))
    options = parse_beam_options([*cloud_flags(cloud), *flags])
    run_advance(job, plan, options, drain_bytes=1)
    return staged_graph(cloud)


def spell(graph: Any, coder: str) -> str:
    """Spell a coder with its parts, e.g. `kv(varint,bytes)`."""
    found = graph.components.coders[coder]
    if found.spec.urn == "beam:coder:pickled_python:v1":
        return type(Coder.from_runner_api(found, PipelineContext())).__name__
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
    assert spell(graph, state["parts"].bag_spec.element_coder_id) == LaneMessageCoder.__name__
    counts = spell(graph, state["gathered"].read_modify_write_spec.coder_id)
    assert counts == "tuple(varint,varint,varint,varint)"
    assert set(state) == {"state", "parts", "gathered"}
    (timer,) = function.timer_family_specs.values()
    assert timer.time_domain == EVENT_TIME


def test_what_goes_from_stage_to_stage_has_plain_coders_and_ours(
    cloud: RecordingCloud, finite: SmallStream
) -> None:
    """Nothing that Beam would pickle by value, so that a worker of any Python reads it."""
    graph = submit(cloud, finite)
    outputs = {
        step.unique_name: spell(graph, graph.components.pcollections[output].coder_id)
        for step, _ in steps(graph).values()
        for output in step.outputs.values()
        if step.unique_name in WORK
    }
    assert set(outputs) == WORK
    used = {word for coder in outputs.values() for word in re.findall(r"\w+", coder)}
    assert used <= PLAIN_CODERS | {"LaneDocumentsCoder", "LaneMessageCoder"}, outputs


def test_the_environment_is_the_one_that_was_asked_for(
    cloud: RecordingCloud, finite: SmallStream, tmp_path: Path
) -> None:
    """Image, machines and packages; a batch job has no streaming engine."""
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("tokenizers\n")
    graph = submit(
        cloud,
        finite,
        *(f"--sdk_container_image={IMAGE}", "--machine_type=n2-standard-4"),
        *("--num_workers=3", "--max_num_workers=7", "--disk_size_gb=50"),
        *(f"--requirements_file={requirements}", "--requirements_cache=skip"),
    )
    (job,) = cloud.jobs
    (pool,) = job["environment"]["workerPools"]
    (image,) = pool["sdkHarnessContainerImages"]
    assert image["containerImage"] == pool["workerHarnessContainerImage"] == IMAGE
    assert pool["machineType"] == "n2-standard-4"
    assert (pool["numWorkers"], pool["autoscalingSettings"]["maxNumWorkers"]) == (3, 7)
    assert pool["diskSizeGb"] == 50
    assert not pool.get("dataDisks")
    names = [package["name"] for package in pool["packages"]]
    assert set(names) == {"requirements.txt", "submission_environment_dependencies.txt"}
    assert cloud.staged("requirements.txt") == b"tokenizers\n"
    options = job["environment"]["sdkPipelineOptions"]["options"]
    assert options["streaming"] is False
    assert options["max_cache_memory_usage_mb"] == STATE_CACHE_MB
    experiments = job["environment"]["experiments"]
    assert "use_runner_v2" in experiments
    assert not [name for name in experiments if "streaming" in name]
    for environment in graph.components.environments.values():
        payload = beam_runner_api_pb2.DockerPayload.FromString(environment.payload)
        assert payload.container_image == IMAGE


def test_the_image_without_a_choice_is_the_pinned_version_of_beam(
    cloud: RecordingCloud, finite: SmallStream
) -> None:
    """As the base of our own image, so that both have one interpreter and one Beam."""
    submit(cloud, finite)
    (pool,) = cloud.jobs[0]["environment"]["workerPools"]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert pool["workerHarnessContainerImage"].endswith(f"beam_python{python}_sdk:{BEAM_VERSION}")


def write_wide_recipe(base: Path, datasets: int, files: int) -> Path:
    """Write data sets of so many files, with a document each, and their recipe."""
    for number in range(datasets):
        folder = base / f"source-{number:03d}"
        folder.mkdir()
        first = folder / "part-00000.jsonl"
        first.write_text(f'{{"text": "words {number}"}}\n')
        # More names of one file: a million files would take 4 GB, and half an hour to make.
        for file in range(1, files):
            (folder / f"part-{file:05d}.jsonl").hardlink_to(first)
    sources = "".join(
        f"  source-{number:03d}: {{files: source-{number:03d}/*.jsonl, passes: 1}}\n"
        for number in range(datasets)
    )
    recipe = base / "recipe.yaml"
    recipe.write_text(
        f"name: wide\nlanes: 2\nseq_len: 128\ntokenizer: {{path: {TOKENIZER_FILE}}}\n"
        "shuffle: {interleave: 2}\npacking: {open_bins: 4}\n"
        f"datasets:\n{sources}"
    )
    return recipe


@pytest.mark.parametrize(
    ("datasets", "files"),
    [
        pytest.param(300, 4),
        pytest.param(
            300, 3334, marks=[pytest.mark.long, pytest.mark.timeout(3600)], id="a million files"
        ),
    ],
)
def test_the_size_of_a_job_does_not_grow_with_files_or_chunks(
    cloud: RecordingCloud, datasets: int, files: int
) -> None:
    """It holds the recipe, a few times; lists of files, chunks and parts are in the stream."""
    # Not a folder of pytest's, which keeps a few.
    with tempfile.TemporaryDirectory(prefix="zephon-beam-wide-") as name:
        folder = Path(name)
        recipe = write_wide_recipe(folder, datasets, files)
        stored = "--template_location=gs://bucket/templates/job"
        run(recipe, folder / "stream", options=[*cloud_flags(cloud), stored])
        manifest = read_manifest(open_store(str(folder / "stream")))
    assert sum(dataset.chunk_count for dataset in manifest.datasets) == datasets * files
    graph = staged_graph(cloud)
    assert len(cloud.staged("job")) + graph.ByteSize() < LARGEST_JOB_BYTES / 100


def test_what_a_worker_met_is_one_line(
    cloud: RecordingCloud,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is in a message of the failed job, as a traceback, and is told as if raised here."""
    shutil.copytree(corpus, tmp_path / "corpus")
    damaged = tmp_path / "corpus" / "prose" / "part-1.jsonl"
    lines = damaged.read_text().splitlines(keepends=True)
    damaged.write_text("".join([*lines[:4], "{" + lines[4], *lines[5:]]))
    recipe = write_recipe(tmp_path / "corpus" / "recipe.yaml", finite=True)
    cloud.execute = lambda job: run_job(cloud, job, python_urns.EMBEDDED_PYTHON, "")
    # Beam looks at a job every five seconds.
    patient = SimpleNamespace(sleep=lambda _secs: time.sleep(0.01), time=time.time)
    monkeypatch.setattr(dataflow_runner, "time", patient)
    with pytest.raises(BadRecordError, match=r"part-1\.jsonl.*line 5") as caught:
        run(recipe, tmp_path / "stream", options=cloud_flags(cloud))
    assert "\n" not in str(caught.value)
    assert "Traceback" in str(cloud.failure)
    assert not [text for text in caplog.messages if "Traceback" in text]
