"""Transforms in whole runs: one stream on every kind of worker, and none from other code."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.recipe_file import load_recipe
from pipelines.run import run_stream
from tests.chat_folders import CHATML, write_folder
from tests.pipelines.commands import Commands, serve_commands
from tests.pipelines.small_streams import environment, tree
from tests.pipelines.test_determinism import EMBEDDED, PROCESSES, REPEATED, THREADS
from tests.pipelines.transformed import DOCUMENTS, FILES, texts, write_data, write_recipe
from tests.stored_documents import Place, stored_documents, stored_texts
from zephon_beam.built_ins.normalize import Normalize
from zephon_beam.errors import BadRecordError, DriftError, RecipeError, SourceError, TransformError
from zephon_beam.keyed import keyed_int
from zephon_beam.transforming.importing import make_importable
from zephon_beam.verification import verify_stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data, functions and a recipe; tests only add to it."""
    folder = tmp_path_factory.mktemp("transformed")
    write_data(folder)
    write_recipe(folder / "recipe.yaml")
    return folder


@pytest.fixture(scope="module")
def stream(folder: Path) -> Path:
    """Return its whole stream, made by one worker in one process."""
    run_stream(folder / "recipe.yaml", folder / "stream")
    return folder / "stream"


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Return the command line; each command is a process that has imported no function."""
    with serve_commands(tmp_path_factory.mktemp("commands")) as commands:
        yield commands


def expected_texts(folder: Path) -> dict[Place, str]:
    """Apply the recipe by hand; `deduplicate` finds nothing, for keys tell documents apart."""
    words = ("one", "two", "three")
    found = {}
    for file in range(FILES):
        offset = 0
        name = f"part-{file}.jsonl"
        for line in (folder / "web" / name).read_bytes().splitlines(keepends=True):
            text = Normalize(form="NFKC", strip=True)(json.loads(line)["text"])
            parts = [part.strip() for part in text.split(".") if len(part) >= 3]
            for output, part in enumerate(parts if "drop" not in text else []):
                if len(part) >= 5:
                    key = keyed_int(7, "document", "web", 0, name, offset, output)
                    place = Place(0, file, offset, output, 0)
                    found[place] = f"{words[key % 3]} {key}: {part}"
            offset += len(line)
    return found


def test_the_stream_holds_what_the_functions_made(folder: Path, stream: Path) -> None:
    """Every document, from its place, and nothing else."""
    expected = expected_texts(folder)
    assert set(stored_documents(stream)) == set(expected)
    assert stored_texts(stream, TOKENIZER_FILE) == sorted(expected.values())
    assert len(expected) > DOCUMENTS


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"options": REPEATED, "advance_bytes": 1}, id="every bundle twice"),
        pytest.param({"options": THREADS}, id="two threads"),
        pytest.param({"options": PROCESSES}, id="two processes"),
        pytest.param({"options": EMBEDDED}, id="embedded portable runner"),
    ],
)
def test_workers_of_every_kind_make_one_stream(
    folder: Path, stream: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """They find the functions and write the same shards, states and ends."""
    run_stream(folder / "recipe.yaml", tmp_path / "s", **options)
    assert tree(tmp_path / "s") == tree(stream)


def test_hash_seeds_and_the_working_directory_change_no_byte(
    folder: Path, stream: Path, tmp_path: Path
) -> None:
    """A module of the same name in the working directory is not the one that is called."""
    (tmp_path / "cleaning.py").write_text("raise ValueError('not this one')")
    words = [sys.executable, "-m", "pipelines.main", "run", str(folder / "recipe.yaml"), "--stream"]
    children = [
        subprocess.Popen(
            [*words, str(tmp_path / seed)],
            env=environment(PYTHONHASHSEED=seed),
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
        )
        for seed in ("1", "2")
    ]
    assert [child.wait(timeout=120) for child in children] == [0, 0]
    assert tree(tmp_path / "1") == tree(tmp_path / "2") == tree(stream)


def test_a_moved_folder_is_the_same_recipe(folder: Path, stream: Path, tmp_path: Path) -> None:
    """Neither where the recipe lies nor where its functions lie enters the fingerprint."""
    write_data(tmp_path / "other")
    recipe = write_recipe(tmp_path / "other" / "renamed.yaml")
    assert folder not in tmp_path.parents
    run_stream(recipe, tmp_path / "s")
    assert tree(tmp_path / "s") == tree(stream)


def test_functions_may_be_given_in_python(
    folder: Path, stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker processes look where this process found them."""
    # Else the path that is restored afterwards would hold the folder of an earlier recipe.
    make_importable([])
    monkeypatch.syspath_prepend(folder)
    recipe = load_recipe(folder / "recipe.yaml")
    run_stream(recipe, tmp_path / "s", options=PROCESSES)
    assert tree(tmp_path / "s") == tree(stream)


def test_a_function_that_is_mended_before_the_first_sample_is_told_what_to_do(
    command: Commands, tmp_path: Path
) -> None:
    """The stream is that of the function with the mistake, and holds nothing worth keeping."""
    write_data(tmp_path)
    recipe = write_recipe(tmp_path / "recipe.yaml")
    code = tmp_path / "cleaning.py"
    source = code.read_text()
    words = ("run", recipe, "--stream", tmp_path / "s")
    code.write_text(source.replace('"drop" not in', '1 + "drop" not in'))
    assert command(*words).status == 1
    code.write_text(source)
    outcome = command(*words)
    assert outcome.status == 1
    assert "no sample is in this stream yet: it may be deleted" in outcome.complaint


def test_changed_code_is_refused(command: Commands, tmp_path: Path) -> None:
    """By its source, or by the version that stands for it; comments elsewhere do not count."""
    write_data(tmp_path)
    recipe = write_recipe(tmp_path / "recipe.yaml")
    code = tmp_path / "cleaning.py"
    source = code.read_text()
    words = ("run", recipe, "--stream", tmp_path / "s")
    assert command(*words).status == 0
    code.write_text("# More.\n" + source + "\n\nOTHER = 1\n")
    assert command(*words).status == 0
    code.write_text(source.replace('"drop" not in', '"dropped" not in'))
    outcome = command(*words)
    assert outcome.status == 1
    assert outcome.complaint.startswith(
        "datasets.web.transforms[1] (cleaning:is_wanted): expected code source:"
    )
    assert "restore the function's source, or begin a new stream with it" in outcome.complaint
    assert "may be deleted" not in outcome.complaint
    code.write_text(source)
    write_recipe(recipe, changes=[("kind: filter}", 'kind: filter, version: "2"}')])
    outcome = command(*words)
    assert outcome.status == 1
    assert 'transforms[1].version: the stream has null, the recipe now has "2"' in outcome.complaint


def test_what_is_not_there_is_refused_before_anything_is_written(
    command: Commands, tmp_path: Path
) -> None:
    """A module, a function, an argument, or a special token; with status 2."""
    write_data(tmp_path)
    cases = {
        '[{call: "clearing:mark"}]': "did you mean 'cleaning'",
        '[{call: "cleaning:marc"}]': "did you mean 'mark'",
        '[{call: "cleaning:mark", with: {word: []}}]': "with must fit cleaning:mark",
        "[{call: fill_in_the_middle}]": "must be in the tokenizer's vocabulary, got '<fim_prefix>'",
        "[{call: filter_length}]": "with.min_characters must be above 0",
    }
    for transforms, message in cases.items():
        recipe = write_recipe(tmp_path / "recipe.yaml", transforms)
        outcome = command("run", recipe, "--stream", tmp_path / "s")
        assert outcome.status == 2
        assert message in outcome.complaint
        assert outcome.complaint.startswith("datasets.web.transforms[0]")
        assert not (tmp_path / "s").exists()


def test_a_failing_function_ends_the_run_with_its_place(command: Commands, tmp_path: Path) -> None:
    """In one line, though the exception's message has two."""
    write_data(tmp_path, ["good one", "bad one", "good two"])
    recipe = write_recipe(tmp_path / "recipe.yaml", '[{call: "cleaning:fail_on_bad"}]')
    outcome = command("run", recipe, "--stream", tmp_path / "s")
    assert outcome.status == 1
    assert (
        "datasets.web.transforms[0], part-1.jsonl, locator 0: cleaning:fail_on_bad must return a "
        "document, it raised ValueError: cannot use <object object at" in outcome.complaint
    )
    source = (tmp_path / "cleaning.py").read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if "raise ValueError" in text)
    assert f" in cleaning.py, line {line}; every run would stop here" in outcome.complaint


def test_a_wrong_return_ends_the_run(tmp_path: Path) -> None:
    """Also where documents may be set aside: it is the function that is wrong."""
    write_data(tmp_path)
    recipe = write_recipe(
        tmp_path / "recipe.yaml",
        '[{call: "cleaning:is_wanted"}]',
        more="bad_records: {action: quarantine, max_fraction: 1}",
    )
    with pytest.raises(TransformError, match=r"must return a text \(str\), got (True|False)"):
        run_stream(recipe, tmp_path / "s")


def test_a_data_set_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    """Instead of looking for a document for ever."""
    write_data(tmp_path)
    recipe = write_recipe(
        tmp_path / "recipe.yaml",
        "[{call: filter_length, with: {min_characters: 100000}}]",
        changes=[("passes: 1", "passes: repeat")],
    )
    with pytest.raises(SourceError, match="must give at least one token in a pass"):
        run_stream(recipe, tmp_path / "s", until_samples=100)


def test_conversations_are_transformed_before_they_are_rendered(tmp_path: Path) -> None:
    """A function gets the messages, and what it makes of them is what is tokenized."""
    talks = [
        [{"role": role, "content": f"{role} caf\u00e9 {number}"} for role in roles]
        for number in range(60)
        for roles in (("system", "user", "assistant"), ("user", "assistant"))
    ]
    answered = [talk[-2:] for talk in talks if "7" not in talk[-1]["content"]]
    streams = []
    for name, some, transforms in (
        ("raw", talks, [{"call": "talking:without_system"}, {"call": "talking:is_kept"}]),
        ("done", answered, []),
    ):
        folder = tmp_path / name
        folder.mkdir()
        lines = [json.dumps({"talk": messages}) + "\n" for messages in some]
        (folder / "talks.jsonl").write_text("".join(lines))
        (folder / "talking.py").write_text(
            "def without_system(messages):\n"
            "    return [m for m in messages if m['role'] != 'system']\n"
            "def is_kept(messages):\n"
            "    return '7' not in messages[-1]['content']\n"
        )
        write_folder(folder / "model", CHATML)
        if transforms:
            transforms[1]["kind"] = "filter"
        data = {"files": "*.jsonl", "messages": "talk", "passes": 1, "transforms": transforms}
        recipe = {"name": "x", "lanes": 2, "seq_len": 64, "tokenizer": {"path": "model"}}
        (folder / "recipe.json").write_text(json.dumps({**recipe, "datasets": {"talks": data}}))
        run_stream(folder / "recipe.json", folder / "stream")
        streams.append(sorted(stored_documents(folder / "stream").values()))
    assert streams[0] == streams[1]
    assert len(streams[0]) == len(answered)


def test_looking_at_a_stream_imports_nothing(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `stream.json` names is data."""
    code = "def f(document): return document"
    write_data(tmp_path)
    (tmp_path / "trap.py").write_text(code)
    recipe = write_recipe(tmp_path / "recipe.yaml", '[{call: "trap:f"}]')
    run_stream(recipe, tmp_path / "s")
    monkeypatch.delitem(sys.modules, "trap")
    report = verify_stream(str(tmp_path / "s"))
    assert report.faults == ()
    assert verify_stream(str(stream)).faults == ()
    assert "trap" not in sys.modules


def test_errors_of_functions_are_documented_kinds() -> None:
    """Their exit status says whose fault it is."""
    kinds = (BadRecordError, TransformError, DriftError, RecipeError)
    assert [kind.exit_status for kind in kinds] == [1, 1, 1, 2]
    assert len(texts()) == DOCUMENTS
