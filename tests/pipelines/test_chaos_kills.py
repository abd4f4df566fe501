"""Drivers and trainers that are killed again and again lose, repeat and leave nothing.

Short forms here; all of it, 1000 kills, is one command that shows how far it is:

    python -m pytest -m long tests/pipelines/test_chaos_kills.py

The seed of a long form is printed. CHAOS_SEED=<seed> asks for the same moments again, and
CHAOS_KILLS=<n> for another number of kills in each form.
"""

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipelines.main import main
from pipelines.run import run_stream
from tests.chaos_actors import check_notes, expected_notes, open_reader
from tests.chaos_streams import LANES, stray_files, tree, write_recipe
from tests.forks import DEADLINE_SECS, Forks, serve_forks
from tests.object_stores import gcs_server, make_gcs_bucket
from tests.processes import is_running
from zephon_beam.store.base import open_store
from zephon_beam.store.cache import CACHE_BYTES, CACHE_FOLDER
from zephon_beam.verification import verify_stream

SEED = int(os.environ.get("CHAOS_SEED", "1"))
FRESH_SEED = SEED if "CHAOS_SEED" in os.environ else int.from_bytes(os.urandom(4), "big")
DRIVE = "tests.chaos_actors:drive"
TRAIN = "tests.chaos_actors:train"
SERVE = "tests.chaos_actors:train_with_pipeline"
ADVANCE_SIZES = (1, 1, 6_000, 1 << 27)
"""Source bytes an advance: a run may go on with other ones."""
FOLLOWED_STEPS = 160
LOOKAHEAD = 60
PACE_SECS = 0.004
"""A step of a trainer whose samples are all there, so that there is time to kill it."""
WORKERS = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


def forms(short: int | None, long: int) -> Any:
    """Parametrize a test by its kills and its seed, as the short form, if any, and the long one."""
    kills = int(os.environ.get("CHAOS_KILLS", long))
    cases = [pytest.param(kills, FRESH_SEED, id="long", marks=pytest.mark.long)]
    if short is not None:
        cases.insert(0, pytest.param(short, SEED, id="short"))
    return pytest.mark.parametrize(("kills", "seed"), cases)


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A stream that nothing disturbed, and what its readers must be given."""

    recipe: Path
    folder: Path
    tree: dict[str, str]
    notes: list[str]
    seconds: float
    """That it took."""


@dataclass(slots=True)
class Chaos:
    """Chooses moments and victims, counts kills, and tells how far it is."""

    forks: Forks
    folder: Path
    kills: int
    random: random.Random
    tell: Callable[[str], None]
    done: int = 0
    rounds: int = 0
    _told: float = field(default_factory=time.monotonic)

    @property
    def goes_on(self) -> bool:
        """Whether there is somebody left to kill."""
        return self.done < self.kills

    def next_folder(self) -> Path:
        """Return an empty folder for the next round."""
        self.rounds += 1
        folder = self.folder / str(self.rounds)
        folder.mkdir()
        return folder

    def wait_and_kill(self, process: int, longest: float) -> bool:
        """Kill a process at a moment between now and some seconds later; False if it had ended."""
        end = time.monotonic() + longest * self.random.random()
        while time.monotonic() < end and is_running(process):
            time.sleep(0.002)
        return self.kill(process)

    def kill(self, process: int) -> bool:
        """Kill a process and count it; False if it had ended."""
        killed = self.forks.kill(process)
        self.done += killed
        if time.monotonic() - self._told > 5 or not self.goes_on:
            self._told = time.monotonic()
            self.tell(f"{self.done} of {self.kills} kills, {self.rounds} rounds")
        return killed


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """Return a folder in memory where there is one: what is killed is a process, not the disk."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="zephon-beam-chaos-", dir=place) as folder:
        yield Path(folder)


def make_whole(folder: Path, *, finite: bool) -> Whole:
    """Run a stream without interruption."""
    recipe = write_recipe(folder, finite=finite)
    began = time.monotonic()
    limit = {} if finite else {"until_samples": 4 * FOLLOWED_STEPS + 4 * LOOKAHEAD}
    facts = run_stream(recipe, folder / "stream", **limit)
    seconds = time.monotonic() - began
    found = tree(open_store(str(folder / "stream")))
    assert sum(name.startswith("quarantine/") for name in found) >= 3
    steps = facts["complete_samples"] // 4 if finite else FOLLOWED_STEPS
    notes = expected_notes(folder / "stream", steps)
    assert len(set(notes)) == steps
    return Whole(recipe=recipe, folder=folder / "stream", tree=found, notes=notes, seconds=seconds)


@pytest.fixture(scope="module")
def finite(disk: Path) -> Whole:
    """Return a stream that ends."""
    return make_whole(disk / "finite", finite=True)


@pytest.fixture(scope="module")
def endless(disk: Path) -> Whole:
    """Return a stream without end, as far as trainers read it."""
    return make_whole(disk / "endless", finite=False)


@pytest.fixture
def chaos(
    disk: Path,
    tmp_path: Path,
    kills: int,
    seed: int,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Chaos]:
    """Return the chooser of a test; afterwards nobody may be left behind."""

    def tell(text: str) -> None:
        if "long" in request.node.name:
            with capfd.disabled():
                sys.stderr.write(f"{request.node.name}: {text}\n")

    tell(f"CHAOS_SEED={seed}")
    with (
        tempfile.TemporaryDirectory(dir=disk) as folder,
        serve_forks(["pipelines.run", "zephon_beam.reader", "google.cloud.storage"], tmp_path) as f,
    ):
        found = Chaos(f, Path(folder), kills, random.Random(seed), tell)
        yield found
        assert found.forks.orphans() == []
        tell(f"{found.done} kills in {found.rounds} rounds, and nobody was left behind")


def collect_garbage(stream: Path) -> None:
    """Run `gc`, after which no temporary file may be left."""
    assert main(["gc", str(stream), "--json"]) == 0
    assert stray_files(stream) == []


def drive(chaos: Chaos, recipe: Path, stream: Path | str, **options: Any) -> int:
    """Start a driver with run options that may not change a byte; return its process."""
    options.setdefault("advance_bytes", chaos.random.choice(ADVANCE_SIZES))
    options.setdefault("drain_bytes", chaos.random.choice((1, 1 << 24)))
    return chaos.forks.start(DRIVE, {"recipe": str(recipe), "stream": str(stream), **options})


@forms(12, 240)
def test_runs(chaos: Chaos, finite: Whole) -> None:
    """Killed at any moment, or right after some object has appeared, and run again to the end."""
    while chaos.goes_on:
        stream = chaos.next_folder() / "stream"
        killed = True
        while killed and chaos.goes_on:
            process = drive(chaos, finite.recipe, stream)
            if chaos.random.random() < 0.5:
                wait_for_objects(process, stream, chaos.random.randrange(1, 40))
                killed = chaos.wait_and_kill(process, 0.02)
            else:
                killed = chaos.wait_and_kill(process, finite.seconds)
        if killed:
            assert chaos.forks.wait(drive(chaos, finite.recipe, stream)) == 0, chaos.forks.said()
        assert tree(open_store(str(stream))) == finite.tree
        collect_garbage(stream)


def wait_for_objects(process: int, stream: Path, count: int) -> None:
    """Wait until a process has made so many more objects, or has ended."""
    before = sum(1 for _ in stream.rglob("*.*"))
    while is_running(process) and sum(1 for _ in stream.rglob("*.*")) < before + count:
        time.sleep(0.002)


@forms(None, 12)
def test_runs_with_worker_processes(chaos: Chaos, finite: Whole) -> None:
    """The workers of a driver that is killed end as well."""
    while chaos.goes_on:
        stream = chaos.next_folder() / "stream"
        killed = True
        while killed and chaos.goes_on:
            process = drive(chaos, finite.recipe, stream, options=WORKERS, advance_bytes=1)
            if chaos.random.random() < 0.8:
                wait_for_objects(process, stream, chaos.random.randrange(6, 40))
            killed = chaos.wait_and_kill(process, 1.0)
            assert chaos.forks.orphans() == []
        if killed:
            assert chaos.forks.wait(drive(chaos, finite.recipe, stream)) == 0, chaos.forks.said()
        assert tree(open_store(str(stream))) == finite.tree
        collect_garbage(stream)


PAIRS = {
    "run and run": ({}, {}),
    "run and follow": ({}, {"follow": True, "lookahead": 4 * FOLLOWED_STEPS}),
    "follow and follow": ({"follow": True, "lookahead": 4 * FOLLOWED_STEPS},) * 2,
}


@pytest.mark.parametrize("pair", PAIRS)
@forms(1, 30)
def test_two_drivers_at_once(chaos: Chaos, endless: Whole, pair: str) -> None:
    """One of them is killed now and then; both end in the same stream, and each well."""
    until = {"until_samples": 4 * FOLLOWED_STEPS, "advance_bytes": 1}
    while chaos.goes_on:
        stream = chaos.next_folder() / "stream"
        alive: list[int | None] = [None, None]
        waiting = {0, 1}
        while waiting:
            for place in waiting:
                if alive[place] is None:
                    alive[place] = drive(
                        chaos, endless.recipe, stream, **until, **PAIRS[pair][place]
                    )
            time.sleep(endless.seconds * chaos.random.random() if chaos.goes_on else 0.05)
            for place in sorted(waiting):
                process = alive[place]
                assert process is not None
                if not is_running(process):
                    assert chaos.forks.wait(process) == 0, chaos.forks.said()
                    waiting.remove(place)
            if waiting and chaos.goes_on:
                place = chaos.random.choice(sorted(waiting))
                victim, alive[place] = alive[place], None
                assert victim is not None
                if not chaos.kill(victim):
                    waiting.remove(place)
        found = tree(open_store(str(stream)), ("shards", "state", "end", "catalog"))
        common = found.keys() & endless.tree.keys()
        assert sum(name.startswith("shards/") for name in common) >= FOLLOWED_STEPS * 4 // 8
        assert all(found[name] == endless.tree[name] for name in common)
        collect_garbage(stream)
        assert verify_stream(str(stream)).faults == ()


def read_in_chaos(chaos: Chaos, whole: Whole, stream: str, environment: dict[str, str]) -> None:
    """Kill a trainer again and again while it reads a stream, until it has read all of it."""
    options = {"stream": stream, "name": "run", "steps": len(whole.notes), "pace": PACE_SECS}
    while chaos.goes_on:
        folder, killed = chaos.next_folder(), True
        options["folder"] = str(folder)
        while killed and chaos.goes_on:
            process = chaos.forks.start(TRAIN, options, environment)
            killed = chaos.wait_and_kill(process, 0.8 * PACE_SECS * len(whole.notes))
        if killed:
            process = chaos.forks.start(TRAIN, options, environment)
            assert chaos.forks.wait(process) == 0, chaos.forks.said()
        assert check_notes(folder, whole.notes) >= 1


@forms(5, 180)
def test_readers_of_a_local_stream(chaos: Chaos, finite: Whole) -> None:
    """Each start goes on from the last checkpoint with the very bytes that come next."""
    stream = chaos.folder / "copy"
    shutil.copytree(finite.folder, stream)
    read_in_chaos(chaos, finite, str(stream), {})
    assert tree(open_store(str(stream))) == finite.tree
    collect_garbage(stream)
    assert 0 < len(tree(open_store(str(stream)), ["shards"])) <= LANES


@forms(5, 180)
def test_readers_of_a_bucket_with_a_cache(
    chaos: Chaos, finite: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies that were being made when their reader was killed are never taken for whole."""
    with gcs_server() as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        uri = f"gs://{make_gcs_bucket(address)}/stream"
        monkeypatch.setenv(CACHE_FOLDER, "none")
        store = open_store(uri)
        for name in open_store(str(finite.folder)).list(""):
            store.put_if_absent(name, (finite.folder / name).read_bytes())
        cache = chaos.folder / "cache"
        room = str(40 * max(path.stat().st_size for path in finite.folder.rglob("*.arrow")))
        environment = {
            "STORAGE_EMULATOR_HOST": address,
            CACHE_FOLDER: str(cache),
            CACHE_BYTES: room,
        }
        read_in_chaos(chaos, finite, uri, environment)
        assert any(cache.rglob("objects/*"))
        assert len(stray_files(cache)) <= 1
        assert tree(store) == finite.tree


@forms(6, 290)
def test_a_followed_stream_with_three_trainers(chaos: Chaos, endless: Whole) -> None:
    """Driver and trainers are killed in any order while what is behind all of them is deleted."""
    names = ("a", "b", "c")
    while chaos.goes_on:
        folder = chaos.next_folder()
        stream = folder / "stream"
        run_stream(endless.recipe, stream, until_samples=1, advance_bytes=1)
        for name in names:
            # Were one killed before it is known, what it needs would be deleted.
            open_reader(str(stream), consumer=name)
        alive: dict[str, int] = {}
        finished: set[str] = set()
        while len(finished) < len(names):
            if "driver" not in alive:
                options = {"follow": True, "lookahead": LOOKAHEAD, "retain": "pins"}
                alive["driver"] = drive(chaos, endless.recipe, stream, **options)
            for name in names:
                if name not in alive and name not in finished:
                    options = {"stream": str(stream), "folder": str(folder / name), "name": name}
                    alive[name] = chaos.forks.start(TRAIN, {**options, "steps": FOLLOWED_STEPS})
            time.sleep(1.5 * endless.seconds * chaos.random.random() ** 2 if chaos.goes_on else 0.1)
            ended = [name for name in alive if not is_running(alive[name])]
            for name in ended:
                assert chaos.forks.wait(alive.pop(name)) == 0, (name, chaos.forks.said())
                finished.add(name)
            if chaos.goes_on:
                victim = chaos.random.choice(sorted(alive))
                if not chaos.kill(alive.pop(victim)):
                    finished.add(victim)
        assert "driver" not in finished
        for process in alive.values():
            chaos.forks.kill(process)
        for name in names:
            check_notes(folder / name, endless.notes)
        collect_garbage(stream)
        report = verify_stream(str(stream))
        assert report.faults == ()
        assert report.first_sample > 0
        found = tree(open_store(str(stream)), ("shards", "state"))
        common = found.keys() & endless.tree.keys()
        assert len(common) > 3
        assert all(found[name] == endless.tree[name] for name in common)


@forms(None, 8)
def test_trainers_with_a_pipeline_of_their_own(chaos: Chaos, endless: Whole) -> None:
    """A trainer that is killed takes its pipeline with it, and goes on with another one."""
    folder = chaos.next_folder()
    options = {"recipe": str(endless.recipe), "stream": str(folder / "stream"), "name": "run"}
    options["folder"] = str(folder / "trainer")
    killed = True
    while killed and chaos.goes_on:
        process = chaos.forks.start(SERVE, {**options, "steps": FOLLOWED_STEPS})
        end = time.monotonic() + DEADLINE_SECS
        before = notes_taken(folder)
        while is_running(process) and notes_taken(folder) < before + 5:
            assert time.monotonic() < end, chaos.forks.said()
            time.sleep(0.02)
        killed = chaos.wait_and_kill(process, 0.5)
        assert chaos.forks.orphans() == []
    if killed:
        process = chaos.forks.start(SERVE, {**options, "steps": FOLLOWED_STEPS})
        assert chaos.forks.wait(process) == 0, chaos.forks.said()
    check_notes(folder / "trainer", endless.notes)
    collect_garbage(folder / "stream")
    assert verify_stream(str(folder / "stream")).faults == ()


def notes_taken(folder: Path) -> int:
    """Count the lines that a trainer has noted."""
    notes = folder / "trainer" / "notes"
    return len(notes.read_text().splitlines()) if notes.exists() else 0
