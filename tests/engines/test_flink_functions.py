"""Functions of a recipe on the workers of a real Flink cluster: staged, on a path, or missing."""

import json
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.run import run_stream
from tests.engines.engine_streams import ENGINE_MARKS
from tests.pipelines.small_streams import tree, write_json_lines
from tests.stored_documents import stored_texts
from zephon_beam.errors import RecipeError

pytestmark = ENGINE_MARKS

MODULE = "shouting_texts"
FUNCTION = "from shouting_marks import MARK\n\n\ndef shout(text):\n    return text.upper() + MARK\n"
HELPER = "MARK = '!'\n"
TEXTS = [f"document number {number}" for number in range(300)]
RECIPE = """\
name: functions
lanes: 2
seq_len: 64
samples_per_shard: 8
chunk_bytes: 16KiB
tokenizer: {{path: {tokenizer}}}
datasets:
  prose:
    files: prose/*.jsonl
    passes: 1
    transforms: [{{call: "{module}:shout", version: "1"}}]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Return a recipe that calls a function which is not beside it."""
    write_json_lines(tmp_path / "corpus" / "prose", TEXTS, files=2)
    path = tmp_path / "corpus" / "recipe.yaml"
    path.write_text(RECIPE.format(tokenizer=TOKENIZER_FILE, module=MODULE))
    return path


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Import the function in this process, from a folder that no worker has as its own."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(FUNCTION)
    (folder / "shouting_marks.py").write_text(HELPER)
    monkeypatch.syspath_prepend(str(folder))
    __import__(MODULE)
    yield folder
    for name in (MODULE, "shouting_marks"):
        del sys.modules[name]


@pytest.fixture
def wheel(code: Path, tmp_path: Path) -> Path:
    """Return a wheel with the function."""
    path = tmp_path / "shouting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in code.glob("*.py"):
            archive.write(file, file.name)
        archive.writestr("shouting-1.0.dist-info/METADATA", "Name: shouting\nVersion: 1.0\n")
    return path


def process_flags(flink_flags: list[str], program: Path, **config: object) -> list[str]:
    """Return what makes the task managers start a program for each worker."""
    environment = json.dumps({"command": str(program), **config})
    return [
        *(*flink_flags, "--parallelism=1", "--environment_type=PROCESS"),
        f"--environment_config={environment}",
    ]


def move_away(code: Path) -> None:
    """Make the folder one that only the driver has had, as if workers were on other machines."""
    shutil.rmtree(code)


def test_a_staged_wheel_brings_a_function_to_worker_processes(
    flink_flags: list[str],
    recipe: Path,
    code: Path,
    wheel: Path,
    worker_program: Path,
    tmp_path: Path,
) -> None:
    """With what it imports; other machines have neither, and their environment stays as it is."""
    run_stream(recipe, tmp_path / "here")
    move_away(code)
    cache = {"ZEPHON_BEAM_ENGINES": str(tmp_path / "cache")}
    flags = [
        *process_flags(flink_flags, worker_program, env=cache),
        f"--extra_package={wheel}",
    ]
    run_stream(recipe, tmp_path / "there", options=flags)
    assert tree(tmp_path / "there") == tree(tmp_path / "here")
    (unpacked,) = (tmp_path / "cache" / "packages").iterdir()
    assert (unpacked / f"{MODULE}.py").read_text() == FUNCTION
    found = stored_texts(tmp_path / "there", TOKENIZER_FILE)
    assert found == sorted(text.upper() + "!" for text in TEXTS)


def test_a_path_of_the_environment_brings_a_function_to_worker_processes(
    flink_flags: list[str], recipe: Path, code: Path, worker_program: Path, tmp_path: Path
) -> None:
    """A folder that every machine has, other than the driver's."""
    shared = shutil.copytree(code, tmp_path / "shared")
    run_stream(recipe, tmp_path / "here")
    move_away(code)
    flags = process_flags(flink_flags, worker_program, env={"PYTHONPATH": str(shared)})
    run_stream(recipe, tmp_path / "there", options=flags)
    assert tree(tmp_path / "there") == tree(tmp_path / "here")


def test_a_function_that_workers_cannot_import_is_an_error_that_names_the_repair(
    flink_flags: list[str], recipe: Path, code: Path, worker_program: Path, tmp_path: Path
) -> None:
    """And not the end of a process, or a job that waits."""
    move_away(code)
    flags = process_flags(flink_flags, worker_program)
    with pytest.raises(RecipeError, match=f"no module '{MODULE}'.*--extra_package") as caught:
        run_stream(recipe, tmp_path / "there", options=flags)
    assert "\n" not in str(caught.value)
