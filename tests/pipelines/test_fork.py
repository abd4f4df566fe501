"""Forks of whole streams: real files, real tokens, through the command line and on engines."""

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.fork import fork_stream
from pipelines.main import main
from tests.forks import Forks, serve_forks, wait_until
from tests.pipelines.small_streams import SmallStream, Tree, run, tree, write_recipe
from tests.pipelines.test_determinism import EMBEDDED
from tests.processes import is_running
from zephon_beam.consumers import read_consumers
from zephon_beam.errors import CorruptObjectError, DriftError, RecipeError
from zephon_beam.inspection import inspect_stream
from zephon_beam.lane_listing import read_lengths
from zephon_beam.lane_state import decode_state, encode_state
from zephon_beam.layout import origin_name, shard_name
from zephon_beam.manifest import read_manifest
from zephon_beam.reader import StreamReader
from zephon_beam.retention import delete_garbage, find_garbage
from zephon_beam.sample_order import SampleOrder
from zephon_beam.shard import decode_shard
from zephon_beam.store.base import open_store
from zephon_beam.verification import verify_stream

Document = tuple[str, int, int, int]
"""(data set, file, locator, pass)."""
Spans = dict[Document, list[tuple[int, int]]]
"""Stretches of tokens [first, last) that rows hold of each document."""
ROWS = "  rows: {files: rows/*.parquet, text: body, weight: 0.2, passes: 1}\n"
REPLACED = ROWS.replace("rows:", "more:")
Changes = Sequence[tuple[str, str]]


def spans_of(stream: Path, first: int = 0, last: int | None = None) -> Spans:
    """Return what samples [first, last) hold, or all to the end of every lane."""
    store = open_store(str(stream))
    manifest = read_manifest(store)
    lengths = read_lengths(store, manifest)
    order = SampleOrder(manifest.lanes, lengths)
    stop = order.total if last is None else last
    assert stop is not None
    found: Spans = defaultdict(list)
    opened: dict[str, Any] = {}
    for lane, index in zip(*(column.tolist() for column in order.locate(first, stop)), strict=True):
        name = shard_name(lane, index // manifest.samples_per_shard)
        if name not in opened:
            _, samples = decode_shard(store.get(name), name)
            columns = {key: values.tolist() for key, values in samples.segments.items()}
            opened[name] = samples.segment_offsets.tolist(), columns
        bounds, columns = opened[name]
        row = index % manifest.samples_per_shard
        for place in range(bounds[row], bounds[row + 1]):
            dataset = manifest.dataset_names[columns["source_dataset"][place]]
            key = (dataset, *(columns[f"source_{n}"][place] for n in ("file", "document", "pass")))
            offset = columns["source_offset"][place]
            found[key].append((offset, offset + columns["segment_lengths"][place]))
    return found


def joined(*some: Spans) -> dict[Document, int]:
    """Return the length of each document that spans hold without a hole or an overlap."""
    together: Spans = defaultdict(list)
    for spans in some:
        for document, stretches in spans.items():
            together[document] += stretches
    lengths = {}
    for document, stretches in together.items():
        end = 0
        for first, last in sorted(stretches):
            assert first == end, document
            end = last
        lengths[document] = end
    return lengths


def of(documents: dict[Document, int], *names: str) -> dict[Document, int]:
    """Return the documents of some data sets."""
    return {document: length for document, length in documents.items() if document[0] in names}


def only(spans: Spans, *names: str) -> Spans:
    """Return the spans of some data sets."""
    return {document: stretches for document, stretches in spans.items() if document[0] in names}


def everything(folder: Path) -> Tree:
    """Digest every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): blake2b(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def fork_command(older: Path, recipe: Path, stream: Path, at_sample: int) -> int:
    """Fork by the command line."""
    words = ["fork", str(older), str(recipe), "--stream", str(stream), "--at-sample"]
    return main([*words, str(at_sample), "--json"])


FORKS: dict[str, Changes] = {
    "nothing": (),
    "weights": (("weight: 0.5", "weight: 0.1"),),
    "longer rows": (("seq_len: 128", "seq_len: 200"), ("per_shard: 16", "per_shard: 5")),
    "shorter rows": (("seq_len: 128", "seq_len: 50"), ("open_bins: 8", "method: concat")),
    "chunks": (("16KiB", "24KiB"),),
    "packing": (("open_bins: 8", "method: best_fit_split, open_bins: 3, within: dataset"),),
    "interleave": (("interleave: 3", "interleave: 1"),),
    "another data set": ((ROWS, REPLACED + ROWS),),
    "a data set less": ((ROWS, ""), ("seq_len: 128", "seq_len: 64")),
}
"""Changes that keep the tokens, as replacements in the recipe's text."""


@pytest.mark.parametrize("change", FORKS)
def test_documents_come_once_before_and_after_a_fork(
    finite: SmallStream, tmp_path: Path, change: str
) -> None:
    """Of every data set that is kept, wherever the fork begins; new ones come whole."""
    recipe = write_recipe(
        finite.recipe.parent / f"fork {change}.yaml", finite=True, changes=FORKS[change]
    )
    names = read_manifest(open_store(str(finite.folder))).dataset_names
    expected = joined(spans_of(finite.folder))
    before = everything(finite.folder)
    total = finite.facts["samples"]
    at_sample = {"nothing": 0, "weights": total}.get(change, total // 3 + len(change))
    stream = tmp_path / "s"
    assert fork_command(finite.folder, recipe, stream, at_sample) == 0
    assert run(recipe, stream)["finished"]
    after = spans_of(stream)
    found = joined(spans_of(finite.folder, 0, at_sample), after)
    kept = [name for name in names if name != "rows" or change != "a data set less"]
    assert of(found, *kept) == of(expected, *kept)
    if change == "another data set":
        renamed = {("more", *key[1:]): n for key, n in of(expected, "rows").items()}
        assert joined(only(after, "more")) == renamed
    assert verify_stream(str(stream)).faults == ()
    assert everything(finite.folder) == before


def other_tokenizer(folder: Path) -> Path:
    """Write the demo's tokenizer without its last 40 merges."""
    content = json.loads(Path(TOKENIZER_FILE).read_text())
    model = content["model"]
    for first, second in model["merges"][-40:]:
        del model["vocab"][first + second]
    del model["merges"][-40:]
    path = folder / "other.json"
    path.write_text(json.dumps(content))
    return path


def test_with_another_tokenizer_no_document_repeats_and_what_is_lost_is_counted(
    finite: SmallStream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What waited in open rows is dropped, in the counters too; all else comes whole."""
    tokenizer = other_tokenizer(tmp_path)
    changes = [(str(TOKENIZER_FILE), str(tokenizer)), ("seq_len: 128", "seq_len: 300")]
    recipe = write_recipe(finite.recipe.parent / "tokens.yaml", finite=True, changes=changes)
    whole = joined(spans_of(finite.folder))
    at_sample = finite.facts["samples"] // 2 + 1
    assert fork_command(finite.folder, recipe, tmp_path / "s", at_sample) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {entry["why"] for entry in facts["datasets"].values()} == {
        "the tokenizer is another one"
    }
    run(recipe, tmp_path / "s")
    run(recipe, tmp_path / "t")
    retokenized = joined(spans_of(tmp_path / "t"))
    before, after = spans_of(finite.folder, 0, at_sample), joined(spans_of(tmp_path / "s"))
    assert not before.keys() & after.keys()
    assert after == {document: retokenized[document] for document in after}
    missing = whole.keys() - before.keys() - after.keys()
    assert missing
    begun = {
        document for document in before if sum(b - a for a, b in before[document]) < whole[document]
    }
    left = sum(whole[document] for document in missing)
    left += sum(whole[d] - sum(b - a for a, b in before[d]) for d in begun)
    cut = sum(entry["documents"] for entry in facts["left_out"].values())
    lost = sum(entry["tokens"] for entry in facts["left_out"].values())
    assert cut
    assert lost < left  # the rest of those that were cut was never read
    found = inspect_stream(str(tmp_path / "s"))["datasets"]
    assert {n: entry["dropped_tokens"] for n, entry in found.items()} == {
        n: facts["left_out"][n]["tokens"] for n in found
    }
    assert verify_stream(str(tmp_path / "s")).faults == ()


def test_forks_of_forks_of_an_endless_stream_give_each_pass_of_each_document_once(
    endless: SmallStream, finite: SmallStream, tmp_path: Path
) -> None:
    """Three streams, one behind the other, each with other rows, at samples inside shards."""
    folder = endless.recipe.parent
    recipes = [
        write_recipe(folder / "endless fork 1.yaml", changes=[("seq_len: 128", "seq_len: 96")]),
        write_recipe(folder / "endless fork 2.yaml", changes=[("open_bins: 8", "method: concat")]),
    ]
    first, second = tmp_path / "first", tmp_path / "second"
    assert fork_command(endless.folder, recipes[0], first, 199) == 0
    run(recipes[0], first, until_samples=260)
    assert fork_command(first, recipes[1], second, 101) == 0
    shutil.rmtree(first / "origin")
    run(recipes[1], second, until_samples=2100)
    found = joined(
        spans_of(endless.folder, 0, 199), spans_of(first, 0, 101), spans_of(second, 0, 2100)
    )
    whole = joined(spans_of(finite.folder))
    assert {document: found.get(document) for document in whole} == whole
    later = [document for document in found if document[3] > 0]
    assert len(later) > 1000


def test_the_embedded_portable_runner_goes_on_with_a_fork(
    endless: SmallStream, tmp_path: Path
) -> None:
    """In small advances from the fork's beginning on: the bytes of a run in process."""
    recipe = write_recipe(endless.recipe.parent / "embedded.yaml", changes=[("0.5", "0.2")])
    for name in ("s", "t"):
        fork_stream(endless.folder, recipe, tmp_path / name, at_sample=100)
    run(recipe, tmp_path / "s", until_samples=150)
    run(recipe, tmp_path / "t", until_samples=150, options=EMBEDDED, advance_bytes=60_000)
    expected, found = tree(tmp_path / "s"), tree(tmp_path / "t")
    same = expected.keys() & found.keys()
    assert {name: found[name] for name in same} == {name: expected[name] for name in same}
    assert len([name for name in same if name.startswith("shards/")]) >= 9


@pytest.fixture(scope="module")
def ran(endless: SmallStream, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return (recipe, folder) of a fork after some advances; its older stream is gone."""
    folder = tmp_path_factory.mktemp("fork")
    older = folder / "older"
    shutil.copytree(endless.folder, older)
    recipe = write_recipe(
        endless.recipe.parent / "fork.yaml", changes=[("seq_len: 128", "seq_len: 64")]
    )
    fork_stream(older, recipe, folder / "fork", at_sample=77)
    shutil.rmtree(older)
    facts = run(recipe, folder / "fork", until_samples=2500, advance_bytes=50_000)
    assert facts["advances"] >= 2
    return recipe, folder / "fork"


@pytest.fixture
def fork(ran: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Return (recipe, folder) of a copy of that fork."""
    shutil.copytree(ran[1], tmp_path / "fork")
    return ran[0], tmp_path / "fork"


@pytest.mark.parametrize("lost", ["the first shard", "all shards", "all shards and carries"])
def test_lost_shards_of_a_fork_come_back_from_its_beginning(
    fork: tuple[Path, Path], lost: str
) -> None:
    """With the states behind them, so that nothing else is there to go on from."""
    recipe, stream = fork
    expected = tree(stream)
    for kind in ("shards", "state"):
        if lost == "the first shard":
            (first,) = (stream / kind / "lane-00001").glob("000000000.*")
            first.unlink()
        else:
            shutil.rmtree(stream / kind / "lane-00001")
    if lost == "all shards and carries":
        shutil.rmtree(stream / "carry")
    run(recipe, stream, until_samples=2500)
    found = tree(stream)
    assert {name: found[name] for name in expected} == expected


def test_a_fork_whose_beginning_is_gone_or_altered_says_so(fork: tuple[Path, Path]) -> None:
    """By `verify`, and by a run that would have to begin there."""
    recipe, stream = fork
    name = origin_name(1)
    stored = (stream / name).read_bytes()
    other = (stream / origin_name(0)).read_bytes()
    for content in (None, other, stored[: len(stored) // 2]):
        (stream / name).unlink()
        if content is not None:
            (stream / name).write_bytes(content)
        (fault,) = verify_stream(str(stream)).faults
        assert fault.startswith(name)
        (stream / name).write_bytes(stored)
    state = decode_state(stored, name)
    (stream / name).write_bytes(encode_state(replace(state, next_bin=state.next_bin + 1)))
    (fault,) = verify_stream(str(stream)).faults
    assert fault.startswith("origin/: digest: expected ")
    (stream / name).unlink()
    shutil.rmtree(stream / "shards" / "lane-00001")
    shutil.rmtree(stream / "state" / "lane-00001")
    with pytest.raises(CorruptObjectError, match=f"{name} must exist in a stream that was forked"):
        run(recipe, stream, until_samples=2500)


def test_a_fork_is_read_pinned_and_shortened_like_any_stream(fork: tuple[Path, Path]) -> None:
    """Its samples are numbered from 0, and a state of the older stream's reader is refused."""
    recipe, stream = fork
    reader = StreamReader(str(stream), global_batch_size=8, micro_batch_size=4, consumer="c")
    batches = [next(reader) for _ in range(30)]
    first = [batch["sample_ids"].tolist() for batch in batches[:2]]
    assert sorted(first[0] + first[1]) == list(range(8))
    reader.acknowledge(reader.state_dict())
    with pytest.raises(DriftError, match="fingerprint of the reader state"):
        StreamReader(str(stream), global_batch_size=8, micro_batch_size=4).load_state_dict(
            {**reader.state_dict(), "fingerprint": "0" * 32}
        )
    expected = tree(stream)
    store = open_store(str(stream))
    manifest = read_manifest(store)
    garbage = find_garbage(store, manifest, read_consumers(store))
    assert garbage.names
    delete_garbage(store, manifest, garbage)
    assert verify_stream(str(stream)).faults == ()
    with pytest.raises(RecipeError, match=r"--at-sample must be at least \d+ .* were deleted"):
        fork_stream(stream, recipe, stream.parent / "again", at_sample=3)
    lost = [name for name in tree(stream) if name.startswith("shards/lane-00002")][:2]
    for name in lost:
        (stream / name).unlink()
    run(recipe, stream, until_samples=2500)
    found = tree(stream)
    assert all(found[name] == expected[name] for name in lost)


def test_what_a_fork_begins_with_is_part_of_its_fingerprint(
    endless: SmallStream, tmp_path: Path
) -> None:
    """The same recipe from two samples, or from none, is three streams."""
    recipe = write_recipe(endless.recipe.parent / "same.yaml")
    found = [
        fork_stream(endless.folder, recipe, tmp_path / str(n), at_sample=n)["fingerprint"]
        for n in (0, 1, 2)
    ]
    own = read_manifest(open_store(str(endless.folder))).fingerprint
    assert len({own, *found}) == 4
    again = fork_stream(endless.folder, recipe, tmp_path / "1", at_sample=1)
    assert again["fingerprint"] == found[1]
    assert not again["created"]


REFUSED: dict[str, tuple[Changes, int, str]] = {
    "lanes": ((("lanes: 3", "lanes: 4"),), 50, "lanes must stay what they are in a fork: the str"),
    "seed": (
        (("seed: 7", "seed: 8"),),
        50,
        "seed must stay what it is in a fork: the stream has 7",
    ),
    "order": (
        (("interleave: 3", "interleave: 3, documents: false"),),
        50,
        "shuffle.documents must stay what it is",
    ),
    "holdout": (
        (("seed: 7", "seed: 7\nholdout: {fraction: 0.1}"),),
        50,
        "holdout must stay what it is in a fork",
    ),
    "too late": ((), 10**6, "--at-sample must be at most"),
    "negative": ((), -1, "--at-sample must be at least 0, got -1"),
    "nothing kept": (
        (
            ("  code:", "  new:"),
            ("  prose:", "  old:"),
            ("body, ", "body, transforms: [{call: filter_length, with: {min_characters: 1}}], "),
        ),
        50,
        "recipe must keep a data set of the stream, all begin anew (new: it is new; old: it is "
        "new; rows: transforms: the stream has [], the recipe now has [{",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_fork_cannot_change_is_refused_before_anything_is_written(
    endless: SmallStream, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """One line, status 2, and no folder."""
    changes, at_sample, text = REFUSED[case]
    recipe = write_recipe(endless.recipe.parent / "refused.yaml", changes=changes)
    assert fork_command(endless.folder, recipe, tmp_path / "s", at_sample) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_another_fork_or_stream_at_the_place_is_refused(
    endless: SmallStream, tmp_path: Path
) -> None:
    """By its origin, its recipe, or because it is the older stream or around it."""
    recipe = write_recipe(endless.recipe.parent / "place.yaml")
    other = write_recipe(endless.recipe.parent / "place 2.yaml", changes=[("0.5", "0.4")])
    fork_stream(endless.folder, recipe, tmp_path / "s", at_sample=9)
    before = everything(tmp_path / "s")
    with pytest.raises(DriftError, match=r"found a fork of .* at sample 9"):
        fork_stream(endless.folder, recipe, tmp_path / "s", at_sample=10)
    with pytest.raises(DriftError, match=r"datasets.code.weight: .*; undo the change, name"):
        fork_stream(endless.folder, other, tmp_path / "s", at_sample=9)
    assert everything(tmp_path / "s") == before
    run(recipe, tmp_path / "t", until_samples=1)
    with pytest.raises(DriftError, match="found a stream that was not forked"):
        fork_stream(endless.folder, recipe, tmp_path / "t", at_sample=9)
    for place in (endless.folder, endless.folder / "inside", endless.folder.parent):
        with pytest.raises(
            RecipeError, match="--stream must be another place than the stream that"
        ):
            fork_stream(endless.folder, recipe, place, at_sample=9)


def test_files_and_code_that_changed_make_a_data_set_begin_anew(
    corpus: Path, tmp_path: Path
) -> None:
    """The others go on; what is said names the file."""
    folder = tmp_path / "corpus"
    shutil.copytree(corpus, folder, ignore=shutil.ignore_patterns("*.yaml"))
    recipe = write_recipe(folder / "a.yaml", finite=True)
    run(recipe, tmp_path / "old")
    expected = joined(spans_of(tmp_path / "old"))
    (folder / "prose" / "part-9.jsonl").write_text('{"text": "one more"}\n')
    facts = fork_stream(tmp_path / "old", recipe, tmp_path / "new", at_sample=40)
    assert "'part-9.jsonl' is new" in facts["datasets"]["prose"]["why"]
    assert facts["datasets"]["code"] == {"kept": True, "why": ""}
    run(recipe, tmp_path / "new")
    before, after = spans_of(tmp_path / "old", 0, 40), spans_of(tmp_path / "new")
    assert len(joined(only(after, "prose"))) == len(of(expected, "prose")) + 1
    others = [only(some, "code", "rows") for some in (before, after)]
    assert joined(*others) == of(expected, "code", "rows")


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    """Return a way to start and kill forks of streams."""
    with serve_forks(["pipelines.fork"], tmp_path) as served:
        yield served


def test_a_fork_that_is_killed_or_done_by_two_at_once_is_whole(
    endless: SmallStream, tmp_path: Path, forks: Forks
) -> None:
    """Killed at each object that it writes, it is refused to runs and ended by the same fork."""
    recipe = write_recipe(endless.recipe.parent / "killed.yaml", changes=[("0.5", "0.4")])
    words = {"older": str(endless.folder), "recipe": str(recipe), "at_sample": 50}
    fork_stream(endless.folder, recipe, tmp_path / "whole", at_sample=50)
    expected = everything(tmp_path / "whole")
    kills = 0
    for number, edge in enumerate(
        ("catalog/code.arrow", "origin/lane-00000.avro", "origin/lane-00002.avro")
    ):
        stream = tmp_path / f"killed {number}"
        process = forks.start("pipelines.fork:fork_stream", {**words, "stream": str(stream)})
        wait_until(exists(stream / edge, process))
        kills += forks.kill(process)
        if (stream / "origin").exists() and not (stream / "stream.json").exists():
            with pytest.raises(CorruptObjectError, match="run `zephon-beam fork` again"):
                run(recipe, stream, until_samples=10)
        fork_stream(endless.folder, recipe, stream, at_sample=50)
        assert everything(stream) == expected
    assert kills
    stream = tmp_path / "twins"
    twins = [
        forks.start("pipelines.fork:fork_stream", {**words, "stream": str(stream)})
        for _ in range(2)
    ]
    assert [forks.wait(twin) for twin in twins] == [0, 0], forks.said()
    assert everything(stream) == expected


def exists(path: Path, process: int) -> Callable[[], bool]:
    """Return what says whether a file is there, or the process has ended."""
    return lambda: os.path.exists(path) or not is_running(process)


def test_an_unfinished_fork_of_another_sample_is_refused(
    endless: SmallStream, tmp_path: Path
) -> None:
    """What was begun there would be mixed with this one."""
    recipe = write_recipe(endless.recipe.parent / "begun.yaml")
    fork_stream(endless.folder, recipe, tmp_path / "s", at_sample=50)
    (tmp_path / "s" / "stream.json").unlink()
    with pytest.raises(DriftError, match="holds the beginning of another fork"):
        fork_stream(endless.folder, recipe, tmp_path / "s", at_sample=51)


def test_forks_from_and_into_buckets_are_the_same(
    finite: SmallStream, gcs: str, tmp_path: Path
) -> None:
    """Of a stream in a bucket, in a bucket, and in a folder."""
    recipe = write_recipe(
        finite.recipe.parent / "bucket.yaml",
        finite=True,
        changes=[("seq_len: 128", "seq_len: 300")],
    )
    copied = open_store(f"{gcs}/old")
    for path in finite.folder.rglob("*"):
        if path.is_file() and "carry" not in path.parts:
            copied.put_if_absent(path.relative_to(finite.folder).as_posix(), path.read_bytes())
    digests = set()
    for older, stream in (
        (str(finite.folder), str(tmp_path / "s")),
        (str(finite.folder), f"{gcs}/s"),
        (f"{gcs}/old", f"{gcs}/t"),
    ):
        facts = fork_stream(older, recipe, stream, at_sample=55)
        run(recipe, stream)
        digests.add((facts["fingerprint"], verify_stream(stream).stream_digest))
        origin = {key: facts["origin"][key] for key in ("fingerprint", "at_sample", "stream")}
        assert inspect_stream(stream)["origin"] == origin
        assert verify_stream(stream).ok
    assert len(digests) == 1


def test_fork_prints_the_command_that_goes_on_with_its_bound(
    endless: SmallStream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one, `run` refuses an endless recipe."""
    words = [str(endless.folder), str(endless.recipe), "--stream", str(tmp_path / "new")]
    assert main(["fork", *words, "--at-sample", "7"]) == 0
    expected = f"zephon-beam run {endless.recipe} --stream {tmp_path / 'new'} --until-samples N\n"
    assert capsys.readouterr().out.endswith(f"go on with: {expected}")


def test_inspect_names_what_a_stream_was_forked_from(
    fork: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """In a line of its own, which other streams do not have."""
    assert main(["inspect", str(fork[1])]) == 0
    assert "older at sample 77\n" in capsys.readouterr().out
    origin = inspect_stream(str(fork[1]))["origin"]
    assert sorted(origin) == ["at_sample", "fingerprint", "stream"]
