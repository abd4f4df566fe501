"""Disks that are full or may not be written, stores that fail, clocks that jump: all for real.

Each ends in a clear error or is waited out, the stream is intact, and the next run finishes it with
the same bytes.
"""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pipelines.run import run_stream
from tests.chaos_actors import check_notes, expected_notes, next_step, open_reader
from tests.chaos_streams import digests, stray_files, tree, write_recipe
from tests.forks import Forks, serve_forks
from tests.object_stores import gcs_server, make_gcs_bucket, proxy_before
from zephon_beam.consumers import read_consumers
from zephon_beam.errors import StoreError
from zephon_beam.store.base import open_store
from zephon_beam.store.cache import CACHE_FOLDER
from zephon_beam.verification import verify_stream

LOADED = ["pipelines.run", "zephon_beam.reader", "google.cloud.storage"]
STEPS = 60
CLOCK = Path(__file__).parents[1] / "jumping_clock.c"
INTACT = "what is stored is intact; check the path, its permissions and the free space, and run"


@dataclass(frozen=True, slots=True)
class Whole:
    """A stream that nothing disturbed."""

    recipe: Path
    folder: Path
    tree: dict[str, str]
    notes: list[str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return it."""
    folder = tmp_path_factory.mktemp("faults")
    recipe = write_recipe(folder / "sources", finite=True)
    run_stream(recipe, folder / "stream")
    found = tree(open_store(str(folder / "stream")))
    return Whole(recipe, folder / "stream", found, expected_notes(folder / "stream", STEPS))


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Return processes like any others."""
    with serve_forks(LOADED, tmp_path_factory.mktemp("forks")) as served:
        yield served
        assert served.orphans() == []


class Disk:
    """A small disk of its own, seen only by processes that are started in its name space."""

    def __init__(self, forks: Forks, place: Path) -> None:
        """Use an empty folder as the place where it is mounted."""
        self._forks = forks
        self.place = place
        self.seen_from_here = Path(f"/proc/{forks.pid}/root{place}")

    def mount(self, *words: str) -> None:
        """Mount it, or change how it is mounted."""
        call = {"words": ["mount", *words, str(self.place)]}
        assert self._forks.wait(self._forks.start("tests.chaos_actors:run_words", call)) == 0

    def mount_new(self, size: int) -> None:
        """Mount an empty one of so many bytes."""
        self.mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs")

    def resize(self, size: int) -> None:
        """Give it another size, and let it be written."""
        self.mount("-o", f"remount,rw,size={size}")


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Return processes that share a name space of mounts, which is their own."""
    words = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("a name space of its own for mounts is not allowed here")
    with serve_forks(LOADED, tmp_path_factory.mktemp("apart"), before=words) as served:
        yield served


@pytest.fixture
def disk(apart: Forks, tmp_path: Path) -> tuple[Forks, Disk]:
    """Return processes and a disk that only they see."""
    place = tmp_path / "disk"
    place.mkdir()
    return apart, Disk(apart, place)


def told(forks: Forks, call: str, said: Path, **options: Any) -> str:
    """Call something in a process of its own and return what error it told, empty if none."""
    words = {"call": call, "said": str(said), "options": options}
    assert forks.wait(forks.start("tests.chaos_actors:tell_error", words)) == 0, forks.said()
    return said.read_text()


def drive(forks: Forks, said: Path, whole: Whole, stream: Path | str, **options: Any) -> str:
    """Run a stream in a process of its own and return what error it told."""
    words = {"recipe": str(whole.recipe), "stream": str(stream), **options}
    return told(forks, "tests.chaos_actors:drive", said, **words)


def train(forks: Forks, said: Path, stream: Path | str, folder: Path, **options: Any) -> str:
    """Train in a process of its own and return what error it told."""
    words = {"stream": str(stream), "folder": str(folder), "name": "run", "steps": STEPS, **options}
    return told(forks, "tests.chaos_actors:train", said, **words)


@pytest.mark.parametrize("follow", [False, True])
def test_a_disk_that_is_full(
    disk: tuple[Forks, Disk], whole: Whole, tmp_path: Path, follow: bool
) -> None:
    """At every object that may meet it; given room, the run goes on where it was."""
    forks, small = disk
    said, stream = tmp_path / "said", small.place / "stream"
    needed = sum(path.stat().st_size for path in whole.folder.rglob("*.*"))
    options: dict[str, Any] = {"advance_bytes": 6000}
    if follow:
        options |= {"follow": True, "lookahead": 10**6, "retain": "pins"}
    small.mount_new(4096)
    errors = []
    for percent in (3, 35, 90) if follow else (1, 4, 15, 60, 90):
        small.resize(max(8192, needed * percent // 100))
        errors.append(drive(forks, said, whole, stream, **options))
        assert "No space left on device" in errors[-1]
        assert errors[-1].startswith("StoreError: store must be able to write ")
        assert INTACT in errors[-1]
        assert stray_files(small.seen_from_here) == []
        if (small.seen_from_here / "stream/stream.json").exists():
            assert verify_stream(str(small.seen_from_here / "stream")).faults == ()
            found = tree(open_store(str(small.seen_from_here / "stream")))
            assert found.items() <= whole.tree.items()
    assert len(set(errors)) > 2
    small.resize(20 * needed)
    assert drive(forks, said, whole, stream, **options) == ""
    assert tree(open_store(str(small.seen_from_here / "stream"))) == whole.tree


def test_a_trainer_on_a_full_disk_reads_on(
    disk: tuple[Forks, Disk], whole: Whole, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its position is told later; only what it must be sure of, a pin, is an error."""
    forks, small = disk
    said, stream = tmp_path / "said", small.place / "stream"
    small.mount_new(1 << 26)
    assert drive(forks, said, whole, stream) == ""
    seen = small.seen_from_here / "stream"
    now = 0.0
    with open_reader(str(seen), consumer="run", clock=lambda: now) as reader:
        notes = [next_step(reader) for _ in range(3)]
        reader.acknowledge(reader.state_dict())
        filler = {"path": str(small.place / "filler")}
        assert forks.wait(forks.start("tests.chaos_actors:fill_disk", filler)) == 0
        for _ in range(3):
            now += 10
            notes.append(next_step(reader))
        assert "run: the position could not be told: store must be able to write" in caplog.text
        with pytest.raises(StoreError, match=r"consumers/run\.json: No space left on device; what"):
            reader.acknowledge(reader.state_dict())
        (small.seen_from_here / "filler").unlink()
        reader.acknowledge(reader.state_dict())
        notes += [next_step(reader) for _ in range(3)]
    assert notes == whole.notes[:9]
    assert read_consumers(open_store(str(seen)))[0].pins == {"acknowledged": 24}
    assert stray_files(small.seen_from_here) == []
    assert verify_stream(str(seen)).faults == ()


def test_a_cache_on_a_full_disk_costs_time_only(
    disk: tuple[Forks, Disk], whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects are then read into memory."""
    forks, small = disk
    small.mount_new(16384)
    with gcs_server() as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        monkeypatch.setenv(CACHE_FOLDER, "none")
        uri = copy_to_bucket(whole, address)
        environment = {"STORAGE_EMULATOR_HOST": address, CACHE_FOLDER: str(small.place / "cache")}
        call = {"stream": uri, "folder": str(tmp_path / "a"), "name": "run", "steps": STEPS}
        process = forks.start("tests.chaos_actors:train", call, environment)
        assert forks.wait(process) == 0, forks.said()
        check_notes(tmp_path / "a", whole.notes)
        assert "cannot be used" in forks.said()


def copy_to_bucket(whole: Whole, address: str) -> str:
    """Copy the whole stream into a new bucket and return its address there."""
    uri = f"gs://{make_gcs_bucket(address)}/stream"
    store = open_store(uri)
    for name in open_store(str(whole.folder)).list(""):
        store.put_if_absent(name, (whole.folder / name).read_bytes())
    return uri


def test_a_disk_that_may_not_be_written(
    disk: tuple[Forks, Disk], whole: Whole, tmp_path: Path
) -> None:
    """A run ends, readers without a name do not mind, and once it may be, the run goes on."""
    forks, small = disk
    said, stream = tmp_path / "said", small.place / "stream"
    small.mount_new(1 << 26)
    assert drive(forks, said, whole, stream, until_samples=4 * STEPS, advance_bytes=1) == ""
    small.mount("-o", "remount,ro")
    before = tree(open_store(str(small.seen_from_here / "stream")))
    for options in ({}, {"follow": True, "lookahead": 10**6}):
        error = drive(forks, said, whole, stream, **options)
        assert error.startswith("StoreError: store must be able to write ")
        assert f"Read-only file system; {INTACT}" in error
    error = train(forks, said, stream, tmp_path / "a")
    assert error.startswith("StoreError: store must be able to write ")
    assert "consumers" in error
    assert train(forks, said, stream, tmp_path / "b", name="") == ""
    check_notes(tmp_path / "b", whole.notes)
    assert tree(open_store(str(small.seen_from_here / "stream"))) == before
    small.resize(1 << 26)
    assert drive(forks, said, whole, stream) == ""
    assert tree(open_store(str(small.seen_from_here / "stream"))) == whole.tree


def test_a_folder_of_another_user(forks: Forks, whole: Whole) -> None:
    """What may not be written or read is named with what to do; nothing is lost."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    # Folders of tests are closed to others; /dev/shm or /tmp is not.
    open_folder = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp")
    folder = open_folder / f"zephon-beam-other-user-{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o777)
    try:
        said, stream = folder / "said", folder / "stream"
        shutil.copytree(whole.recipe.parent, folder / "sources")
        mine = Whole(folder / "sources/recipe.yaml", whole.folder, whole.tree, whole.notes)
        run_stream(mine.recipe, stream, until_samples=4 * STEPS, advance_bytes=1)
        before = tree(open_store(str(stream)))
        error = drive(forks, said, mine, stream, user=65534)
        assert error.startswith("StoreError: store must be able to ")
        assert "Permission denied" in error
        assert INTACT in error
        assert train(forks, said, stream, folder / "a", name="", user=65534) == ""
        check_notes(folder / "a", whole.notes)
        shard = stream / "shards/lane-00001/000000002.arrow"
        shard.chmod(0o600)
        error = train(forks, said, stream, folder / "b", name="", user=65534)
        assert error.startswith(
            f"StoreError: store must be able to read {shard}: Permission denied"
        )
        shard.chmod(0o644)
        assert tree(open_store(str(stream))) == before
        run_stream(mine.recipe, stream)
        assert tree(open_store(str(stream))) == whole.tree
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_store_that_fails_now_and_then(
    forks: Forks, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """One request in five, of a driver that follows and of its trainer, in all ways at random."""
    rng = random.Random(seed)
    kinds = ("429", "500", "502", "503", "reset", "lose", "silent")
    faults = [rng.choice(kinds) if rng.random() < 0.2 else "" for _ in range(997)]
    with gcs_server() as address, proxy_before(address) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        monkeypatch.setenv(CACHE_FOLDER, "none")
        uri = f"gs://{make_gcs_bucket(address)}/stream"
        environment = {
            "STORAGE_EMULATOR_HOST": proxy.address,
            CACHE_FOLDER: str(tmp_path / "cache"),
        }
        limits = {"REQUEST_SECS": 0.5, "FIRST_PAUSE_SECS": 0.01, "LONGEST_PAUSE_SECS": 0.05}
        run_stream(whole.recipe, uri, until_samples=1, advance_bytes=1)
        open_reader(uri, consumer="run")
        proxy.fail(*chain.from_iterable(faults for _ in range(20)))
        driven = {"recipe": str(whole.recipe), "stream": uri, "follow": True, "lookahead": 60}
        driven |= {"retain": "pins", "advance_bytes": 1, "limits": limits}
        driver = forks.start("tests.chaos_actors:drive", driven, environment)
        trained = {"stream": uri, "folder": str(tmp_path / "a"), "name": "run", "steps": STEPS}
        trainer = forks.start(
            "tests.chaos_actors:train", {**trained, "limits": limits}, environment
        )
        assert forks.wait(trainer) == 0, forks.said()
        forks.kill(driver)
        proxy.fail()
        check_notes(tmp_path / "a", whole.notes)
        assert len(proxy.requests) > 300
        assert verify_stream(uri).faults == ()
        store = open_store(uri)
        assert digests(store).items() <= digests(open_store(str(whole.folder))).items()
        assert tree(store, ("state", "end")).items() <= whole.tree.items()


def test_a_store_that_fails_for_too_long(
    forks: Forks, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver and trainer end with one clear error each, and go on once it is well again."""
    with gcs_server() as address, proxy_before(address) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.address)
        monkeypatch.setenv(CACHE_FOLDER, "none")
        uri = f"gs://{make_gcs_bucket(address)}/stream"
        run_stream(whole.recipe, uri, until_samples=1, advance_bytes=1)
        environment = {"STORAGE_EMULATOR_HOST": proxy.address, CACHE_FOLDER: "none"}
        limits = {"DEADLINE_SECS": 0.3, "FIRST_PAUSE_SECS": 0.01, "REQUEST_SECS": 0.5}
        follow = {"follow": True, "lookahead": 60, "advance_bytes": 1, "limits": limits}
        driven = {"recipe": str(whole.recipe), "stream": uri, **follow}
        trained = {"stream": uri, "folder": str(tmp_path / "a"), "name": "run", "steps": STEPS}
        trained["limits"] = limits
        calls = {"drive": driven, "train": trained}
        proxy.fail(*[""] * 60, *["503"] * 200_000)
        for name, options in calls.items():
            call = f"tests.chaos_actors:{name}"
            words = {"call": call, "said": str(tmp_path / name), "options": options}
            process = forks.start("tests.chaos_actors:tell_error", words, environment)
            assert forks.wait(process) == 0, forks.said()
            error = (tmp_path / name).read_text()
            assert error.startswith("StoreError: store must be able to ")
            assert "what is stored is intact; check the network" in error
        proxy.fail()
        driver = forks.start("tests.chaos_actors:drive", driven, environment)
        trainer = forks.start("tests.chaos_actors:train", trained, environment)
        assert forks.wait(trainer) == 0, forks.said()
        forks.kill(driver)
        check_notes(tmp_path / "a", whole.notes)
        run_stream(whole.recipe, uri)
        assert digests(open_store(uri)) == digests(open_store(str(whole.folder)))


def test_a_clock_that_jumps_by_hours(whole: Whole, tmp_path: Path) -> None:
    """Forwards and backwards, with every look at it: it decides nothing and ends no wait."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a compiler is needed for a clock that jumps")
    library = tmp_path / "clock.so"
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(CLOCK), "-ldl"]
    subprocess.run(words, check=True)
    said, stream = tmp_path / "said", tmp_path / "stream"
    with serve_forks(LOADED, tmp_path, environment={"LD_PRELOAD": str(library)}) as forks:
        assert told(forks, "tests.chaos_actors:look_at_clock", said) == ""
        run_stream(whole.recipe, stream, until_samples=1, advance_bytes=1)
        with open_reader(str(stream), consumer="run"):
            pass
        for path in chain(stream.rglob("*.json"), stream.rglob("*.arrow")):
            # Of the future and of long ago: times of files decide nothing either.
            os.utime(path, (0, 0) if path.suffix == ".json" else (1 << 33, 1 << 33))
        options = {"follow": True, "lookahead": 60, "retain": "pins", "advance_bytes": 1}
        words = {"recipe": str(whole.recipe), "stream": str(stream), **options}
        driver = forks.start("tests.chaos_actors:drive", words)
        assert train(forks, said, stream, tmp_path / "a") == "", forks.said()
        check_notes(tmp_path / "a", whole.notes)
        forks.kill(driver)
        assert "has said nothing" not in forks.said()
        assert json.loads((stream / "consumers/run.json").read_text())["finished"]
        again = tmp_path / "again"
        assert drive(forks, said, whole, again, advance_bytes=1) == ""
        assert tree(open_store(str(again))) == whole.tree
