"""The built wheel works without the source tree, and next to folders named like our packages."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.installed import LONGEST_SECS, PACKAGES, ROOT, copy_source, install, isolation
from tests.pipelines.test_golden_stream import STREAM


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the source tree."""
    source = copy_source(tmp_path_factory.mktemp("source"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation()]
    subprocess.run([*pip, "--wheel-dir", "out", "."], check=True, cwd=source, timeout=LONGEST_SECS)
    (built,) = (source / "out").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an environment of its own and return the command."""
    return install(wheel, tmp_path_factory.mktemp("environment")) / "zephon-beam"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a working directory with packages named like ours that must never be imported."""
    for name in (*PACKAGES, "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('shadowed')\n")
    return tmp_path


def call(
    program: Path, folder: Path, *words: str, **env: str
) -> "subprocess.CompletedProcess[str]":
    """Run the installed command in a folder, as if there were no source tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [program, *words],
        cwd=folder,
        env={**kept, **env},
        capture_output=True,
        text=True,
        timeout=LONGEST_SECS,
        check=False,
    )


def test_the_wheel_holds_our_packages_and_nothing_else(wheel: Path) -> None:
    """Data files are in it; tests and benchmarks are not."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert "pipelines/demo_data/tokenizer.json" in names
    assert "zephon_beam/py.typed" in names
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert sources <= set(names)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="in process"),
        pytest.param(
            ("--direct_running_mode=multi_processing", "--direct_num_workers=2"), id="processes"
        ),
    ],
)
def test_the_installed_command_runs_beside_folders_of_the_same_names(
    program: Path, hostile: Path, flags: tuple[str, ...]
) -> None:
    """Neither the command nor its worker processes import from the working directory."""
    recipe = str(ROOT / "tests/golden/recipe.yaml")
    done = call(program, hostile, "run", recipe, "--stream", "stream", *flags)
    assert done.returncode == 0, done.stderr
    done = call(program, hostile, "verify", "stream")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == f"stream digest: {STREAM}"


def test_the_installed_package_is_the_one_that_runs(program: Path, hostile: Path) -> None:
    """A test of the source tree by mistake would prove nothing."""
    python = program.with_name("python")
    code = "import pipelines, transforms, zephon_beam; print(pipelines, transforms, zephon_beam)"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-I", "-c", code],
        cwd=hostile,
        env=kept,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count(str(program.parent.parent)) == len(PACKAGES)


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("run", "--help")])
def test_help_of_the_installed_command_loads_no_beam(
    program: Path, hostile: Path, words: tuple[str, ...]
) -> None:
    """It answers at once."""
    done = call(program, hostile, *words, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0, done.stderr
    assert "zephon" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pipelines.main" in imported
    assert not imported & {"apache_beam", "tokenizers", "pyarrow", "torch"}
