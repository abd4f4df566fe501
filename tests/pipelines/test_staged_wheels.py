"""Wheels that a job stages: unpacked once for all workers, and behind everything else."""

import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.staged_wheels import add_staged_wheels, unpack_wheel


def wheel(path: Path, **modules: str) -> bytes:
    """Return a wheel with some modules."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in modules.items():
            archive.writestr(f"{name}.py", text)
    return path.read_bytes()


def test_workers_that_unpack_at_once_share_one_folder(tmp_path: Path) -> None:
    """Nothing else is left, and another content is another folder."""
    content = wheel(tmp_path / "a.whl", **{f"module_{n}": "x = 1\n" for n in range(50)})
    parent = tmp_path / "packages"
    with ThreadPoolExecutor(8) as workers:
        (folder,) = set(workers.map(lambda _: unpack_wheel(content, parent), range(16)))
    assert list(parent.iterdir()) == [folder]
    assert len(list(folder.iterdir())) == 50
    other = unpack_wheel(wheel(tmp_path / "b.whl", module_0="x = 2\n"), parent)
    assert other != folder
    assert unpack_wheel(content, parent) == folder


def test_a_wheel_that_cannot_be_read_leaves_nothing(tmp_path: Path) -> None:
    """The next worker does not take a half for the whole."""
    content = wheel(tmp_path / "a.whl", module_a="x = 1\n", module_b="x = 2\n")
    with pytest.raises(zipfile.BadZipFile):
        unpack_wheel(content.replace(b"x = 2", b"x = 3"), tmp_path / "packages")
    assert not list((tmp_path / "packages").iterdir())


def test_a_job_that_stages_no_wheel_is_not_asked_for_any() -> None:
    """Its engine may have no place for them."""
    path = list(sys.path)
    add_staged_wheels(SimpleNamespace(dependencies=[], artifact_endpoint=None), "1")
    assert sys.path == path
