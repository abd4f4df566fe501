"""Copies of remote objects: whole or not there, fetched once, bounded, no reason to fail."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from zephon_beam.errors import RecipeError, StoreError
from zephon_beam.store import cache as module
from zephon_beam.store.cache import CACHE_BYTES, CACHE_FOLDER, CopyKey, LocalCache


class Source:
    """Content that counts how often it is fetched."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.fetched = 0

    def __call__(self) -> bytes:
        """Fetch it."""
        self.fetched += 1
        return self.content


def key(address: str, version: str = "1", size: int = 100_000, form: str = "") -> CopyKey:
    """Name a copy."""
    return CopyKey(address, version, size, form)


def copies(folder: Path) -> list[Path]:
    """Return the files that hold copies, temporary ones too."""
    return sorted((folder / "objects").iterdir())


def test_an_object_is_fetched_once(tmp_path: Path) -> None:
    """Another version of it is another object."""
    source = Source(os.urandom(100_000))
    for _ in range(2):
        cache = LocalCache(tmp_path / "deep" / "cache")
        for _ in range(2):
            assert bytes(cache.open(key("gs://b/x"), source)) == source.content
    assert source.fetched == 1
    other = Source(os.urandom(100_000))
    assert bytes(cache.open(key("gs://b/x", "2"), other)) == other.content
    assert bytes(cache.open(key("gs://b/x"), source)) == source.content
    assert (source.fetched, other.fetched) == (1, 1)
    assert len(copies(tmp_path / "deep" / "cache")) == 2
    assert (tmp_path / "deep" / "cache" / "objects").stat().st_mode & 0o77 == 0


def test_a_copy_is_mapped(tmp_path: Path) -> None:
    """Ranks of a host share its pages; it lives on when its file is gone."""
    source = Source(os.urandom(100_000))
    view = LocalCache(tmp_path).open(key("x"), source)
    assert type(view.obj).__name__ == "mmap"
    assert view.readonly
    for path in copies(tmp_path):
        path.unlink()
    assert bytes(view) == source.content


def test_what_is_made_of_an_object_is_a_copy_of_its_own(tmp_path: Path) -> None:
    """It may be larger than the object, which is neither read nor made again."""
    cache, plain, made = LocalCache(tmp_path), Source(bytes(1000)), Source(os.urandom(5000))
    for _ in range(2):
        assert bytes(cache.open(key("x", size=1000), plain)) == plain.content
        assert bytes(cache.open(key("x", size=1000, form="made"), made)) == made.content
        assert cache.holds(key("x", size=1000, form="made"))
    assert (plain.fetched, made.fetched) == (1, 1)
    assert not cache.holds(key("x", size=1000, form="other"))


def test_a_copy_is_checked_when_it_is_new_altered_or_from_before_the_machine_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To check takes as long as to read, and a folder's files are not checked at all."""
    checks: list[int] = []

    def count(content: memoryview) -> int:
        checks.append(len(content))
        return zlib.crc32(content)

    class Counting:
        crc32 = staticmethod(count)

    def checked() -> int:
        checks.clear()
        found = LocalCache(tmp_path).open(key("x"), source)
        assert bytes(found) == source.content
        return len(checks)

    monkeypatch.setattr(module, "zlib", Counting)
    source = Source(os.urandom(100_000))
    assert checked() == 2  # the writer's trailer, and what is there of it
    assert checked() == checked() == 0
    (path,) = copies(tmp_path)
    path.touch()
    assert checked() == 1
    assert checked() == 0
    monkeypatch.setattr(module, "_boot", lambda: b"another")
    assert checked() == 1
    assert checked() == 0
    flip(path)
    assert checked() == 3
    assert source.fetched == 2


def flip(path: Path) -> None:
    """Alter one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: os.truncate(path, 50_000),
        lambda path: os.truncate(path, 100_000),
        lambda path: os.truncate(path, 0),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
    ],
    ids=["flipped", "half", "no trailer", "empty", "longer", "zeros"],
)
def test_a_damaged_copy_is_fetched_anew(tmp_path: Path, damage: Any) -> None:
    """Whatever happened to the disk, what is read is what is stored."""
    source = Source(os.urandom(100_000))
    LocalCache(tmp_path).open(key("x"), source)
    (path,) = copies(tmp_path)
    damage(path)
    assert bytes(LocalCache(tmp_path).open(key("x"), source)) == source.content
    assert source.fetched == 2
    assert bytes(LocalCache(tmp_path).open(key("x"), source)) == source.content
    assert source.fetched == 2


def test_the_least_recently_used_copies_make_room(tmp_path: Path) -> None:
    """The limit holds, and what is mapped stays readable."""
    cache = LocalCache(tmp_path, limit_bytes=350_000)
    sources = {name: Source(os.urandom(100_000)) for name in "abcd"}
    views = {}
    for step, name in enumerate("abcabd"):
        views[name] = cache.open(key(name), sources[name])
        for age, path in enumerate(copies(tmp_path)):  # times of use that cannot be equal
            status = path.stat()
            if status.st_atime > 1e9:
                os.utime(path, ns=(step, status.st_mtime_ns))
            assert age < 3
    for name in "abd":
        cache.open(key(name), sources[name])
    assert [sources[name].fetched for name in "abcd"] == [1, 1, 1, 1]
    assert bytes(views["c"]) == sources["c"].content
    cache.open(key("c"), sources["c"])
    assert sources["c"].fetched == 2
    assert sum(path.stat().st_size for path in copies(tmp_path)) <= 350_000


def test_an_object_larger_than_the_limit_is_read_into_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing else is removed for it, and it is said once."""
    cache = LocalCache(tmp_path, limit_bytes=150_000)
    small, large = Source(bytes(100_000)), Source(bytes(200_000))
    cache.open(key("small"), small)
    for _ in range(2):
        assert len(cache.open(key("large", size=200_000), large)) == 200_000
    assert large.fetched == 2
    cache.open(key("small"), small)
    assert small.fetched == 1
    assert len(copies(tmp_path)) == 1
    assert caplog.text.count("cannot be used") == 1


def test_by_default_a_quarter_of_the_free_disk_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small disk is not filled."""

    class Usage:
        free = 1_000_000

    monkeypatch.setattr(module.shutil, "disk_usage", lambda _path: Usage)
    cache = LocalCache(tmp_path)
    for number in range(10):
        cache.open(key(str(number)), Source(bytes(100_000)))
    assert 2 <= len(copies(tmp_path)) <= 3


@pytest.mark.parametrize("reason", ["no folder", "full", "no locks"])
def test_a_cache_that_cannot_be_used_costs_speed_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    """Objects are read into memory; the reason is logged once, and nothing is left behind."""
    folder = tmp_path / "cache"
    if reason == "no folder":
        folder.write_text("a file")
    if reason == "full":

        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(module, "_write", fail)
    if reason == "no locks":

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(module.fcntl, "flock", refuse)
    source = Source(os.urandom(1000))
    cache = LocalCache(folder)
    for _ in range(2):
        assert bytes(cache.open(key("x", size=1000), source)) == source.content
    assert source.fetched == 2
    assert caplog.text.count("cannot be used") == 1
    if reason == "full":
        assert copies(folder) == []


def test_what_fetching_raises_is_passed_on(tmp_path: Path) -> None:
    """It is no fault of the cache, and the next attempt may succeed."""

    def fail() -> bytes:
        raise StoreError("the store is away")

    cache = LocalCache(tmp_path)
    with pytest.raises(StoreError, match="away"):
        cache.open(key("x", size=3), fail)
    assert bytes(cache.open(key("x", size=3), lambda: b"abc")) == b"abc"


def test_of_many_threads_one_fetches(tmp_path: Path) -> None:
    """The others wait for it."""
    source = Source(os.urandom(100_000))
    barrier = threading.Barrier(8)
    found: list[bytes] = []

    def read() -> None:
        cache = LocalCache(tmp_path)
        barrier.wait()
        found.append(bytes(cache.open(key("x"), source)))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [source.content] * 8
    assert source.fetched == 1


def _read_in_process(folder: str, start: Any, results: Any) -> None:
    start.wait()
    fetched: list[int] = []

    def fetch(number: int) -> bytes:
        fetched.append(number)
        return bytes([number]) * 100_000

    cache = LocalCache(Path(folder), limit_bytes=1_250_000)
    for number in (*range(10), *range(10)):
        view = cache.open(key(str(number)), partial(fetch, number))
        assert bytes(view) == bytes([number]) * 100_000
    results.put(fetched)


def test_of_many_processes_one_fetches(tmp_path: Path) -> None:
    """Each object once on the host, while there is room."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    workers = [
        context.Process(target=_read_in_process, args=(str(tmp_path), start, results))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    start.set()
    fetched = sorted(number for _ in workers for number in results.get(timeout=60))
    for worker in workers:
        worker.join()
    assert fetched == list(range(10))


WRITER = """
import os, sys
from pathlib import Path
from zephon_beam.store import cache
def stop(*arguments):
    print("stopped", flush=True)
    {how}
cache.{function} = stop
key = cache.CopyKey("x", "1", 1000)
cache.LocalCache(Path(sys.argv[1])).open(key, lambda: bytes(1000))
"""


@pytest.mark.parametrize("function", ["_write", "os.rename"])
def test_a_killed_writer_leaves_nothing_for_long(tmp_path: Path, function: str) -> None:
    """Its temporary file is removed when room is made next; one that is at work is left alone."""
    code = WRITER.replace("{function}", function)
    killed = code.replace("{how}", "os.kill(os.getpid(), 9)")
    done = subprocess.run(
        [sys.executable, "-c", killed, str(tmp_path)], check=False, stdout=subprocess.DEVNULL
    )
    assert done.returncode == -signal.SIGKILL
    (orphan,) = copies(tmp_path)
    alive = code.replace("{how}", "import time; time.sleep(600)")
    cache = LocalCache(tmp_path)
    # The one at work holds the room if it was about to rename, so it is stopped before that.
    alive = alive.replace("cache.os.rename", "cache._write")
    with subprocess.Popen(
        [sys.executable, "-c", alive, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "stopped\n"
            working = [path for path in copies(tmp_path) if path != orphan]
            assert len(working) == 1
            assert bytes(cache.open(key("y", size=1000), lambda: bytes(1000))) == bytes(1000)
            assert not orphan.exists()
            assert working[0].exists()
        finally:
            writer.kill()
    assert bytes(cache.open(key("x", size=1000), lambda: bytes(1000))) == bytes(1000)
    assert len(copies(tmp_path)) == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_does_not_keep_a_lock(tmp_path: Path) -> None:
    """A worker that was forked in the middle of a fetch lives on; the object is read by others."""
    cache = LocalCache(tmp_path)
    children = []

    def fetch() -> bytes:
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        children.append(child)
        return bytes(1000)

    try:
        cache.open(key("x", size=1000), fetch)
        (path,) = copies(tmp_path)
        path.unlink()
        assert bytes(cache.open(key("x", size=1000), lambda: bytes(1000))) == bytes(1000)
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)


def test_the_environment_chooses_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, a size, or none; by default the user's folder for caches."""
    for variable in (CACHE_FOLDER, CACHE_BYTES):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    content = bytes(1000)

    def use() -> None:
        found = LocalCache.from_environment()
        assert found is not None
        found.open(key("x", size=1000), lambda: content)

    use()
    assert len(copies(tmp_path / "xdg" / "zephon-beam")) == 1
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "own"))
    use()
    assert len(copies(tmp_path / "own")) == 1
    monkeypatch.setenv(CACHE_BYTES, "10")
    use()
    monkeypatch.setenv(CACHE_BYTES, "8GiB")
    with pytest.raises(RecipeError, match="ZEPHON_BEAM_CACHE_BYTES must be a number of bytes, got"):
        LocalCache.from_environment()
    monkeypatch.setenv(CACHE_BYTES, "")
    monkeypatch.setenv(CACHE_FOLDER, "none")
    assert LocalCache.from_environment() is None
