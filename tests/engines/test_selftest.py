"""`selftest`: engines are compared, a difference is named, and what is missing is said."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines import selftest
from pipelines.main import main
from pipelines.run import run_stream
from zephon_beam.errors import ZephonBeamError


def cells(out: str) -> list[dict[str, Any]]:
    """Return what `--json` printed of each cell."""
    found: list[dict[str, Any]] = json.loads(out)["cells"]
    return found


def test_engines_that_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """Another order of arrivals and another number of advances give one digest."""
    assert main(["selftest", "--short", "--engines=direct,direct-repeat", "--json"]) == 0
    found = cells(capsys.readouterr().out)
    assert [(cell["engine"], cell["arrivals"]) for cell in found] == [
        ("direct", None),
        ("direct", 1),
        ("direct-repeat", None),
        ("direct-repeat", 1),
    ]
    assert len({cell["digest"] for cell in found}) == 1
    assert found[0]["advances"] == 1
    assert found[1]["advances"] > 1


def test_an_engine_that_disagrees_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its digest, and the exit status says so too."""

    def run(recipe: Any, stream: Path, *, options: list[str], **others: Any) -> Any:
        seed = 1 if "--direct_runner_bundle_repeat=1" in options else recipe.seed
        return run_stream(replace(recipe, seed=seed), stream, options=options, **others)

    monkeypatch.setattr(selftest, "run_stream", run)
    assert main(["selftest", "--short", "--engines=direct,direct-repeat"]) == 1
    lines = capsys.readouterr().out.splitlines()
    wrong = [line for line in lines if line.startswith("differs: ")]
    assert len(wrong) == 2
    assert wrong[0].startswith("differs: direct-repeat, arrivals as delivered, 1 advances: ")


def test_an_engine_that_fails_is_named_and_the_others_still_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason."""

    def run(*_: Any, options: list[str], **__: Any) -> Any:
        if "--direct_runner_bundle_repeat=1" in options:
            raise ZephonBeamError("worker process must stay alive")
        return run_stream(*_, options=options, **__)

    monkeypatch.setattr(selftest, "run_stream", run)
    assert main(["selftest", "--short", "--engines=direct-repeat,direct"]) == 1
    out = capsys.readouterr().out
    assert out.count("failed: worker process must stay alive") == 2
    assert out.count("\ndirect   ") == 2


def test_what_is_missing_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is no difference, but a comparison of nothing does not pass."""
    monkeypatch.setenv("ZEPHON_BEAM_ENGINES", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert main(["selftest", "--engines=prism,flink,spark,portable", "--install"]) == 1
    out = capsys.readouterr().out
    assert "prism             not available: install Go 1.26 or newer\n" in out
    assert "flink             not available: install Java 17 and Maven 3.6 or newer\n" in out
    assert "portable          not available: name one with --job_endpoint\n" in out
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("go", "java", "mvn"):
        (tools / name).write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/bin:/usr/bin")
    assert main(["selftest", "--engines=prism,flink"]) == 1
    assert "run selftest with --install (about 2 minutes" in capsys.readouterr().out
    assert main(["selftest", "--engines=prism,flink", "--install"]) == 1
    assert capsys.readouterr().out.count("failed: no network") == 2
    assert not list((tmp_path / "empty").glob("*"))


def test_an_engine_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With the nearest one, before anything runs."""
    assert main(["selftest", "--engines=direct,flonk"]) == 2
    assert "got 'flonk'; nothing was run; did you mean flink?" in capsys.readouterr().err


def test_an_endpoint_of_the_user_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    """Here it is the embedded one; flags for engines do not reach the in-process ones."""
    words = ["--engines=direct,portable", "--job_endpoint=embed", "--short", "--json"]
    assert main(["selftest", *words]) == 0
    assert len(cells(capsys.readouterr().out)) == 4
