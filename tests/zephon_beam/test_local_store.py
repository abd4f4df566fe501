"""The local store: objects are created whole, once, by exactly one of many writers."""

import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from zephon_beam.errors import DeterminismError, RecipeError
from zephon_beam.store import local
from zephon_beam.store.base import open_store
from zephon_beam.store.local import LocalStore


@pytest.fixture(params=["unnamed", "unsupported", "absent"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> LocalStore:
    """Yield a store, with unnamed files and without."""
    if request.param == "absent":
        monkeypatch.delattr(os, "O_TMPFILE")
    if request.param == "unsupported":
        flag, real = os.O_TMPFILE, os.open

        def refuse(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if flags & flag == flag:
                raise OSError(errno.EOPNOTSUPP, "no unnamed files here")
            return real(path, flags, *rest, **options)

        monkeypatch.setattr(os, "open", refuse)
    return LocalStore(tmp_path / "deep" / "root")


def files(store: LocalStore) -> list[str]:
    """List every file that is really there, temporaries too."""
    root = Path(store.uri)
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def has_unnamed_files(folder: Path) -> bool:
    """Say whether the file system that tests run on knows unnamed files."""
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600))
    except (AttributeError, OSError):
        return False
    return True


@pytest.mark.parametrize("data", [b"", b"content", bytes(1 << 20)])
def test_an_object_is_created_once(store: LocalStore, data: bytes) -> None:
    """The second time its content is compared; nothing else is left behind."""
    assert store.put_if_absent("a/b/c", data)
    assert not store.put_if_absent("a/b/c", data)
    assert store.get("a/b/c") == data
    assert bytes(store.open_mmap("a/b/c")) == data
    assert store.exists("a/b/c")
    assert not store.exists("a/b")
    assert files(store) == ["a/b/c"]
    assert (Path(store.uri) / "a/b/c").stat().st_mode & 0o777 == 0o644


def test_other_content_is_refused_and_kept(store: LocalStore) -> None:
    """The error names the object and both digests."""
    store.put_if_absent("x", b"one")
    stored, computed = "c88d4df74262143a08e9d190e3bd67f1", "d681734f8c454b90df4d5feea7487445"
    message = rf"/x exists with other content: stored {stored}, computed {computed}; .*keep both"
    with pytest.raises(DeterminismError, match=message):
        store.put_if_absent("x", b"two")
    assert store.get("x") == b"one"
    assert files(store) == ["x"]


def test_content_may_be_compared_by_meaning(store: LocalStore) -> None:
    """The function is given what is stored, then what was computed, only if bytes differ."""
    calls = []

    def same(stored: bytes, computed: bytes) -> bool:
        calls.append((stored, computed))
        return stored.lower() == computed.lower()

    assert store.put_if_absent("x", b"one", same)
    assert not store.put_if_absent("x", b"one", same)
    assert not store.put_if_absent("x", b"ONE", same)
    assert calls == [(b"one", b"ONE")]
    assert store.get("x") == b"one"
    with pytest.raises(DeterminismError):
        store.put_if_absent("x", b"two", same)


def test_of_many_threads_exactly_one_creates_an_object(store: LocalStore) -> None:
    """All others verify it, even if they found nothing before they wrote."""
    created: list[bool] = []
    barrier = threading.Barrier(8)

    def write() -> None:
        for number in range(10):
            barrier.wait()
            created.append(store.put_if_absent(f"{number}/x", bytes(100_000)))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert created.count(True) == 10
    assert len(created) == 80
    assert files(store) == [f"{number}/x" for number in range(10)]


def test_a_writer_that_loses_at_the_last_moment_verifies_what_won(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer links its file between our look and our link."""
    link = local._link_new

    def be_late(path: Path, data: bytes, folder: int) -> None:
        if not path.exists():
            link(path, b"winner", folder)
        link(path, data, folder)

    monkeypatch.setattr(local, "_link_new", be_late)
    assert not store.put_if_absent("same", b"winner")
    with pytest.raises(DeterminismError, match="/other exists with other content"):
        store.put_if_absent("other", b"loser")
    assert store.get("other") == b"winner"
    assert not store.put_if_absent("third", b"WINNER", lambda a, b: a.lower() == b.lower())
    assert files(store) == ["other", "same", "third"]


def _write_in_process(root: str, start: Any, results: Any, content: bytes) -> None:
    start.wait()
    store = LocalStore(root)
    for number in range(20):
        try:
            results.put(store.put_if_absent(f"f/{number}", content))
        except DeterminismError:
            results.put("refused")


@pytest.mark.parametrize("contents", [[b"same"] * 3, [b"one", b"two", b"three"]])
def test_of_many_processes_exactly_one_creates_an_object(
    tmp_path: Path, contents: list[bytes]
) -> None:
    """Equal content: the others return False. Other content: they are refused."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    workers = [
        context.Process(target=_write_in_process, args=(str(tmp_path), start, results, content))
        for content in contents
    ]
    for worker in workers:
        worker.start()
    start.set()
    found = [results.get(timeout=60) for _ in range(60)]
    for worker in workers:
        worker.join()
    assert found.count(True) == 20
    assert found.count(False if len(set(contents)) == 1 else "refused") == 40
    store = LocalStore(tmp_path)
    assert files(store) == sorted(f"f/{number}" for number in range(20))
    assert {store.get(name) for name in store.list("f/")} <= set(contents)


WRITER = """
import os, sys
from zephon_beam.store import local
from zephon_beam.store.local import LocalStore
real = os.{function}
def stop(*arguments, **options):
    os.kill(os.getpid(), 9)
os.{function} = stop
LocalStore(sys.argv[1]).put_if_absent("x", b"content" * 1000)
"""


@pytest.mark.parametrize("function", ["write", "fsync", "link"])
def test_a_killed_writer_leaves_nothing(tmp_path: Path, function: str) -> None:
    """Neither an object nor, where the system has unnamed files, a stray one."""
    (tmp_path / "root").mkdir()
    script = WRITER.replace("{function}", function)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "root")],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -signal.SIGKILL
    store = LocalStore(tmp_path / "root")
    assert list(store.list("")) == []
    if has_unnamed_files(tmp_path):
        assert files(store) == []
    assert store.put_if_absent("x", b"content")


def test_a_failing_writer_leaves_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, say."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    (Path(store.uri)).mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="full"):
            store.put_if_absent("x", b"1")
        with pytest.raises(OSError, match="full"):
            store.replace("x", b"1")
    assert files(store) == []


def test_replace_overwrites_as_a_whole(store: LocalStore) -> None:
    """Readers that hold the old content keep it."""
    store.replace("a/x", b"one")
    held = store.open_mmap("a/x")
    store.replace("a/x", b"three")
    assert store.get("a/x") == b"three"
    assert bytes(held) == b"one"
    assert files(store) == ["a/x"]


REPLACER = """
import os, signal, sys
from zephon_beam.store.local import LocalStore
real = os.fsync
def stop(number):
    real(number)
    print("written", flush=True)
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
os.fsync = stop
LocalStore(sys.argv[1]).replace("consumers/x", b"content")
"""


def test_what_a_killed_replacer_leaves_is_removed_and_what_is_being_written_is_not(
    tmp_path: Path,
) -> None:
    """The lock of its writer tells them apart."""
    store = LocalStore(tmp_path)
    (tmp_path / "consumers").mkdir()
    words = [sys.executable, "-c", REPLACER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([*words, "SIGKILL"], check=False, env=environment)
    assert killed.returncode == -signal.SIGKILL
    assert len(files(store)) == 1
    assert list(store.list("")) == []
    with subprocess.Popen(
        [*words, "SIGSTOP"], env=environment, stdout=subprocess.PIPE, text=True
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline()
            assert len(files(store)) == 2
            assert store.remove_strays(only_count=True) == 1
            assert len(files(store)) == 2
            assert store.remove_strays() == 1
            assert store.remove_strays() == 0
            writer.send_signal(signal.SIGCONT)
            assert writer.wait(60) == 0
        finally:
            writer.kill()
    assert files(store) == ["consumers/x"]
    assert store.get("consumers/x") == b"content"


def test_a_writer_whose_file_was_taken_for_a_stray_writes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making it and locking it."""
    store, lock = LocalStore(tmp_path), fcntl.flock

    def lock_late(file: int, how: int) -> None:
        monkeypatch.undo()
        assert store.remove_strays() == 1
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    store.replace("x", b"content")
    assert store.get("x") == b"content"
    assert files(store) == ["x"]


def test_what_is_replaced_may_be_read_by_others(tmp_path: Path) -> None:
    """Pipeline and trainer need not be run by the same user."""
    store = LocalStore(tmp_path)
    store.replace("x", b"content")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644


def test_ranges_end_where_the_object_ends(store: LocalStore) -> None:
    """Shorter or empty, never an error."""
    store.put_if_absent("x", b"0123456789")
    assert store.get_range("x", 2, 3) == b"234"
    assert store.get_range("x", 8, 5) == b"89"
    assert store.get_range("x", 20, 5) == b""


def test_a_missing_object_is_not_found(store: LocalStore) -> None:
    """By every way of reading; deleting it is no error."""
    for read in (store.get, store.open_mmap, lambda name: store.get_range(name, 0, 1)):
        with pytest.raises(FileNotFoundError):
            read("a/x")
    assert not store.exists("a/x")
    store.delete("a/x")
    store.put_if_absent("a/x", b"")
    store.delete("a/x")
    assert not store.exists("a/x")


def test_listing_is_sorted_and_skips_temporary_files(store: LocalStore) -> None:
    """Names are relative to the root; a folder that is not there is empty."""
    for name in ("b/2", "b/10", "a", "b/c/1"):
        store.put_if_absent(name, b"")
    (Path(store.uri) / "b" / ".tmp-123").write_bytes(b"")
    assert list(store.list("b/")) == ["b/10", "b/2", "b/c/1"]
    assert list(store.list("")) == ["a", "b/10", "b/2", "b/c/1"]
    assert list(store.list("none/")) == []


@pytest.mark.parametrize("name", ["", ".", "..", "/x", "a/../x", "a//x", "a/", "./a", "../x"])
def test_names_that_leave_the_root_are_refused(store: LocalStore, name: str) -> None:
    """By every operation."""
    for use in (
        store.get,
        store.exists,
        store.delete,
        store.open_mmap,
        lambda bad: store.put_if_absent(bad, b""),
        lambda bad: store.replace(bad, b""),
        lambda bad: store.get_range(bad, 0, 1),
    ):
        with pytest.raises(ValueError, match="name must be a plain relative path, got"):
            use(name)
    assert files(store) == []


def test_errors_other_than_missing_support_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full table of open files does not mean that unnamed files are unknown."""
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EMFILE, "too many")
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(local.os, "open", refuse)
    with pytest.raises(OSError, match="too many"):
        LocalStore(tmp_path).put_if_absent("x", b"")


def test_addresses_lead_to_stores(tmp_path: Path) -> None:
    """A path or a file:// address; others are refused with a hint."""
    assert open_store(str(tmp_path)).uri == str(tmp_path)
    assert open_store(f"file://{tmp_path}").uri == str(tmp_path)
    with pytest.raises(RecipeError, match=r"stream must be .*'fil://x'; did you mean file://"):
        open_store("fil://x")
    with pytest.raises(RecipeError, match="stream must be a local path"):
        open_store("ftp://x")
