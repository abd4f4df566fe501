"""What importing the reader loads."""

import subprocess
import sys
from pathlib import Path

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


def test_the_reader_loads_numpy_and_pyarrow_only() -> None:
    """A trainer needs no pipeline package."""
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"  # .pth files may have loaded some
        "import zephon_beam.reader\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "assert 'numpy' in new\n"
        f"print(sorted(new & set({FORBIDDEN!r})))"
    )
    root = Path(__file__).resolve().parents[3]
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=root
    ).stdout
    assert output.strip() == "[]"
