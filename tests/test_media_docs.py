"""docs/media.md stays true: its data, its recipe and its reader work as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

from pipelines.run import run_stream
from tests.clips import real_clips
from zephon_beam.verification import verify_stream

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "media.md").read_text()


def test_the_guide_can_be_followed_from_nothing(tmp_path: Path) -> None:
    """Every block, in the order of the page; all items of all passes come out."""
    clips = real_clips()
    blocks = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", GUIDE, re.DOTALL)
    assert [name for name, _ in blocks] == ["make_data.py", "recipe.yaml", "read.py"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    python(tmp_path, "make_data.py")
    assert run_stream(tmp_path / "recipe.yaml", tmp_path / "stream")["finished"]
    assert verify_stream(str(tmp_path / "stream")).faults == ()
    assert python(tmp_path, "read.py") == f"{4 * 4 * len(clips)} items\n"


def python(folder: Path, name: str) -> str:
    """Run a program of the page in a folder."""
    code = f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); runpy.run_path({name!r})"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout
