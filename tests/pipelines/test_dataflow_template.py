"""The flex template: its metadata are those of the command, and a launch is an advance."""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.portability import python_urns

from pipelines.flex_template import RECIPE, command_line, run_parameters
from pipelines.main import main
from pipelines.options import parse_beam_options
from tests.pipelines.dataflow_jobs import cloud_flags, enter_cloud, run_job
from tests.pipelines.recording_cloud import RecordingCloud, recording_cloud
from tests.pipelines.small_streams import ROOT, SmallStream, tree
from transforms.tokenizers.backends import BACKENDS
from zephon_beam.errors import RecipeError
from zephon_beam.recipe_mapping import parse_byte_size

FOLDER = ROOT / "dataflow"
METADATA = json.loads((FOLDER / "metadata.json").read_text())
PARAMETERS = {entry["name"]: entry for entry in METADATA["parameters"]}
REQUIRED = {"recipe", "stream"}
NOT_FOR_TEMPLATES = {
    "follow": "waits for trainers, while a launch ends with the submission",
    "endless": "goes with follow",
    "lookahead": "goes with follow",
    "retain": "goes with follow",
    "json": "nobody reads what a launcher prints",
}
"""Options of `run` that no parameter stands for, and why."""
# As docs.cloud.google.com/dataflow/docs/guides/templates/configuring-flex-templates has them.
FIELDS = {"name": str, "label": str, "helpText": str, "isOptional": bool, "regexes": list}
KINDS = {"TEXT", "NUMBER", "BOOLEAN", "GCS_READ_FILE", "GCS_WRITE_FOLDER"}
TEMPLATE = "--template_location=gs://bucket/templates/job_object"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingCloud]:
    """Let the Dataflow runner of this process talk to a server of ours, and to nobody else."""
    with recording_cloud() as server:
        yield enter_cloud(server, monkeypatch)


def test_the_metadata_have_the_shape_that_google_documents() -> None:
    """Fields, types and patterns; a name is a word that can be a flag."""
    assert set(METADATA) == {"name", "description", "parameters"}
    assert len(PARAMETERS) == len(METADATA["parameters"])
    for entry in METADATA["parameters"]:
        assert set(entry) <= {*FIELDS, "paramType"}
        assert {"name", "label", "helpText"} <= set(entry)
        assert all(isinstance(entry[name], kind) for name, kind in FIELDS.items() if name in entry)
        assert entry["paramType"] in KINDS
        assert re.fullmatch("[a-z_]+", entry["name"])
        for pattern in entry["regexes"]:
            assert pattern.startswith("^")
            assert pattern.endswith("$")
            re.compile(pattern)


def test_parameters_are_the_options_of_the_command() -> None:
    """An option of `run` is a parameter, or it is said here why not."""
    own = set(run_parameters())
    assert own == (own & set(PARAMETERS)) | set(NOT_FOR_TEMPLATES)
    assert not set(NOT_FOR_TEMPLATES) & set(PARAMETERS)
    for name in set(PARAMETERS) - own - {RECIPE}:
        # Whatever is neither ours nor Beam's is refused here.
        parse_beam_options(["--runner=DataflowRunner", f"--{name}=x"])
    required = {name for name, entry in PARAMETERS.items() if not entry.get("isOptional")}
    assert required == REQUIRED


def test_required_parameters_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """And the command's errors name the others as they are written on its line."""
    for left_out in sorted(REQUIRED):
        given = [f"--{name}=gs://x" for name in sorted(REQUIRED) if name != left_out]
        assert main(command_line(given)) == 2
        assert left_out in capsys.readouterr().err.lower()
    with pytest.raises(RecipeError, match="--until_sample"):
        parse_beam_options(["--runner=DataflowRunner", "--until_sample=3"])


@pytest.mark.parametrize("name", ["advance_bytes", "drain_bytes"])
@pytest.mark.parametrize("text", ["1", "64KiB", "16MiB", "8GiB", "0.5", "MiB", "-1", "8 TiB"])
def test_what_a_pattern_lets_through_is_a_size(name: str, text: str) -> None:
    """What it stops would not be one that people write."""
    (pattern,) = PARAMETERS[name]["regexes"]
    if re.search(pattern, text):
        assert parse_byte_size(name, text) > 0
    else:
        assert text in ("0.5", "MiB", "-1", "8 TiB")


def test_the_pattern_of_backends_is_their_list() -> None:
    """A new backend is a new word in it."""
    (pattern,) = PARAMETERS["backend"]["regexes"]
    assert re.fullmatch(r"\^\((.*)\)\$", pattern)[1].split("|") == list(BACKENDS)  # type: ignore[index]


def test_parameters_become_words_of_the_command() -> None:
    """Those of Beam, which the launcher adds, stay as they are."""
    words = command_line(
        ["--runner=DataflowRunner", "--recipe=/r.yaml", "--until_samples=5", "--no_auth"]
    )
    assert words == ["run", "/r.yaml", "--runner=DataflowRunner", "--until-samples=5", "--no_auth"]


def launch(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """Run the launcher's program as the launcher does."""
    monkeypatch.setattr("sys.argv", ["launch.py", *flags])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(FOLDER / "launch.py"), run_name="__main__")
    assert left.value.code == 0


def test_launches_until_nothing_is_left_make_the_stream(
    cloud: RecordingCloud, narrow: SmallStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stores one job and submits none; a second launch of an advance is the same job again."""
    stream = tmp_path / "stream"
    flags = [
        *(f"--recipe={narrow.recipe}", f"--stream={stream}", f"--advance_bytes={120 * 1024}"),
        *(*cloud_flags(cloud), TEMPLATE),
    ]
    launches = 0
    seen: list[Any] = []
    while True:
        launch(monkeypatch, *flags)
        stored = cloud.objects.pop("templates/job_object", None)
        if stored is None:
            break
        job = json.loads(stored)
        launches += 1
        seen.append(sorted(stream.glob("advances/*")))
        if launches == 1:
            continue  # as if the job had failed
        run_job(cloud, job, python_urns.EMBEDDED_PYTHON, "")
        carries = {path.name for path in stream.glob("carry/*/*")}
        assert len(carries) <= 3, "carries that nothing starts from must go"
    assert not cloud.jobs
    assert seen[0] == seen[1]
    assert launches >= 4
    assert tree(stream) == narrow.tree


def test_a_template_is_for_dataflow(tmp_path: Path) -> None:
    """No other engine would look at it."""
    with pytest.raises(RecipeError, match=r"--template_location must come with --runner Dataflow"):
        parse_beam_options(["--runner=FlinkRunner", f"--template_location={tmp_path}"])
