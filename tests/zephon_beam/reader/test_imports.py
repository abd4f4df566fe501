"""What importing the reader loads."""

import subprocess
import sys
from pathlib import Path

import pytest

FORBIDDEN = (
    "apache_beam",
    "yaml",
    "tokenizers",
    "torch",
    "google",
    "obstore",
    "fastavro",
    "tqdm",
    "transforms",
    "pipelines",
)


ROOT = Path(__file__).resolve().parents[3]


def run(code: str) -> str:
    """Run code in a fresh interpreter; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module",
    ["zephon_beam.reader", "zephon_beam.serve", "zephon_beam.formats", "zephon_beam.naming"],
)
def test_a_trainer_loads_numpy_and_pyarrow_only(module: str) -> None:
    """It needs no pipeline package, also where it starts a pipeline."""
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"  # .pth files may have loaded some
        f"import {module}\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        f"print(sorted(new & set({FORBIDDEN!r})), 'numpy' in new)"
    )
    assert run(code).startswith("[]")
    assert run(code).endswith("True") or module == "zephon_beam.naming"


def test_the_torch_adapter_without_torch_says_what_to_install() -> None:
    """And what works without it."""
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "try:\n"
        "    import zephon_beam.torch\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert "torch must be installed" in run(code)
    assert "pip install 'zephon-beam[torch]'" in run(code)
