"""The images for workers and templates: what can be said of them where none can be built."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from pipelines.engines.software import BEAM_VERSION
from tests.installed import PACKAGES, copy_source
from tests.pipelines.small_streams import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

BOOT = 'ENTRYPOINT ["/opt/apache/beam/boot"]'
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Step(NamedTuple):
    """An instruction of a Dockerfile."""

    name: str
    words: str


def steps(file: str) -> list[Step]:
    """Return the instructions of a Dockerfile, each on a line."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [Step(*line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def pinned(package: str) -> str:
    """Return the version of a package that constraints.txt has for every Python."""
    found = re.findall(rf"^{package}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M | re.I)
    assert len(found) == 1, package
    return str(found[0])


def test_the_base_is_beams_image_of_the_pinned_version() -> None:
    """In both stages, so that what is built fits where it is installed."""
    assert pinned("apache-beam") == BEAM_VERSION
    bases = [step.words.partition(" AS ")[0] for step in steps("Dockerfile") if step.name == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1
    python, version = re.fullmatch(r"apache/beam_python(3\.\d+)_sdk:(.*)", bases[0]).groups()  # type: ignore[union-attr]
    assert version == BEAM_VERSION
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]


@pytest.mark.parametrize("file", ["Dockerfile", "dataflow/Dockerfile"])
def test_the_start_of_a_worker_is_beams(file: str) -> None:
    """Nothing comes after it, and nothing replaces it by a command."""
    found = steps(file)
    assert f"{found[-1].name} {found[-1].words}" == BOOT
    assert not [step for step in found if step.name == "CMD"]
    assert sum(step.name == "ENTRYPOINT" for step in found) == 1


@pytest.mark.parametrize("file", ["Dockerfile", "dataflow/Dockerfile"])
def test_what_is_copied_exists(file: str) -> None:
    """In the tree, or in an earlier stage; what a template adds is its builder's."""
    stages = re.findall(r"^FROM .* AS (\w+)$", (ROOT / file).read_text(), re.M)
    for step in steps(file):
        if step.name != "COPY":
            continue
        stage = re.match(r"--from=(\w+) ", step.words)
        if stage:
            assert stage[1] in stages
            continue
        *sources, _ = step.words.split()
        assert all((ROOT / source).exists() or source == "${RECIPE_FOLDER}" for source in sources)


def test_the_template_starts_the_program_that_it_copies() -> None:
    """The launcher finds it by a variable."""
    found = {step.name: step.words for step in steps("dataflow/Dockerfile")}
    name, _, program = found["ENV"].partition("=")
    assert name == "FLEX_TEMPLATE_PYTHON_PY_FILE"
    assert ("COPY", f"dataflow/launch.py {program}") in steps("dataflow/Dockerfile")


def test_the_image_installs_this_version_with_what_workers_need() -> None:
    """The extras exist, and the wheel has the version that is asked for."""
    (text,) = re.findall(r"'(zephon-beam\[.*)'", (ROOT / "Dockerfile").read_text())
    extras, version = re.fullmatch(r"zephon-beam\[(.*)\]==(.*)", text).groups()  # type: ignore[union-attr]
    assert version == PROJECT["version"]
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_requirements_of_workers_are_those_of_the_extra() -> None:
    """All but Beam, which is in Beam's image, at the versions of our own."""
    lines = (ROOT / "dataflow" / "requirements.txt").read_text().splitlines()
    asked = {re.split("[<>=]", line)[0]: line for line in lines if not line.startswith("#")}
    extra = {re.split(r"[\[<>=]", line)[0] for line in PROJECT["optional-dependencies"]["beam"]}
    assert set(asked) == extra - {"apache-beam"}
    for name, line in asked.items():
        assert line == f"{name}=={pinned(name)}"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Return a folder that stands for the root of an image, with an environment of Python."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "python")], check=True)
    return tmp_path


def execute(image: Path, step: Step) -> None:
    """Do in a folder what an instruction would do in an image."""
    if step.name == "COPY":
        *sources, place = [word for word in step.words.split() if not word.startswith("--")]
        base = image if "--from=" in step.words else ROOT
        target = image / place.strip("/") if place.startswith("/") else image / "src" / place
        (target if place.endswith("/") else target.parent).mkdir(parents=True, exist_ok=True)
        for word in sources:
            source = base / word.strip("/")
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
            else:
                shutil.copy(source, target)
    elif step.name == "RUN":
        places = re.sub(r"(?<=\s)/(wheels|opt)", rf"{image}/\1", step.words)
        path = f"{image / 'python' / 'bin'}:{os.environ['PATH']}"
        subprocess.run(
            places, shell=True, check=True, cwd=image / "src", env={**os.environ, "PATH": path}
        )


def test_the_first_stage_builds_the_wheel_from_what_it_copies(image: Path) -> None:
    """Nothing that the build needs is missing from the copies."""
    found = steps("Dockerfile")
    second = [place for place, step in enumerate(found) if step.name == "FROM"][1]
    for step in found[:second]:
        execute(image, step)
    (wheel,) = (image / "wheels").glob("*.whl")
    assert wheel.name.startswith(f"zephon_beam-{PROJECT['version']}-")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_line_of_the_image_works_in_an_empty_environment(image: Path) -> None:
    """It installs some 500 MB from the package index; only Beam's programs are missing after it."""
    for step in steps("Dockerfile"):
        execute(image, step)
    python = image / "python" / "bin" / "python"
    words = [
        python,
        "-I",
        "-c",
        "import transforms.tokenizers.fast_tokens, transforms.media.libraries",
    ]
    subprocess.run(words, check=True, cwd=image)
    assert (image / "python" / "bin" / "zephon-beam-worker").is_file()


def test_a_copy_of_the_source_is_what_the_image_builds_from(tmp_path: Path) -> None:
    """So that tests of packages say something of the image, too."""
    copied = {
        word.rstrip("/")
        for step in steps("Dockerfile")
        if step.name == "COPY" and "--from" not in step.words
        for word in step.words.split()[:-1]
    }
    assert copied - {"constraints.txt"} == {path.name for path in copy_source(tmp_path).iterdir()}
