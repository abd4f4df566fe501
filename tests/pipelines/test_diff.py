"""What is said to be the first sample in which two streams differ, and why."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.main import main
from tests.pipelines.small_streams import run, write_json_lines
from zephon_beam.comparison import compare_streams
from zephon_beam.errors import StreamNotFoundError
from zephon_beam.layout import catalog_name, shard_name
from zephon_beam.shard import decode_shard, encode_shard
from zephon_beam.store.base import open_store

Capture = pytest.CaptureFixture[str]
RECIPE = """
name: %(name)s
lanes: 2
seq_len: %(seq_len)s
samples_per_shard: %(shard)s
tokenizer: {path: %(tokenizer)s}
datasets:
  web: {files: web/*.jsonl, passes: 1, weight: %(weight)s}
  more: {files: more/*.jsonl, passes: 1}
shuffle: {interleave: 2}
packing: {open_bins: 2}
mixing: {schedule: [{at_sample: %(at)s, weights: {web: 1, more: 3}}]}
"""
DEFAULTS = {"name": "a", "seq_len": 64, "shard": 4, "weight": 1, "at": 30}
TEXTS = [f"text {number} " + "word " * (number % 40) for number in range(300)]


def make(folder: Path, stream: str, **changes: Any) -> Path:
    """Run a recipe of two small data sets to its end; return the stream."""
    if not (folder / "web").exists():
        write_json_lines(folder / "web", TEXTS[:150], files=2)
        write_json_lines(folder / "more", TEXTS[150:], files=1)
    recipe = folder / f"{stream}.yaml"
    recipe.write_text(RECIPE % {**DEFAULTS, "tokenizer": TOKENIZER_FILE, **changes})
    run(recipe, folder / stream)
    return folder / stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a stream `a`."""
    folder = tmp_path_factory.mktemp("comparison")
    make(folder, "a")
    return folder


def diff(capsys: Capture, a: Path, b: Path) -> tuple[int, dict[str, Any], str]:
    """Compare by the command line; return (status, facts, text)."""
    status = main(["diff", str(a), str(b), "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert main(["diff", str(a), str(b)]) == status
    assert facts == compare_streams(str(a), str(b))
    return status, facts, capsys.readouterr().out


def test_streams_in_other_shards_under_another_name_are_the_same(
    folder: Path, capsys: Capture
) -> None:
    """What is stored otherwise is a reason, and no difference."""
    other = make(folder, "shards", name="b", shard=7)
    status, facts, text = diff(capsys, folder / "a", other)
    assert status == 0
    assert facts["first_difference"] is None
    assert [reason["field"] for reason in facts["reasons"]] == ["samples_per_shard"]
    total = facts["a"]["complete_samples"]
    assert facts["compared"] == [0, total]
    assert facts["a"]["finished"]
    assert total > 60
    assert f"samples 0 to {total - 1} are the same\n" in text
    assert "samples_per_shard: A has 4, B has 7\n" in text


def test_the_first_sample_behind_a_changed_schedule_is_found(folder: Path, capsys: Capture) -> None:
    """It is where the weights change in one of them, or soon after; the row before is the same."""
    other = make(folder, "later", at=40)
    status, facts, text = diff(capsys, folder / "a", other)
    assert status == 1
    assert facts["reasons"] == [
        {"field": "mixing.schedule[0].at_sample", "a": "30", "b": "40"},
    ]
    sample = facts["first_difference"]["sample"]
    digests = [rows(folder / name) for name in ("a", "later")]
    assert digests[0][:sample] == digests[1][:sample]
    assert digests[0][sample] != digests[1][sample]
    assert 0 < sample < 60
    assert f"sample {sample} is the first that differs, in tokens, " in text
    for side in ("a", "b"):
        found = facts["first_difference"][side]
        assert found["sample"] == sample
        assert found["documents"]


def rows(stream: Path) -> list[Any]:
    """Return the tokens of every sample in global order, lane by lane in turn."""
    lanes = []
    for lane in range(2):
        found: list[Any] = []
        for path in sorted((stream / "shards" / f"lane-{lane:05d}").iterdir()):
            _, samples = decode_shard(path.read_bytes(), path.name)
            found += samples.tokens.tolist()
        lanes.append(found)
    return [row for pair in zip(*lanes, strict=False) for row in pair]


def test_an_altered_sample_is_found_where_nothing_else_differs(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    """One loss of one token in the last place of the last shard but one; nothing was made so."""
    other = tmp_path / "altered"
    shutil.copytree(folder / "a", other)
    store = open_store(str(other))
    name = shard_name(1, 3)
    header, samples = decode_shard(store.get(name), name)
    columns = dict(samples.segments)
    columns["source_pass"] = columns["source_pass"].copy()
    columns["source_pass"][-1] += 1
    altered = encode_shard(
        replace(samples, segments=columns),
        fingerprint=header.fingerprint,
        lane=1,
        first_sample=header.first_sample,
    )
    (other / name).write_bytes(altered)
    status, facts, text = diff(capsys, other, folder / "a")
    assert status == 1
    assert facts["reasons"] == []
    assert facts["first_difference"]["sample"] == 2 * (3 * 4 + 3) + 1
    assert facts["first_difference"]["columns"] == ["source_pass"]
    assert "they were made alike, so one of them was altered" in text


def test_files_that_differ_are_named(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    """The first of them, with what each catalog knows of it."""
    for name in ("web", "more"):
        shutil.copytree(folder / name, tmp_path / name)
    (tmp_path / "web" / "part-1.jsonl").unlink()
    _, facts, text = diff(capsys, folder / "a", make(tmp_path, "b"))
    (reason,) = facts["reasons"]
    assert reason["field"] == "files of web"
    assert reason["a"].startswith("'part-1.jsonl': ")
    assert reason["b"] == "'part-1.jsonl': no such file"
    assert "files of web: A has 'part-1.jsonl': " in text


def test_a_stream_that_ends_where_the_other_goes_on_differs(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    """One that is merely not as far does not."""
    shorter = tmp_path / "shorter"
    shutil.copytree(folder / "a", shorter)
    for lane in range(2):
        for path in (shorter / "shards" / f"lane-{lane:05d}").iterdir():
            if path.name >= "000000005":
                path.unlink()
    status, facts, _ = diff(capsys, folder / "a", shorter)
    assert status == 0
    assert facts["compared"][1] == facts["b"]["complete_samples"] < facts["a"]["complete_samples"]
    assert not facts["b"]["finished"]
    for lane in range(2):
        (shorter / "end" / f"lane-{lane:05d}.json").write_text(json.dumps({"samples": 20}))
    status, facts, text = diff(capsys, folder / "a", shorter)
    assert status == 1
    assert facts["first_difference"] is None
    assert "but one stream has ended and the other goes on" in text


def test_what_has_no_samples_differs_by_how_it_was_made(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Nothing can be compared, so the fingerprints decide; a missing stream is an error."""
    for name, source in (("a", "a"), ("c", "shards")):
        if not (folder / source).exists():
            make(folder, source, name="b", shard=7)
        (tmp_path / name / "catalog").mkdir(parents=True)
        shutil.copy(folder / source / "stream.json", tmp_path / name)
        for dataset in ("web", "more"):
            shutil.copy(folder / source / catalog_name(dataset), tmp_path / name / "catalog")
    status, _, text = diff(capsys, tmp_path / "a", folder / "a")
    assert (
        status,
        "no sample could be compared, for there is none that both hold; they were made alike"
        in text,
    ) == (0, True)
    status, _, text = diff(capsys, tmp_path / "a", tmp_path / "c")
    assert (
        status,
        "no sample could be compared, for there is none that both hold; they were made differently"
        in text,
    ) == (1, True)
    with pytest.raises(StreamNotFoundError):
        compare_streams(str(folder / "a"), str(tmp_path / "nowhere"))
