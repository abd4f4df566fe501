"""`doctor`: what it says of a machine, a recipe and a place, and that it leaves nothing behind."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pipelines.doctor
from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.main import main
from tests.pipelines.small_streams import SmallStream, environment, write_recipe
from tests.pipelines.test_fork import everything
from zephon_beam.store.local import LocalStore

Capture = pytest.CaptureFixture[str]


def doctor(capsys: Capture, *words: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Run the command; return (status, {check: (status, text)})."""
    status = main(["doctor", *words, "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] == (status == 0)
    return status, {check["name"]: (check["status"], check["text"]) for check in facts["checks"]}


def test_a_machine_a_recipe_and_a_stream_in_order(endless: SmallStream, capsys: Capture) -> None:
    """What is found is told; the stream is as it was."""
    before = everything(endless.folder)
    status, found = doctor(capsys, str(endless.recipe), "--stream", str(endless.folder))
    assert status == 0
    assert all(found[name][0] == "ok" for name in ("python", "apache-beam", "numpy", "memory"))
    assert found["datasets.code"][1].startswith("60 files, ")
    assert found["datasets.rows"][1].endswith(", parquet")
    assert found["tokenizer"][1] == f"{TOKENIZER_FILE}, by fastokens"
    assert "small, " in found["stream"][1]
    assert found["store"] == ("ok", "creates objects once, and deletes them")
    assert everything(endless.folder) == before
    assert main(["doctor", str(endless.recipe)]) == 0
    assert "ok       datasets.code: 60 files, " in capsys.readouterr().out


def test_what_would_stop_a_run_is_a_fault(
    endless: SmallStream, tmp_path: Path, capsys: Capture
) -> None:
    """A recipe that does not load, files or fields that are not there, and drift."""
    for changes, text in (
        ([("lanes: 3", "lanes: 0")], "lanes must be"),
        ([("prose/*.jsonl", "nowhere/*.jsonl")], "datasets.prose: "),
        ([("text: body", "text: nobody")], "datasets.rows: "),
        ([("seed: 7", "seed: 7\nbad: 1")], "bad"),
    ):
        recipe = write_recipe(endless.recipe.parent / "faulty.yaml", changes=changes)
        status, found = doctor(capsys, str(recipe))
        assert status == 1
        assert found["recipe"][0] == "fault"
        assert text in found["recipe"][1]
    recipe = write_recipe(endless.recipe.parent / "drift.yaml", changes=[("0.5", "0.6")])
    status, found = doctor(capsys, str(recipe), "--stream", str(endless.folder))
    assert status == 1
    assert found["stream"][0] == "fault"
    assert "datasets.code.weight" in found["stream"][1]
    new = endless.recipe.parent / "prose" / "part-9.jsonl"
    new.write_text('{"text": "one more"}\n')
    status, found = doctor(capsys, str(endless.recipe), "--stream", str(endless.folder))
    new.unlink()
    assert status == 1
    assert "'part-9.jsonl' is new" in found["stream"][1]
    place = tmp_path / "file"
    place.write_text("")
    assert doctor(capsys, "--stream", str(place / "s"))[0] == 1


def test_a_place_that_does_not_keep_what_was_created_is_a_fault(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs could mix their shards there; a new place is left without a file."""
    assert doctor(capsys, "--stream", str(tmp_path / "s"))[0] == 0
    assert everything(tmp_path) == {}

    class Forgetful(LocalStore):
        def put_if_absent(self, name: str, data: bytes, same: Any = None) -> bool:
            self.delete(name)
            return super().put_if_absent(name, data, same)

    monkeypatch.setattr(pipelines.doctor, "open_store", Forgetful)
    status, found = doctor(capsys, "--stream", str(tmp_path / "s"))
    assert status == 1
    assert "must create an object once and keep it" in found["store"][1]
    assert everything(tmp_path) == {}


WITHOUT_BEAM = """
import sys
sys.modules["apache_beam"] = sys.modules["yaml"] = None
import pipelines.doctor
pipelines.doctor._version = lambda name: "" if name in ("apache-beam", "PyYAML", "torch") else "1"
from pipelines.main import main
sys.exit(main(["doctor", "recipe.yaml", "--stream", sys.argv[1], "--json"]))
"""


def test_a_library_that_is_not_installed_says_what_is_lost(tmp_path: Path) -> None:
    """One that a run needs is a fault, and nothing more is looked at; any other is missing."""
    words = [sys.executable, "-c", WITHOUT_BEAM, str(tmp_path / "s")]
    done = subprocess.run(words, capture_output=True, text=True, env=environment())
    assert done.returncode == 1, done.stderr
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert [name for name, check in found.items() if check["status"] == "fault"] == [
        "apache-beam",
        "PyYAML",
    ]
    assert found["torch"]["text"] == "no zephon_beam.torch; pip install 'zephon-beam[torch]'"
    assert found["torch"]["status"] == "missing"
    assert "store" not in found
