"""What a submission with `--setup_file` stages is enough for workers that have nothing else."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.portability import python_urns
from apache_beam.runners.portability.fn_api_runner import worker_handlers

from tests.installed import PACKAGES, ROOT, copy_source, install
from tests.pipelines.dataflow_jobs import cloud_flags, enter_cloud, run_job
from tests.pipelines.recording_cloud import RecordingCloud, recording_cloud
from tests.pipelines.small_streams import SmallStream, run, tree

pytestmark = pytest.mark.timeout(300)

TRAINING_ONLY = {"zephon_beam.torch", "pipelines.tiny_gpt", "pipelines.train_demo"}
"""Modules that need torch, which no worker has."""
_IMPORT_ALL = """
import importlib, json, pkgutil, sys
found = {}
for top in sys.argv[1].split(","):
    package = importlib.import_module(top)
    for module in pkgutil.walk_packages(package.__path__, top + "."):
        if module.name not in sys.argv[2].split(","):
            found[module.name] = importlib.import_module(module.name).__file__
print(json.dumps(found))
"""


class ServedJobs:
    """Runs jobs as Dataflow would: workers have Beam's dependencies and what the job stages."""

    def __init__(self, cloud: RecordingCloud, folder: Path) -> None:
        """Install into a folder when the first job comes."""
        self._cloud = cloud
        self._folder = folder
        self.python = folder / "worker" / "bin" / "python"

    def execute(self, job: dict[str, Any]) -> None:
        """Run the staged graph of a job to its end."""
        if not self.python.exists():
            self._install(job)
        script = "from pipelines.worker import main; main()"
        command = f"exec {shlex.quote(str(self.python))} -I -c {shlex.quote(script)}"
        run_job(self._cloud, job, python_urns.SUBPROCESS_SDK, command)

    def _install(self, job: dict[str, Any]) -> None:
        (pool,) = job["environment"]["workerPools"]
        places = {package["name"]: package["location"] for package in pool["packages"]}
        package = self._folder / "workflow.tar.gz"
        _, _, name = places[package.name].split("/", 2)
        package.write_bytes(self._cloud.objects[name])
        install(package, self._folder / "worker")


@pytest.fixture(scope="module")
def served(
    finite: SmallStream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServedJobs, RecordingCloud, Path, dict[str, Any]]]:
    """Run a stream by jobs that are submitted with `--setup_file`, from the start to the end."""
    folder = tmp_path_factory.mktemp("dataflow")
    (folder / "source").mkdir()
    source = copy_source(folder / "source")
    with recording_cloud() as cloud, pytest.MonkeyPatch.context() as patch:
        enter_cloud(cloud, patch)
        # Beam's clock for flushing loses elements of the in-process engine (`pipelines.runners`).
        patch.setattr(worker_handlers, "DATA_BUFFER_TIME_LIMIT_MS", 0)
        jobs = ServedJobs(cloud, folder)
        cloud.execute = jobs.execute
        flags = [*cloud_flags(cloud), f"--setup_file={source / 'setup.py'}"]
        facts = run(finite.recipe, folder / "stream", options=flags, advance_bytes=200 * 1024)
        yield jobs, cloud, folder / "stream", facts


def test_jobs_submitted_with_a_setup_file_write_the_stream_of_one_process(
    served: tuple[ServedJobs, RecordingCloud, Path, dict[str, Any]], finite: SmallStream
) -> None:
    """Several advances, each a job with a graph and a package of its own."""
    _, cloud, stream, facts = served
    assert facts["finished"]
    assert len(cloud.jobs) == facts["advances"] > 1
    assert tree(stream) == finite.tree


def test_every_module_of_the_staged_package_can_be_imported(
    served: tuple[ServedJobs, RecordingCloud, Path, dict[str, Any]],
) -> None:
    """All that the source tree has are there, and come from the package."""
    jobs, *_ = served
    words = [str(jobs.python), "-I", "-c", _IMPORT_ALL, ",".join(PACKAGES)]
    done = subprocess.run(
        [*words, ",".join(TRAINING_ONLY)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    root = str(jobs.python.parent.parent)
    assert all(file.startswith(root) for file in found.values())
    sources = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    modules = {name.removesuffix(".__init__") for name in sources} - set(PACKAGES) - TRAINING_ONLY
    assert set(found) == modules


def test_every_job_stages_for_itself(
    served: tuple[ServedJobs, RecordingCloud, Path, dict[str, Any]],
) -> None:
    """Below one folder each, however many a run has before it."""
    _, cloud, *_ = served
    for job in cloud.jobs:
        place = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
        _, _, _, staging, folder, name = place.split("/")
        assert (staging, name) == ("staging", "pipeline.pb")
        assert folder.startswith("advance.")


def test_the_package_is_built_once_for_all_jobs(
    served: tuple[ServedJobs, RecordingCloud, Path, dict[str, Any]],
) -> None:
    """A build takes seconds, and notes when it was made: two builds differ."""
    _, cloud, *_ = served
    staged = [data for name, data in cloud.objects.items() if name.endswith("/workflow.tar.gz")]
    assert len(staged) == len(cloud.jobs) > 1
    assert len(set(staged)) == 1
