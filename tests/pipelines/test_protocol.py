"""The commit protocol under attack: foreign heads, lost names, late drivers, lanes that starve."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipelines import driver
from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.run import run_stream
from tests.pipelines.small_streams import tree
from zephon_beam.errors import CorruptObjectError, DriftError, RecipeError, SourceError
from zephon_beam.manifest import read_manifest
from zephon_beam.recipe_mapping import recipe_from_mapping
from zephon_beam.store.base import open_store
from zephon_beam.verification import verify_stream

WORDS = [f"document number {n} says " + "the same thing again " * (n % 7) for n in range(400)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Write two files of short documents."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, words in (("a", WORDS[:250]), ("b", WORDS[250:])):
        lines = [json.dumps({"text": text}) + "\n" for text in words]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def make_recipe(corpus: Path, **changes: Any) -> Any:
    """Return a recipe of one endless data set over 2 lanes, with changes."""
    dataset = {"files": str(corpus / "*.jsonl"), **changes.pop("dataset", {})}
    return recipe_from_mapping(
        {
            "name": "protocol",
            "lanes": 2,
            "seq_len": 32,
            "samples_per_shard": 4,
            "chunk_bytes": 1024,
            "shuffle": {"interleave": 2},
            "packing": {"open_bins": 4},
            "tokenizer": {"path": str(TOKENIZER_FILE)},
            "datasets": {"lines": dataset},
            **changes,
        }
    )


def newest_carry(stream: Path, lane: int) -> Path:
    """Return the file of a lane's newest carry."""
    return max((stream / "carry" / f"lane-{lane:05d}").iterdir())


def test_a_carry_of_another_lane_is_not_believed(corpus: Path, tmp_path: Path) -> None:
    """It would mix two lanes; the lane goes back to its own last state instead."""
    recipe = make_recipe(corpus)
    run_stream(recipe, tmp_path / "expected", until_samples=200)
    stream = tmp_path / "stream"
    run_stream(recipe, stream, until_samples=40, advance_bytes=1)
    shutil.copy(newest_carry(stream, 0), newest_carry(stream, 1))
    run_stream(recipe, stream, until_samples=200)
    assert verify_stream(str(stream), until_samples=200).ok
    expected, found = tree(tmp_path / "expected"), tree(stream)
    common = expected.keys() & found.keys()
    assert sum(name.startswith("shards/") for name in common) >= 50
    assert all(expected[name] == found[name] for name in common)


def test_lanes_go_on_from_states_when_a_shard_and_a_head_are_lost(
    corpus: Path, tmp_path: Path
) -> None:
    """The newest plan cannot be run again without its head, though its carries are there."""
    recipe = make_recipe(corpus)
    run_stream(recipe, tmp_path / "expected", until_samples=300)
    stream = tmp_path / "stream"
    run_stream(recipe, stream, until_samples=120, advance_bytes=1)
    plans = sorted((stream / "advances").iterdir())
    kind, number = json.loads(plans[-1].read_text())["lanes"][0]["head"]
    assert kind == "carry"
    (stream / f"carry/lane-00000/{number:06d}.avro").unlink()
    max((stream / "shards" / "lane-00000").iterdir()).unlink()
    run_stream(recipe, stream, until_samples=200, advance_bytes=1)
    assert verify_stream(str(stream), until_samples=200).ok
    expected, found = tree(tmp_path / "expected"), tree(stream)
    common = expected.keys() & found.keys()
    assert sum(name.startswith("shards/") for name in common) >= 50
    assert all(expected[name] == found[name] for name in common)


def test_a_stream_without_its_name_is_not_taken_over(corpus: Path, tmp_path: Path) -> None:
    """Shards without stream.json belong to a recipe that nobody can name."""
    stream = tmp_path / "stream"
    run_stream(make_recipe(corpus), stream, until_samples=8)
    (stream / "stream.json").unlink()
    with pytest.raises(CorruptObjectError, match=r"stream must hold stream\.json.*restore"):
        run_stream(make_recipe(corpus, seed=1), stream, until_samples=8)


def test_plans_of_another_stream_are_refused(corpus: Path, tmp_path: Path) -> None:
    """A plan names the stream that it was made for."""
    for seed in (0, 1):
        run_stream(make_recipe(corpus, seed=seed), tmp_path / str(seed), until_samples=8)
    shutil.copytree(tmp_path / "1" / "advances", tmp_path / "0" / "advances", dirs_exist_ok=True)
    with pytest.raises(DriftError, match=r"advances/000000\.json: fingerprint: expected"):
        run_stream(make_recipe(corpus), tmp_path / "0", until_samples=80)


def test_a_stream_is_not_created_among_other_files(corpus: Path) -> None:
    """A user's folder stays as it is."""
    with pytest.raises(RecipeError, match=r"stream must be an empty or new folder.*a\.jsonl"):
        run_stream(make_recipe(corpus), corpus, until_samples=8)
    assert sorted(path.name for path in corpus.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_foreign_files_are_passed_over(corpus: Path, tmp_path: Path) -> None:
    """Network file systems and editors leave files of their own."""
    stream = tmp_path / "stream"
    run_stream(make_recipe(corpus), stream, until_samples=8, advance_bytes=1)
    for name in (
        "advances/.nfs0001",
        "advances/000009.json.bak",
        "advances/9.json",
        "carry/lane-00000/.nfs7",
    ):
        (stream / name).touch()
    assert run_stream(make_recipe(corpus), stream, until_samples=80)["complete_samples"] >= 80


def test_a_limited_run_of_lanes_that_end_early_reaches_its_limit(tmp_path: Path) -> None:
    """One lane gets files of almost nothing; the others make up for it."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(60):
        text = "a" + " " * 1100 if number % 3 == 1 else "many more words than that " * 50
        (corpus / f"{number:02d}.txt").write_text(text)
    recipe = make_recipe(
        corpus,
        lanes=3,
        shuffle={"chunks": False, "interleave": 1},
        dataset={"files": str(corpus / "*.txt"), "format": "text", "passes": 1},
    )
    facts = run_stream(recipe, tmp_path / "stream", until_samples=330, advance_bytes=1)
    assert facts["complete_samples"] >= 330
    assert not facts["finished"]
    total = run_stream(recipe, tmp_path / "stream")
    assert total["finished"]
    assert run_stream(recipe, tmp_path / "stream", until_samples=10**6)["advances"] == 0


def test_an_overtaken_driver_goes_on_where_the_other_one_is(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While this driver sleeps its twin completes advances and deletes what they replaced."""
    recipe, stream = make_recipe(corpus), tmp_path / "stream"
    original, calls = driver.run_advance, []

    def overtaken(*args: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            monkeypatch.setattr(driver, "run_advance", original)
            run_stream(recipe, stream, until_samples=120, advance_bytes=1)
        original(*args, **options)

    monkeypatch.setattr(driver, "run_advance", overtaken)
    facts = run_stream(recipe, stream, until_samples=160, advance_bytes=1)
    assert facts["complete_samples"] >= 160
    assert verify_stream(str(stream)).ok


@pytest.mark.parametrize(
    ("passes", "interleave", "text"),
    [
        ("repeat", 64, "up to 4 passes are read at once"),
        (3, 64, "up to 3 passes are read at once"),
        ("repeat", 2, ""),
        (1, 64, ""),
    ],
)
def test_passes_that_overlap_are_warned_of(
    corpus: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    passes: Any,
    interleave: int,
    text: str,
) -> None:
    """Lanes that keep more chunks open than there are repeat documents early."""
    recipe = make_recipe(corpus, dataset={"passes": passes}, shuffle={"interleave": interleave})
    run_stream(recipe, tmp_path / "stream", until_samples=8)
    assert read_manifest(open_store(str(tmp_path / "stream"))).datasets[0].chunk_count == 40
    found = [entry.message for entry in caplog.records if "passes are read" in entry.message]
    assert len(found) == bool(text)
    assert all(text in message for message in found)


def test_an_endless_search_for_documents_is_refused(corpus: Path, tmp_path: Path) -> None:
    """All documents are longer than a row and dropped, pass after pass."""
    recipe = make_recipe(corpus, seq_len=2, packing={"overlong": "drop"})
    with pytest.raises(SourceError, match=r"datasets\.lines must give.*all were dropped"):
        run_stream(recipe, tmp_path / "stream", until_samples=8)


def test_a_lane_that_can_never_get_a_document_is_named(tmp_path: Path) -> None:
    """One line fills both chunks; unshuffled, the second lane always gets the second half."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.jsonl").write_text(json.dumps({"text": "long " * 300}) + "\n")
    recipe = make_recipe(corpus, shuffle={"chunks": False, "interleave": 1})
    with pytest.raises(SourceError, match=r"gives lane 1 none.*set shuffle\.chunks to true"):
        run_stream(recipe, tmp_path / "stream", until_samples=200)
