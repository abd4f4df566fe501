"""When one endless job may take the place of advances, and what is said when it may not."""

import gzip
import logging
from pathlib import Path

import pytest

from pipelines import endless as endless_jobs
from pipelines.main import main
from tests.pipelines.small_streams import (
    SmallStream,
    run,
    tree,
    write_json_lines,
    write_recipe,
    write_small_corpus,
)
from zephon_beam.errors import RecipeError

EMBEDDED = ["--runner=PortableRunner", "--job_endpoint=embed"]


def test_the_engine_in_process_is_refused(tmp_path: Path) -> None:
    """It would wait for the source's end; nothing is created."""
    recipe = write_recipe(tmp_path / "recipe.yaml")
    with pytest.raises(RecipeError, match=r"--endless must be given .*leave --endless out"):
        run(recipe, tmp_path / "s", follow=True, endless=True)
    assert not (tmp_path / "s").exists()


def test_it_needs_follow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else there would be no consumer to keep ahead of."""
    recipe = write_recipe(tmp_path / "recipe.yaml")
    words = ["run", str(recipe), "--stream", str(tmp_path / "s"), "--endless"]
    assert main([*words, "--until-samples", "9", "--runner", "PrismRunner"]) == 2
    assert "--endless must be given together with --follow" in capsys.readouterr().err


def test_an_engine_that_is_not_known_to_last_runs_advances(
    finite: SmallStream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And says so."""
    with caplog.at_level(logging.WARNING):
        facts = run(
            *(finite.recipe, tmp_path / "s"),
            follow=True,
            endless=True,
            lookahead=1 << 30,
            until_samples=1,
            options=EMBEDDED,
        )
    assert "PortableRunner is not known to carry such a job for long" in caplog.text
    assert facts["advances"] == 1
    assert set(tree(tmp_path / "s").items()) <= set(finite.tree.items())


def test_files_that_are_read_from_their_start_need_advances(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How many parts they have is known when they were read."""
    monkeypatch.setattr(endless_jobs, "_LASTING", ("PortableRunner",))
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_small_corpus(corpus)
    write_json_lines(corpus / "packed", [f"text number {n} of these" for n in range(400)], files=1)
    plain = corpus / "packed" / "part-0.jsonl"
    (corpus / "packed" / "part-0.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    changes = [("prose/*.jsonl", "packed/*.jsonl.gz")]
    recipe = write_recipe(corpus / "packed.yaml", finite=True, changes=changes)
    with caplog.at_level(logging.WARNING):
        facts = run(
            *(recipe, tmp_path / "s"),
            follow=True,
            endless=True,
            lookahead=1 << 30,
            options=EMBEDDED,
        )
    assert "datasets.prose has files that are read from their start" in caplog.text
    assert facts["finished"]
