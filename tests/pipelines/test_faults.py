"""Whatever is wrong is told in one line, and its repair leads to the same stream."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.demo_corpus import TOKENIZER_FILE
from tests.pipelines.commands import Commands, Outcome, serve_commands
from tests.pipelines.small_streams import Tree, tree

RECIPE = """
name: faults
lanes: 2
seq_len: 64
samples_per_shard: 8
chunk_bytes: 2KiB
tokenizer: {path: tokenizer.json}
datasets:
  lines: {files: lines/*.jsonl, passes: 1}
  notes: {files: notes/*.txt, format: text, passes: 1}
  rows: {files: rows/*.parquet, text: body, passes: 1}
shuffle: {interleave: 2}
packing: {open_bins: 4}
"""
TEXTS = [
    f"Document {number}: " + " ".join(f"word{number * place % 17}" for place in range(number % 40))
    for number in range(300)
]
Change = Callable[["Project"], object]


class Project:
    """A folder with sources, a tokenizer, a recipe and a stream."""

    def __init__(self, folder: Path, commands: Commands) -> None:
        """Use a folder that `create` or a copy has filled."""
        self.folder = folder
        self.recipe = folder / "recipe.yaml"
        self.stream = folder / "stream"
        self._commands = commands

    def create(self) -> None:
        """Write everything but the stream."""
        for name in ("lines", "notes", "rows"):
            (self.folder / name).mkdir(parents=True)
        for place in range(2):
            lines = [json.dumps({"text": text, "id": 1}) + "\n" for text in TEXTS[place::2]]
            (self.folder / f"lines/{place}.jsonl").write_text("".join(lines))
        for place in range(5):
            (self.folder / f"notes/{place}.txt").write_text(TEXTS[20 * place + 9] * 3)
        self.write_rows(TEXTS)
        shutil.copy(TOKENIZER_FILE, self.folder / "tokenizer.json")
        self.recipe.write_text(RECIPE)

    def write_rows(self, texts: list[str | None]) -> None:
        """Write the Parquet file."""
        table = pa.table({"body": pa.array(texts, pa.string())})
        pq.write_table(table, self.folder / "rows/all.parquet", row_group_size=50)

    def run(self, *words: str, stream: Path | None = None) -> Outcome:
        """Run the recipe into the stream."""
        return self._commands("run", self.recipe, "--stream", stream or self.stream, *words)

    def replace(self, name: str, old: str | bytes, new: str | bytes) -> None:
        """Replace the last occurrence of something in a file."""
        path = self.folder / name
        one, other = (side.encode() if isinstance(side, str) else side for side in (old, new))
        head, found, tail = path.read_bytes().rpartition(one)
        assert found, (name, old)
        path.write_bytes(head + other + tail)

    def recipe_with(self, old: str, new: str) -> None:
        """Change the recipe."""
        self.replace("recipe.yaml", old, new)

    def objects(self, pattern: str) -> list[Path]:
        """Return some objects of the stream, by name."""
        return sorted(self.stream.glob(pattern))


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Return the command line."""
    with serve_commands(tmp_path_factory.mktemp("printed")) as served:
        yield served


@pytest.fixture(scope="module")
def begun(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a stream that was begun and is not at its end."""
    project = Project(tmp_path_factory.mktemp("begun") / "project", commands)
    project.create()
    done = project.run("--until-samples", "100", "--advance-bytes", "1")
    assert done.status == 0, done.err
    assert not project.objects("end/*")
    assert len(project.objects("advances/*")) >= 2
    return project.folder


@pytest.fixture(scope="module")
def expected(begun: Path, commands: Commands) -> Tree:
    """Return what the whole stream is, from a run that nothing disturbed."""
    project = Project(begun, commands)
    undisturbed = begun.parent / "undisturbed"
    assert project.run(stream=undisturbed).status == 0
    return tree(undisturbed)


@pytest.fixture
def project(commands: Commands, tmp_path: Path) -> Project:
    """Return a folder of sources without a stream."""
    created = Project(tmp_path / "project", commands)
    created.create()
    return created


@pytest.fixture
def running(begun: Path, commands: Commands, tmp_path: Path) -> Project:
    """Return a copy of the begun stream and its sources."""
    shutil.copytree(begun, tmp_path / "project")
    return Project(tmp_path / "project", commands)


def assert_told(found: Outcome, status: int, *parts: str) -> None:
    """Check the status, and that the one line holds place, consequence and repair in order."""
    place = 0
    for part in parts:
        assert part in found.complaint[place:], (part, found.complaint)
        place = found.complaint.index(part, place) + len(part)
    assert found.status == status


def erase(project: Project, name: str) -> None:
    """Make the files of a data set empty."""
    for path in (project.folder / name).iterdir():
        path.write_bytes(b"")


def blank(project: Project) -> None:
    """Leave nothing but blank lines."""
    for path in (project.folder / "lines").iterdir():
        path.write_bytes(b"\n   \n\r\n" * 400)


REFUSED = {
    "a misspelt key": (
        lambda p: p.recipe_with("open_bins", "open_bin"),
        2,
        ("recipe.yaml:13: unknown key 'open_bin' in packing", "did you mean 'open_bins'?"),
    ),
    "a pattern without a match": (
        lambda p: p.recipe_with("*.jsonl", "*.json"),
        1,
        ("datasets.lines: files must match", "lines/*.json'", "did you mean '1.jsonl'?"),
    ),
    "a missing file": (
        lambda p: p.recipe_with("rows/*.parquet", "rows/al.parquet"),
        1,
        ("datasets.rows: files must match", "rows/al.parquet'", "did you mean 'all.parquet'?"),
    ),
    "a missing folder": (
        lambda p: p.recipe_with("lines/*.jsonl", "line/*.jsonl"),
        1,
        ("datasets.lines: files must match", "line' does not exist", "relative to the recipe"),
    ),
    "files of zero bytes": (
        lambda p: erase(p, "lines"),
        1,
        ("datasets.lines must hold documents", "wait for it", "correct `files`, or remove"),
    ),
    "text files of zero bytes": (
        lambda p: erase(p, "notes"),
        1,
        ("datasets.notes must hold documents", "wait for it", "correct `files`, or remove"),
    ),
    "only blank lines": (
        blank,
        1,
        ("datasets.lines must give at least one token", "would lack it", "check its files"),
    ),
    "a table without rows": (
        lambda p: p.write_rows([]),
        1,
        ("datasets.rows must hold documents", "no rows", "wait for it", "correct `files`"),
    ),
    "a wrong field": (
        lambda p: p.recipe_with("lines/*.jsonl", "lines/*.jsonl, text: txt"),
        2,
        ("datasets.lines: text must be a field", "0.jsonl", "did you mean 'text'?"),
    ),
    "a wrong column": (
        lambda p: p.recipe_with("text: body", "text: bdy"),
        2,
        ("datasets.rows: text must be a field", "all.parquet", "did you mean 'body'?"),
    ),
    "a field of another type": (
        lambda p: p.recipe_with("lines/*.jsonl", "lines/*.jsonl, text: id"),
        2,
        ("datasets.lines: text must be a field that holds text", "a number", "name the field"),
    ),
    "no tokenizer": (
        lambda p: (p.folder / "tokenizer.json").unlink(),
        2,
        ("tokenizer.path", "tokenizer.json'", "there is no such file", "relative to the recipe"),
    ),
    "a tokenizer of another kind": (
        lambda p: (p.folder / "tokenizer.json").write_text("{}"),
        2,
        ("tokenizer.path must be a Hugging Face tokenizer.json", "save one with"),
    ),
    "an unknown end of document": (
        lambda p: p.recipe_with("tokenizer.json}", "tokenizer.json, eos: </s>}"),
        2,
        ("tokenizer.eos must be a token of", "got '</s>'", "name one that the vocabulary has"),
    ),
    "an unknown flag of Beam": (
        lambda _: None,
        2,
        ("'--direct_num_wokers=2'", "would be ignored", "did you mean --direct_num_workers?"),
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cannot_work_is_refused(project: Project, fault: str) -> None:
    """Status 2 for the recipe and the command, 1 for the data; never a traceback."""
    change, status, parts = REFUSED[fault]
    change(project)
    flags = ["--direct_num_wokers=2"] if "flag" in fault else []
    assert_told(project.run(*flags), status, *parts)
    if status == 2:
        assert not project.stream.exists()
    if fault == "only blank lines":
        assert_told(project.run(), status, *parts)


UNUSABLE = {
    "bytes that are no UTF-8, in a line": (
        lambda p: p.replace("lines/0.jsonl", "Document 200", b"Document \xff00"),
        (
            "datasets.lines: 0.jsonl, byte ",
            "valid UTF-8, got byte 0xff at byte 19 of the line",
            "every run would stop here",
            "write the file as UTF-8, then run",
        ),
    ),
    "bytes that are no UTF-8, in a text file": (
        lambda p: p.replace("notes/3.txt", "Document 69", b"Document \xff9"),
        (
            "datasets.notes: 3.txt, byte ",
            "valid UTF-8, got byte 0xff",
            "every run would stop here",
            "write the file as UTF-8 or leave it out",
        ),
    ),
    "a line that is no JSON": (
        lambda p: p.replace("lines/1.jsonl", '{"text": "Document 155', '{"text: "Document 155'),
        (
            "datasets.lines: 1.jsonl, byte ",
            "valid JSON, got",
            "Document 155",
            "every run would stop here",
            "correct or remove the line",
        ),
    ),
    "a text that is null": (
        lambda p: p.write_rows([*TEXTS[:200], None, *TEXTS[201:]]),
        (
            "datasets.rows: all.parquet, row 200",
            "'body' must be a text, got null",
            "every run would stop here",
            "correct or remove the row",
        ),
    ),
    "a line without the field": (
        lambda p: p.replace("lines/1.jsonl", '"text": "Document 155', '"txet": "Document 155'),
        (
            "datasets.lines: 1.jsonl, byte ",
            "must have the field 'text'",
            "did you mean 'txet'?",
            "every run would stop here",
            "correct `text` in the recipe, or the line",
        ),
    ),
}


@pytest.mark.parametrize("fault", UNUSABLE)
def test_an_unusable_document_stops_the_run(project: Project, fault: str) -> None:
    """File, place in it and reason are named."""
    change, parts = UNUSABLE[fault]
    change(project)
    assert_told(project.run(), 1, *parts)


def test_a_corrected_document_needs_a_new_place_and_gives_the_stream(
    project: Project, expected: Tree
) -> None:
    """The message's own repair; in the old place the correction is a change of the source."""
    change, parts = UNUSABLE["a line that is no JSON"]
    change(project)
    for _ in range(2):
        assert_told(project.run(), 1, *parts)
    project.replace("lines/1.jsonl", '{"text: "Document 155', '{"text": "Document 155')
    assert_told(project.run(), 1, "datasets.lines: '1.jsonl': expected", "other content")
    new_place = project.folder / "new"
    assert project.run(stream=new_place).status == 0
    assert tree(new_place) == expected


def test_worker_processes_tell_it_in_one_line_too(project: Project) -> None:
    """What another process met reaches the user as it was worded there."""
    change, parts = UNUSABLE["a line that is no JSON"]
    change(project)
    flags = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
    assert_told(project.run(*flags), 1, *parts)


DRIFTED = {
    "a file that grew": (
        lambda p: p.replace("lines/1.jsonl", "\n", '\n{"text": "more"}\n'),
        ("datasets.lines: '1.jsonl': expected", "bytes, found", "other content", "restore the f"),
    ),
    "an edit of the same size": (
        lambda p: (p.folder / "lines/0.jsonl").write_bytes(
            (p.folder / "lines/0.jsonl").read_bytes().replace(b"Document 0", b"Xocument 0", 1)
        ),
        ("datasets.lines: 0.jsonl: expected identity", "would differ from here", "restore the f"),
    ),
    "a new file": (
        lambda p: (p.folder / "lines/2.jsonl").write_text('{"text": "more"}\n'),
        ("datasets.lines: '2.jsonl' is new", "the order of the stream was fixed", "restore the f"),
    ),
    "a file that is gone": (
        lambda p: (p.folder / "notes/2.txt").unlink(),
        ("datasets.notes: '2.txt' is gone", "the order of the stream was fixed", "restore the f"),
    ),
    "another recipe": (
        lambda p: p.recipe_with("open_bins: 4", "open_bins: 5"),
        ("packing.open_bins: the stream has 4, the recipe now has 5", "no longer", "undo the cha"),
    ),
    "another tokenizer": (
        lambda p: p.replace("tokenizer.json", '"model"', ' "model"'),
        ("tokenizer: expected", "found", "no longer be a function of one recipe", "undo the ch"),
    ),
}


@pytest.mark.parametrize("fault", DRIFTED)
def test_what_changed_under_a_stream_is_refused_and_once_restored_it_goes_on(
    running: Project, begun: Path, expected: Tree, fault: str
) -> None:
    """No byte is written from other sources, and none is missing afterwards."""
    change, parts = DRIFTED[fault]
    before = tree(running.stream)
    change(running)
    assert_told(running.run(), 1, *parts)
    after = tree(running.stream)
    assert {name: after[name] for name in before} == before
    assert after.items() <= expected.items()
    for name in ("lines", "notes", "rows"):
        shutil.rmtree(running.folder / name)
        shutil.copytree(begun / name, running.folder / name)
    for name in ("tokenizer.json", "recipe.yaml"):
        shutil.copy(begun / name, running.folder / name)
    assert running.run().status == 0
    assert tree(running.stream) == expected


def damage(project: Project, pattern: str, edit: Callable[[bytes], bytes]) -> None:
    """Alter objects of the stream."""
    found = project.objects(pattern)
    assert found
    for path in found:
        path.write_bytes(edit(path.read_bytes()))


def flipped(data: bytes, place: int) -> bytes:
    """Return data with one bit changed."""
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


def remove(project: Project, *patterns: str) -> None:
    """Delete objects and folders of the stream."""
    for pattern in patterns:
        found = project.objects(pattern)
        assert found
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_newest_shards(project: Project) -> None:
    """Delete the newest shard of each lane."""
    for lane in project.objects("shards/*"):
        max(lane.iterdir()).unlink()


def empty_newest(project: Project, kind: str) -> None:
    """Leave nothing of the newest shard or state of each lane but its name."""
    for lane in project.objects(f"{kind}/*"):
        max(lane.iterdir()).write_bytes(b"")


HEALED: dict[str, Change] = {
    "carries cut off": lambda p: damage(p, "carry/*/*", lambda data: data[: len(data) // 2]),
    "carries emptied": lambda p: damage(p, "carry/*/*", lambda _: b""),
    "a bit of a waiting part": lambda p: damage(p, "carry/*/*", lambda data: flipped(data, -3000)),
    "a bit of a carried state": lambda p: damage(p, "carry/*/*", lambda d: flipped(d, 3000)),
    "carries deleted": lambda p: remove(p, "carry"),
    "carries and newest states deleted": lambda p: remove(p, "carry", "state/*/00000000[6-9]*"),
    "newest shards deleted": remove_newest_shards,
    "newest shards and all carries deleted": lambda p: (
        remove_newest_shards(p),
        remove(p, "carry"),
    ),
    "advice deleted": lambda p: remove(p, "progress"),
    "a hole": lambda p: remove(p, "shards/lane-00001/000000001.arrow"),
    "a shard cut off": lambda p: damage(p, "shards/lane-00001/000000001.arrow", lambda d: d[:-9]),
    "newest shards emptied": lambda p: empty_newest(p, "shards"),
    "newest states emptied": lambda p: empty_newest(p, "state"),
    "a state cut off": lambda p: damage(p, "state/lane-00000/000000002.avro", lambda d: d[:-1]),
}


@pytest.mark.parametrize("fault", HEALED)
def test_damage_that_costs_only_time_heals_by_itself(
    running: Project, expected: Tree, fault: str
) -> None:
    """The next run goes back to the newest place that is whole."""
    HEALED[fault](running)
    done = running.run()
    assert done.status == 0, done.err
    found = tree(running.stream)
    assert found.items() <= expected.items()
    assert expected.keys() - found.keys() <= {name for name in expected if "state/" in name}


def forge(project: Project) -> None:
    """Put a shard of another place where the next one of lane 0 belongs."""
    newest = project.objects("shards/lane-00000/*")[-1]
    shutil.copy(newest, newest.with_name(f"{int(newest.stem) + 1:09d}.arrow"))


def remove_forged(project: Project) -> None:
    """Delete what `forge` made: the newest shard of lane 0."""
    project.objects("shards/lane-00000/*")[-1].unlink()


def with_other_row_groups(data: bytes) -> bytes:
    """Return a catalog that says that the first row group has fewer rows than it has."""
    rows, fewer = ((50).to_bytes(8, "little"), (40).to_bytes(8, "little"))
    assert rows in data
    return data.replace(rows, fewer, 1)


REPAIRED: dict[str, tuple[Change, tuple[str, ...], Change]] = {
    "a forged shard": (
        forge,
        ("shards/lane-00000/", "exists with other content: stored", "computed", "wrong", "rebu"),
        lambda p: shutil.rmtree(p.stream),
    ),
    "a plan cut off": (
        lambda p: damage(p, "advances/000001.json", lambda data: data[:50]),
        ("advances/000001.json is corrupt", "cannot be run again", "delete it together with the"),
        lambda p: remove(p, "advances/000001.json", "carry/*/000001.avro"),
    ),
    "a catalog cut off": (
        lambda p: damage(p, "catalog/rows.arrow", lambda data: data[:50]),
        ("catalog/rows.arrow is corrupt", "order of its sources", "run the recipe into a new pl"),
        lambda p: shutil.rmtree(p.stream),
    ),
    "a number in a catalog": (
        lambda p: damage(p, "catalog/rows.arrow", with_other_row_groups),
        ("catalog/rows.arrow is corrupt: digest", "order of its sources", "into a new place"),
        lambda p: shutil.rmtree(p.stream),
    ),
    "a catalog of other sources": (
        lambda p: shutil.copy(p.stream / "catalog/lines.arrow", p.stream / "catalog/rows.arrow"),
        ("catalog/rows.arrow: digest must be", "(stream.json), got", "into a new place"),
        lambda p: shutil.rmtree(p.stream),
    ),
    "a catalog that is gone": (
        lambda p: remove(p, "catalog/rows.arrow"),
        ("catalog/rows.arrow must exist", "order of its sources", "run the recipe into a new pl"),
        lambda p: shutil.rmtree(p.stream),
    ),
    "a manifest cut off": (
        lambda p: damage(p, "stream.json", lambda data: data[:50]),
        ("stream.json is corrupt", "nothing can be read", "run the recipe into a new place"),
        lambda p: shutil.rmtree(p.stream),
    ),
}


@pytest.mark.parametrize("fault", REPAIRED)
def test_damage_that_cannot_heal_is_told_with_a_repair_that_works(
    running: Project, expected: Tree, fault: str
) -> None:
    """Doing what the line says, and running again, gives the stream."""
    damaging, parts, repair = REPAIRED[fault]
    damaging(running)
    assert_told(running.run(), 1, *parts)
    repair(running)
    done = running.run()
    assert done.status == 0, done.err
    assert tree(running.stream) == expected


def test_a_stream_goes_on_once_a_forged_shard_is_taken_away(
    running: Project, expected: Tree
) -> None:
    """What was refused was not built upon."""
    forge(running)
    assert_told(running.run(), 1, "exists with other content")
    forged = running.objects("shards/lane-00000/*")[-1]
    forged.unlink()
    assert running.run().status == 0
    assert tree(running.stream) == expected
