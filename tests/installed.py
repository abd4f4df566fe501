"""Packages built from a copy of the source tree and installed into environments of their own."""

import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("zephon_beam", "transforms", "pipelines")
LONGEST_SECS = 300


def copy_source(folder: Path) -> Path:
    """Copy what a package is built from, so that building leaves nothing in the source tree."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


def isolation() -> list[str]:
    """Return the options of pip for building with what is installed, where that is enough.

    Older setuptools need another package for wheels; without the options pip gets what is missing.
    """
    modern = find_spec("setuptools") is not None and (
        find_spec("wheel") is not None or int(metadata.version("setuptools").split(".")[0]) > 70
    )
    return ["--no-build-isolation"] if modern else []


def install(package: Path, folder: Path) -> Path:
    """Install a package into a new environment, and return its `bin`.

    Its dependencies are those of the running interpreter, by their folder; ours are not, also where
    they are installed there.
    """
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60
    )
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    if package.suffix == ".whl":
        pip.append("--no-index")
    else:
        pip += isolation()
    subprocess.run([*pip, "--no-deps", str(package)], check=True, timeout=LONGEST_SECS)
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([python, "-c", show], check=True, capture_output=True, text=True)
    others = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (Path(found.stdout.strip()) / "dependencies.pth").write_text("".join(f"{p}\n" for p in others))
    return folder / "bin"
