"""Bad records, holdout and fill-in-the-middle in whole runs: nothing moves, is lost or repeated."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.run import run_stream
from tests.pipelines.commands import Commands, serve_commands
from tests.pipelines.small_streams import tree
from tests.pipelines.test_determinism import REPEATED, THREADS
from tests.pipelines.transformed import DOCUMENTS, FILES, texts, write_data, write_recipe
from tests.stored_documents import Place, quarantined_counts, stored_documents, stored_texts
from zephon_beam.errors import DeterminismError, QuarantineError
from zephon_beam.verification import verify_stream

QUARANTINE = "bad_records: {action: quarantine, max_fraction: 0.5}"
NO_EOS = f"{{path: {TOKENIZER_FILE}, eos: null}}"
BAD_LINES = (3, 100, 101, 102, 449)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Return the command line."""
    with serve_commands(tmp_path_factory.mktemp("commands")) as commands:
        yield commands


def quarantine_files(stream: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what the quarantine files of a stream say, by name."""
    return {
        path.relative_to(stream / "quarantine").as_posix(): [
            json.loads(line) for line in path.read_text().splitlines()
        ]
        for path in sorted((stream / "quarantine").rglob("*"))
        if path.is_file()
    }


def write_lines(folder: Path, *, bad: bool) -> list[tuple[str, int]]:
    """Write the data with empty or broken lines of one length; return (file, locator) of those."""
    write_data(folder)
    found = []
    for file in range(FILES):
        path = folder / "web" / f"part-{file}.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        for number in BAD_LINES:
            if number % FILES == file:
                place = number // FILES
                line = '{"text": ' if bad else '{"text": ""}'
                lines[place] = line.ljust(len(lines[place]) - 1) + "\n"
                found.append((path.name, sum(len(text.encode()) for text in lines[:place])))
        path.write_text("".join(lines))
    return sorted(found)


def test_records_that_are_set_aside_move_no_other(tmp_path: Path) -> None:
    """The samples are those of the same data with empty documents in their places."""
    streams = []
    for bad in (False, True):
        folder = tmp_path / str(bad)
        places = write_lines(folder, bad=bad)
        recipe = write_recipe(folder / "r.yaml", "[]", tokenizer=NO_EOS, more=QUARANTINE)
        streams.append(folder / "stream")
        facts = run_stream(recipe, streams[-1])
        assert facts["datasets"]["web"]["quarantined"] == (len(BAD_LINES) if bad else 0)
    reports = [verify_stream(str(stream)) for stream in streams]
    assert reports[0].stream_digest == reports[1].stream_digest
    assert [len(report.faults) for report in reports] == [0, 0]
    assert [quarantined_counts(stream) for stream in streams] == [0, len(BAD_LINES)]
    assert not (streams[0] / "quarantine").exists()
    entries = [entry for found in quarantine_files(streams[1]).values() for entry in found]
    assert sorted((entry["file"], entry["locator"]) for entry in entries) == places
    assert {entry["reason"] for entry in entries} == {"json"}


@pytest.mark.parametrize(
    "options",
    [{"options": [*REPEATED, *THREADS], "advance_bytes": 1}, {"drain_bytes": 1}],
)
def test_what_was_set_aside_is_the_same_however_it_was_found(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """By both stages, with messages that differ each time; retries are harmless."""
    write_lines(tmp_path, bad=True)
    recipe = write_recipe(
        tmp_path / "r.yaml",
        '[{call: "cleaning:is_wanted", kind: filter}, {call: "cleaning:fail_on_bad"}]',
        more=QUARANTINE,
    )
    run_stream(recipe, tmp_path / "one")
    run_stream(recipe, tmp_path / "two", **options)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    found = [quarantine_files(tmp_path / name) for name in ("one", "two")]
    facts = [
        [(name, entry["file"], entry["locator"], entry["reason"]) for entry in entries]
        for stream in found
        for name, entries in stream.items()
    ]
    assert facts[: len(facts) // 2] == facts[len(facts) // 2 :]
    names = list(found[0])
    assert all(name.startswith("web/000000-0000000") for name in names)
    assert {name.partition(".")[2] for name in names} == {"read.jsonl", "transform.jsonl"}
    for name, some in found[0].items():
        reason = "json" if name.endswith("read.jsonl") else "transform"
        assert {entry["reason"] for entry in some} == {reason}
    entries = [entry for some in found[0].values() for entry in some]
    bad = [number for number in range(DOCUMENTS) if number * 7 % 4 == 2 and number not in BAD_LINES]
    assert sum(entry["reason"] == "transform" for entry in entries) == len(bad)
    assert quarantined_counts(tmp_path / "one") == len(bad) + len(BAD_LINES)
    kept = [text for number, text in enumerate(texts()) if number * 7 % 4 in (0, 3)]
    lost = [number for number in BAD_LINES if number * 7 % 4 in (0, 3)]
    assert len(stored_texts(tmp_path / "one", TOKENIZER_FILE)) == len(kept) - len(lost)


def test_a_quarantine_that_says_otherwise_is_refused(tmp_path: Path) -> None:
    """As every other object that must be the same and is not."""
    write_lines(tmp_path, bad=True)
    recipe = write_recipe(tmp_path / "r.yaml", "[]", more=QUARANTINE)
    run_stream(recipe, tmp_path / "s")
    forged = sorted((tmp_path / "s" / "quarantine").rglob("*.jsonl"))[0]
    forged.write_text(forged.read_text().replace('"json"', '"utf8"'))
    for kind in ("shards", "state", "carry", "advances", "end"):
        for path in (tmp_path / "s" / kind).rglob("*.*"):
            path.unlink()
    with pytest.raises(DeterminismError, match="quarantine/web/"):
        run_stream(recipe, tmp_path / "s")


def test_the_command_line_tells_what_was_set_aside(command: Commands, tmp_path: Path) -> None:
    """How many documents of which data set, and where the reasons are; and fails without leave."""
    write_lines(tmp_path, bad=True)
    recipe = write_recipe(tmp_path / "r.yaml", "[]", more=QUARANTINE)
    stream = tmp_path / "s"
    outcome = command("run", recipe, "--stream", stream)
    assert outcome.status == 0
    assert outcome.out.endswith(f"documents set aside: 5 of web; see {stream}/quarantine\n")
    outcome = command("inspect", stream)
    assert f"quarantine   {stream}/quarantine" in outcome.out
    assert outcome.out.splitlines()[-1].split()[-1] == "5"
    found = json.loads(command("inspect", stream, "--json").out)
    assert found["quarantine"] == f"{stream}/quarantine"
    assert found["datasets"]["web"]["quarantined"] == 5
    recipe = write_recipe(tmp_path / "r.yaml", "[]")
    outcome = command("run", recipe, "--stream", tmp_path / "other")
    assert outcome.status == 1
    assert "datasets.web: part-" in outcome.complaint
    assert not (tmp_path / "other" / "quarantine").exists()


def test_too_many_bad_records_end_the_run(tmp_path: Path) -> None:
    """With the data set, how many they are and where to look; the files are there."""
    write_lines(tmp_path, bad=True)
    more = "bad_records: {action: quarantine, max_fraction: 0.001}"
    recipe = write_recipe(tmp_path / "r.yaml", "[]", more=more)
    with pytest.raises(QuarantineError, match=r"data set web.*quarantine/web"):
        run_stream(recipe, tmp_path / "s")
    assert quarantine_files(tmp_path / "s")


# ------------------------------------------------------------------------------------------ holdout


def shares(
    folder: Path, name: str, changes: Sequence[tuple[str, str]], more: str
) -> list[dict[Place, list[int]]]:
    """Run a recipe once for training and once for evaluation."""
    found = []
    for take in ("train", "eval"):
        holdout = f"holdout: {{fraction: 0.1, take: {take}}}\n{more}"
        recipe = write_recipe(folder / f"{name}-{take}.yaml", "[]", more=holdout, changes=changes)
        run_stream(recipe, folder / f"{name}-{take}")
        found.append(stored_documents(folder / f"{name}-{take}"))
    return found


def test_training_and_evaluation_share_no_document_and_lack_none(tmp_path: Path) -> None:
    """For any seed, number of lanes, passes and place of the folder: the same documents."""
    write_data(tmp_path / "a")
    write_data(tmp_path / "moved")
    variants: list[tuple[str, list[tuple[str, str]], str]] = [
        ("a", [], ""),
        ("a", [("seed: 7", "seed: 8"), ("lanes: 2", "lanes: 3"), ("passes: 1", "passes: 2")], ""),
        ("moved", [("interleave: 2", "interleave: 1, documents: false")], ""),
    ]
    held = []
    for number, (folder, changes, more) in enumerate(variants):
        train, evaluation = shares(tmp_path / folder, f"r{number}", changes, more)
        passes = 2 if number == 1 else 1
        assert len(train) + len(evaluation) == DOCUMENTS * passes
        by_record = [{place[:3] for place in share} for share in (train, evaluation)]
        assert not by_record[0] & by_record[1]
        assert len(by_record[0] | by_record[1]) == DOCUMENTS
        held.append(by_record[1])
    assert held[0] == held[1] == held[2]
    assert 20 < len(held[0]) < 80


def test_outputs_and_bad_records_go_with_their_document(tmp_path: Path) -> None:
    """A sentence is held out if its document is; so is a record that cannot be read."""
    write_lines(tmp_path, bad=True)
    streams = []
    for take in ("train", "eval"):
        recipe = write_recipe(
            tmp_path / f"{take}.yaml",
            '[{call: "cleaning:sentences", kind: flat_map, with: {least: 3}}]',
            more=f"holdout: {{fraction: 0.4, take: {take}}}\n{QUARANTINE}",
        )
        streams.append(tmp_path / take)
        run_stream(recipe, streams[-1])
    records = [{place[:3] for place in stored_documents(stream)} for stream in streams]
    assert not records[0] & records[1]
    assert len(records[0] | records[1]) == DOCUMENTS - len(BAD_LINES)
    counts = [quarantined_counts(stream) for stream in streams]
    assert sum(counts) == len(BAD_LINES)
    assert [sum(map(len, quarantine_files(stream).values())) for stream in streams] == counts


# ------------------------------------------------------------------------------- fill in the middle


def write_fim_tokenizer(path: Path) -> None:
    """Add three special tokens to the demo's tokenizer."""
    content = json.loads(TOKENIZER_FILE.read_text())
    pattern = content["added_tokens"][0]
    content["added_tokens"] += [
        {**pattern, "id": 8192 + number, "content": f"<fim_{name}>"}
        for number, name in enumerate(("prefix", "middle", "suffix"))
    ]
    path.write_text(json.dumps(content))


def put_together(tokens: list[int], backend: Tokenizer, mode: str) -> str:
    """Return the document that tokens with special ones between them are of."""
    places = [place for place, token in enumerate(tokens) if token >= 8192]
    if places:
        assert [tokens[place] for place in places] == [8192, 8194, 8193]
        ends = [*places[1:], len(tokens)]
        pairs = zip(places, ends, strict=True)
        first, second, third = (tokens[start + 1 : end] for start, end in pairs)
        assert places[0] == 0
        assert mode == "psm" or not first
        # psm: prefix, suffix, middle; spm: nothing, suffix, prefix and middle.
        tokens = [*first, *third, *second]
    return str(backend.decode(tokens, skip_special_tokens=False))


@pytest.mark.parametrize("mode", ["psm", "spm"])
def test_documents_can_be_put_together_again_from_their_tokens(tmp_path: Path, mode: str) -> None:
    """Also one that holds the text of a special token, which stays text."""
    documents = [*texts()[:200], "x <fim_middle> y <fim_prefix>", "\u6f22\U0001f600"]
    write_data(tmp_path, documents)
    write_fim_tokenizer(tmp_path / "tokenizer.json")
    recipe = write_recipe(
        tmp_path / "r.yaml",
        f"[{{call: fill_in_the_middle, with: {{rate: 0.75, mode: {mode}}}}}]",
        tokenizer="{path: tokenizer.json}",
    )
    run_stream(recipe, tmp_path / "s")
    backend = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    found = []
    cut = 0
    for tokens in stored_documents(tmp_path / "s").values():
        assert tokens[-1] == 0
        cut += tokens[0] == 8192
        found.append(put_together(tokens[:-1], backend, mode))
    assert sorted(found) == sorted(documents)
    assert 120 < cut < 180
