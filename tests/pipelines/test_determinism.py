"""One stream, byte for byte, however the work is cut, ordered, repeated and spread."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from tests.lanes import make_part
from tests.pipelines.small_streams import (
    ROOT,
    SMALL_ADVANCE,
    UNTIL_SAMPLES,
    SmallStream,
    assert_same_prefix,
    environment,
    run,
    tree,
    write_recipe,
)
from transforms.lane_messages import LaneMessage
from transforms.tokenize_documents import TokenizeDocuments
from zephon_beam.keyed import Permutation, keyed_int

REPEATED = ["--direct_runner_bundle_repeat=1"]
THREADS = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]
PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
EMBEDDED = ["--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK"]


class ShuffleArrivals(beam.PTransform):
    """Tokenize, then deliver what came of each lane in another order and some of it twice."""

    seed = 0
    """Set by the test that installs this class in the place of `TokenizeDocuments`."""

    def __init__(self, job: Any) -> None:
        """Tokenize for `job`."""
        super().__init__()
        self._job = job

    def expand(self, documents: Any) -> Any:
        """Shuffle behind the tokenizer."""
        messages = documents | TokenizeDocuments(self._job)
        return messages | "ShuffleArrivals" >> beam.ParDo(_ShuffleBundle(self.seed))


class _ShuffleBundle(beam.DoFn):
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def start_bundle(self) -> None:
        self._arrived: list[tuple[Any, Any]] = []

    def process(self, element: Any, timestamp: Any = beam.DoFn.TimestampParam) -> None:
        self._arrived.append((element, timestamp))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        count = len(self._arrived)
        twice = [place for place in range(count) if keyed_int(self._seed, place) % 3 == 0]
        if self._seed % 2 == 0:
            # Enough for another drain after the one in which everything was there.
            twice = [*range(count), *range(count)]
        shuffled = Permutation(count + len(twice), self._seed, "arrivals").all().tolist()
        heads = [place for place, ((_, item), _) in enumerate(self._arrived) if item.part is None]
        # Heads come once more when everything was used already.
        for place in [*([*range(count), *twice][n] for n in shuffled), *heads]:
            element, timestamp = self._arrived[place]
            yield WindowedValue(element, timestamp, [GlobalWindow()])


@pytest.mark.parametrize(
    ("seed", "run_options"),
    [(1, {}), (2, {"drain_bytes": 1}), (3, {"advance_bytes": 1, "drain_bytes": 100_000})],
)
def test_arrival_order_and_repetition_change_no_byte(
    endless: SmallStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    run_options: dict[str, Any],
) -> None:
    """Parts and heads in any order, many of them twice, drained late, early or in between."""
    monkeypatch.setattr(ShuffleArrivals, "seed", seed)
    monkeypatch.setattr("pipelines.advance.TokenizeDocuments", ShuffleArrivals)
    run(endless.recipe, tmp_path / "s", until_samples=UNTIL_SAMPLES, **run_options)
    assert_same_prefix(tree(tmp_path / "s"), endless.tree)


class RepeatArrivals(ShuffleArrivals):
    """Deliver half of a lane's parts twice before the other half comes."""

    def expand(self, documents: Any) -> Any:
        """Repeat behind the tokenizer."""
        messages = documents | TokenizeDocuments(self._job)
        return messages | "RepeatArrivals" >> beam.ParDo(_RepeatHalf())


class _RepeatHalf(_ShuffleBundle):
    def __init__(self) -> None:
        super().__init__(0)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        by_lane: dict[int, list[tuple[Any, Any]]] = {}
        for arrived in self._arrived:
            by_lane.setdefault(arrived[0][0], []).append(arrived)
        for some in by_lane.values():
            half = 1 + len(some) // 2
            for element, timestamp in [*some[:half], *some[1:half], *some[half:]]:
                yield WindowedValue(element, timestamp, [GlobalWindow()])


def test_as_many_parts_as_were_planned_are_not_all_of_them(
    finite: SmallStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where some came twice, a lane's share of an advance ends when the others have come.

    Nothing would be lost if it ended before: the next plan supplies what a carry does not hold.
    But an advance might then bring a stream on by nothing at all.
    """
    monkeypatch.setattr("pipelines.advance.TokenizeDocuments", RepeatArrivals)
    facts = run(finite.recipe, tmp_path / "s")
    assert tree(tmp_path / "s") == finite.tree
    assert facts["advances"] == finite.facts["advances"] == 1


def test_the_arrivals_of_that_test_are_really_out_of_order() -> None:
    """A shuffle that kept the order would prove nothing."""
    bundle = _ShuffleBundle(1)
    bundle.start_bundle()
    heads = [LaneMessage(head=b"") for _ in range(3)]
    part = make_part(dataset=0, number=0, part=0, last=True, lengths=[1], first_token=1)
    messages = [*heads, *(LaneMessage(part=part) for _ in range(27))]
    for message in messages:
        bundle.process((0, message), 0)
    places = {id(message): place for place, message in enumerate(messages)}
    emitted = [places[id(value.value[1])] for value in bundle.finish_bundle()]
    assert sorted(set(emitted)) == list(range(30))
    assert len(emitted) > 30
    assert emitted[-3:] == [0, 1, 2]
    assert all(emitted.count(place) >= 2 for place in range(3))
    firsts = list(dict.fromkeys(emitted))
    assert firsts != sorted(firsts)
    assert firsts[0] != 0


@pytest.mark.parametrize(
    "run_options",
    [
        pytest.param({"drain_bytes": 1}, id="drained at every element"),
        pytest.param({"options": REPEATED}, id="every bundle twice"),
        pytest.param({"options": THREADS}, id="two threads"),
        pytest.param(
            {"options": [*REPEATED, *THREADS], "drain_bytes": 50_000, "advance_bytes": 1},
            id="two threads, every bundle twice, small advances",
        ),
        pytest.param({"options": EMBEDDED}, id="embedded portable runner"),
    ],
)
def test_runners_workers_and_retries_change_no_byte(
    endless: SmallStream, tmp_path: Path, run_options: dict[str, Any]
) -> None:
    """The same shards and lane states as one worker in one process."""
    run(endless.recipe, tmp_path / "s", until_samples=UNTIL_SAMPLES, **run_options)
    assert_same_prefix(tree(tmp_path / "s"), endless.tree)


def test_worker_processes_change_no_byte(
    endless: SmallStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do the work, which this process is made unable to do, and write the same stream."""

    def refuse(*_: Any) -> None:
        raise AssertionError("tokenized in the driver's process")

    monkeypatch.setattr("transforms.tokenize_documents._TokenizeParts.process", refuse)
    with pytest.raises(AssertionError, match="driver's process"):
        run(endless.recipe, tmp_path / "s", until_samples=UNTIL_SAMPLES)
    run(endless.recipe, tmp_path / "s", until_samples=UNTIL_SAMPLES, options=PROCESSES)
    assert_same_prefix(tree(tmp_path / "s"), endless.tree)


def test_many_advances_equal_one(narrow: SmallStream, tmp_path: Path) -> None:
    """The supply decides how far an advance goes, never what it makes."""
    facts = run(narrow.recipe, tmp_path / "s", advance_bytes=1)
    assert facts["advances"] >= 6
    assert tree(tmp_path / "s") == narrow.tree


def test_asking_for_more_bit_by_bit_equals_asking_once(
    endless: SmallStream, tmp_path: Path
) -> None:
    """Each run goes on where the one before it stopped, on another kind of worker."""
    advances = 0
    for until, flags in ((1, []), (300, REPEATED), (550, THREADS), (800, [])):
        facts = run(endless.recipe, tmp_path / "s", until_samples=until, options=flags)
        assert facts["complete_samples"] >= until
        advances += facts["advances"]
    assert advances >= 3
    assert_same_prefix(tree(tmp_path / "s"), endless.tree, 800)
    again = run(endless.recipe, tmp_path / "s", until_samples=800)
    assert again["advances"] == 0


@pytest.mark.parametrize(
    "run_options",
    [
        pytest.param({"advance_bytes": SMALL_ADVANCE}, id="several advances"),
        pytest.param({"advance_bytes": 1, "drain_bytes": 1, "options": REPEATED}, id="repeated"),
        pytest.param({"options": THREADS, "advance_bytes": SMALL_ADVANCE}, id="two threads"),
    ],
)
def test_a_finite_stream_is_one_tree(
    finite: SmallStream, tmp_path: Path, run_options: dict[str, Any]
) -> None:
    """All of it: shards, lane states and the lengths of the lanes, and nothing else."""
    facts = run(finite.recipe, tmp_path / "s", **run_options)
    assert facts["finished"]
    assert tree(tmp_path / "s") == finite.tree
    assert sum(name.startswith("end/") for name in finite.tree) == 3


def test_two_interpreters_with_other_hash_seeds_write_the_same_bytes(
    endless: SmallStream, tmp_path: Path
) -> None:
    """Nothing depends on `hash` or on the order of sets."""
    code = (
        "import sys; from pipelines.run import run_stream\n"
        f"run_stream(sys.argv[1], sys.argv[2], until_samples={UNTIL_SAMPLES})\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(endless.recipe), str(tmp_path / seed)],
            env=environment(PYTHONHASHSEED=seed),
            cwd=ROOT,
        )
        for seed in ("1", "2")
    ]
    assert [child.wait(timeout=120) for child in children] == [0, 0]
    one, two = (tree(tmp_path / seed) for seed in ("1", "2"))
    assert one == two
    assert_same_prefix(one, endless.tree)


def test_order_and_overlap_of_file_patterns_change_no_byte(
    endless: SmallStream, corpus: Path, tmp_path: Path
) -> None:
    """Files are ordered by name and each is read once, however the patterns find them."""
    patterns = "['code/utils/*.py', 'code/t*/*.py', 'code/io/*.py', 'code/*/*.py']"
    parts = "['prose/part-2.jsonl', 'prose/part-[01].jsonl', 'prose/part-1.jsonl']"
    recipe = write_recipe(
        corpus / "permuted.yaml",
        changes=[("code/**/*.py", patterns), ("prose/*.jsonl", parts)],
    )
    run(recipe, tmp_path / "s", until_samples=UNTIL_SAMPLES)
    assert_same_prefix(tree(tmp_path / "s"), endless.tree)
