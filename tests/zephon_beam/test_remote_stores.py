"""Stores in buckets keep the same promises as the local one, each before a real server."""

import multiprocessing
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from tests.object_stores import proxy_before
from zephon_beam.errors import DeterminismError, RecipeError, StoreError
from zephon_beam.store.base import Store, open_store
from zephon_beam.store.remote import SMALL_BYTES


@pytest.fixture(params=["gcs", "s3", "azure"])
def bucket(request: pytest.FixtureRequest) -> str:
    """Return the address of an empty bucket of each kind."""
    address: str = request.getfixturevalue(request.param)
    return address


@pytest.fixture
def store(bucket: str) -> Store:
    """Return a store in a folder of the bucket."""
    return open_store(f"{bucket}/deep/root/")


def test_an_object_is_created_once(store: Store, bucket: str) -> None:
    """The second time its content is compared."""
    assert store.uri == f"{bucket}/deep/root"
    for name, data in (("a/b/c", b"content"), ("empty", b""), ("large", bytes(SMALL_BYTES + 1))):
        assert store.put_if_absent(name, data)
        assert not store.put_if_absent(name, data)
        assert store.get(name) == data
        assert bytes(store.open_mmap(name)) == data
        assert store.exists(name)
    assert not store.exists("a/b")
    assert list(open_store(bucket).list("")) == [
        "deep/root/a/b/c",
        "deep/root/empty",
        "deep/root/large",
    ]


def test_an_object_larger_than_one_request_is_created_under_the_same_condition(
    gcs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library asks before it sends more than 8 MiB; the emulator does not judge it there."""
    data = os.urandom(9 << 20)
    with proxy_before(os.environ["STORAGE_EMULATOR_HOST"]) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.address)
        store = open_store(gcs)
        assert store.put_if_absent("x", data)
        assert "uploadType=resumable&ifGenerationMatch=0" in proxy.requests[0]
        assert store.get("x") == data


def test_other_content_is_refused_and_kept(store: Store) -> None:
    """The error names the object and both digests."""
    store.put_if_absent("x", b"one")
    stored, computed = "c88d4df74262143a08e9d190e3bd67f1", "d681734f8c454b90df4d5feea7487445"
    message = rf"//.*/root/x exists with other content: stored {stored}, computed {computed}; .*"
    with pytest.raises(DeterminismError, match=message):
        store.put_if_absent("x", b"two")
    assert store.get("x") == b"one"


def test_content_may_be_compared_by_meaning(store: Store) -> None:
    """The function is given what is stored, then what was computed, only if bytes differ."""
    calls = []

    def same(stored: bytes, computed: bytes) -> bool:
        calls.append((stored, computed))
        return stored.lower() == computed.lower()

    assert store.put_if_absent("x", b"one", same)
    assert not store.put_if_absent("x", b"one", same)
    assert not store.put_if_absent("x", b"ONE", same)
    assert calls == [(b"one", b"ONE")]
    with pytest.raises(DeterminismError):
        store.put_if_absent("x", b"two", same)


def test_of_many_threads_exactly_one_creates_an_object(store: Store) -> None:
    """All others verify it."""
    created: list[bool] = []
    barrier = threading.Barrier(6)

    def write() -> None:
        for number in range(8):
            barrier.wait()
            created.append(store.put_if_absent(f"{number}/x", bytes(50_000)))

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert created.count(True) == 8
    assert len(created) == 48


def _write_in_process(uri: str, start: Any, results: Any, content: bytes) -> None:
    start.wait()
    store = open_store(uri)
    for number in range(10):
        try:
            results.put(store.put_if_absent(f"f/{number}", content))
        except DeterminismError:
            results.put("refused")


def test_of_many_processes_exactly_one_creates_an_object(bucket: str) -> None:
    """Those that computed other content are refused."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    workers = [
        context.Process(target=_write_in_process, args=(bucket, start, results, content))
        for content in (b"same", b"same", b"other")
    ]
    for worker in workers:
        worker.start()
    start.set()
    found = [results.get(timeout=60) for _ in range(30)]
    for worker in workers:
        worker.join()
    assert found.count(True) == 10
    store = open_store(bucket)
    assert list(store.list("f/")) == [f"f/{number}" for number in range(10)]
    winners = [store.get(name) for name in store.list("f/")]
    # A name that "other" won is refused to both others; one that "same" won to one, and equal once.
    assert found.count(False) == winners.count(b"same")
    assert found.count("refused") == winners.count(b"same") + 2 * winners.count(b"other")


def test_replace_overwrites(store: Store) -> None:
    """What was mapped before stays as it was, and what is mapped later is new."""
    for size in (1, SMALL_BYTES):
        store.replace("a/x", b"one" * size)
        assert store.exists("a/x")
        held = store.open_mmap("a/x")
        assert store.exists("a/x")
        store.replace("a/x", b"three" * size)
        assert store.get("a/x") == b"three" * size
        assert bytes(store.open_mmap("a/x")) == b"three" * size
        assert bytes(held) == b"one" * size
        store.delete("a/x")


def test_ranges_end_where_the_object_ends(store: Store) -> None:
    """Shorter or empty, never an error."""
    store.put_if_absent("x", b"0123456789")
    assert store.get_range("x", 2, 3) == b"234"
    assert store.get_range("x", 0, 10) == b"0123456789"
    assert store.get_range("x", 8, 5) == b"89"
    assert store.get_range("x", 10, 5) == b""
    assert store.get_range("x", 20, 5) == b""
    assert store.get_range("x", 3, 0) == b""


def test_a_missing_object_is_not_found(store: Store) -> None:
    """By every way of reading; deleting it is no error."""
    for read in (store.get, store.open_mmap, lambda name: store.get_range(name, 0, 1)):
        with pytest.raises(FileNotFoundError, match="/deep/root/a/x"):
            read("a/x")
    assert not store.exists("a/x")
    store.delete("a/x")
    store.put_if_absent("a/x", b"1")
    assert store.exists("a/x")
    store.delete("a/x")
    assert not store.exists("a/x")
    with pytest.raises(FileNotFoundError):
        store.open_mmap("a/x")


def test_listing_is_sorted_and_goes_page_by_page(bucket: str) -> None:
    """Names are relative to the root; folders whose names begin alike are others."""
    store = open_store(f"{bucket}/r")
    names = sorted(f"b/{number}" for number in range(12))
    for name in (*names, "b2/x", "a"):
        store.put_if_absent(name, b"")
    open_store(f"{bucket}/r2").put_if_absent("b/x", b"")
    assert list(store.list("b/")) == names
    assert list(store.list("")) == ["a", *names, "b2/x"]
    assert list(store.list("none/")) == []


def test_what_follows_a_name_is_told_in_one_request(bucket: str) -> None:
    """In its folder, in order, without a gap; Azure, which cannot, is asked for each name."""
    store = open_store(f"{bucket}/r")
    for name in ("a/08", "a/09", "a/10", "a/12", "a2/13", "b/11"):
        store.put_if_absent(name, b"")
    expected = ["a/10", "a/12"] if not bucket.startswith("az") else []
    assert store.list_after("a/09") == expected
    assert store.list_after("a/095") == expected
    assert store.list_after("a/12") == []
    assert store.list_after("c/12") == []


@pytest.mark.parametrize("name", ["", ".", "..", "/x", "a/../x", "a//x", "a/", "./a", "../x"])
def test_names_that_leave_the_root_are_refused(gcs: str, name: str) -> None:
    """By every operation, before any request."""
    store = open_store(gcs)
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
    assert list(store.list("")) == []


def test_a_missing_bucket_is_the_user_s_to_correct(bucket: str) -> None:
    """It is told by name, at once, whatever is tried first."""
    address = f"{bucket}-none"
    for use in (
        lambda store: store.put_if_absent("x", b""),
        lambda store: store.replace("x", b""),
        lambda store: store.get("x"),
        lambda store: store.get_range("x", 0, 1),
        lambda store: list(store.list("")),
    ):
        with pytest.raises(RecipeError, match=f"bucket must exist, found none named '{address}'"):
            use(open_store(f"{address}/s"))


def test_a_fork_uses_a_client_of_its_own(gcs: str) -> None:
    """Parent and child may go on at the same time."""
    store = open_store(gcs)
    store.put_if_absent("x", b"1")
    code = f"""
import os
from zephon_beam.store.base import open_store
store = open_store({gcs!r})
assert store.get("x") == b"1"
child = os.fork()
for number in range(20):
    name = f"{{child != 0}}/{{number}}"
    assert store.put_if_absent(name, name.encode())
    assert store.get(name) == name.encode()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert len(list(store.list(""))) == 41


def test_a_fork_of_a_user_of_s3_is_refused(s3: str) -> None:
    """It would wait for ever for threads that it does not have."""
    code = f"""
import os
from zephon_beam.errors import StoreError
from zephon_beam.store.base import open_store
store = open_store({s3!r})
assert not store.exists("x")
child = os.fork()
if child == 0:
    try:
        store.exists("x")
    except StoreError as error:
        os._exit(42 if "must not be used in a process that was forked" in str(error) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_addresses_lead_to_stores(gcs: str) -> None:
    """Others are refused with a hint."""
    assert open_store(f"{gcs}/a/b/").uri == f"{gcs}/a/b"
    assert open_store("s3://bucket/a").uri == "s3://bucket/a"
    for address, hint in (
        ("gcs://x/y", "did you mean gs://"),
        ("s3a://x/y", "did you mean s3://"),
        ("abfss://x/y", "did you mean az://"),
        ("gz://x", "did you mean gs://"),
        ("ftp://x/y", "one of file://, gs://, s3://, az://, got 'ftp://x/y'; use one of these"),
    ):
        with pytest.raises(RecipeError, match=f"stream must be .*{hint}"):
            open_store(address)
    for address in ("gs://", "gs:///x", "gs://x//y", "gs://x/../y"):
        with pytest.raises(RecipeError, match="must be an address like gs://bucket/folder"):
            open_store(address)


@pytest.fixture
def without_libraries() -> str:
    """Return code that hides the clients of object stores from a process."""
    hidden = ("google.cloud", "google.cloud.storage", "obstore")
    return f"import sys\nsys.modules.update(dict.fromkeys({hidden!r}))\n"


@pytest.mark.parametrize(
    ("address", "library", "extra"),
    [
        ("gs://b/s", "google-cloud-storage", "gcs"),
        ("s3://b/s", "obstore", "object-stores"),
        ("az://b/s", "obstore", "object-stores"),
    ],
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    without_libraries: str, address: str, library: str, extra: str
) -> None:
    """A trainer has only what it needs."""
    code = f"""
from zephon_beam.errors import RecipeError
from zephon_beam.store.base import open_store
try:
    open_store({address!r})
except RecipeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", without_libraries + code], capture_output=True, text=True, check=True
    )
    assert f"need {library}, which is not installed" in done.stdout
    assert f"pip install 'zephon-beam[{extra}]'" in done.stdout


def test_refused_permission_is_told_at_once(gcs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """See `test_store_faults` for faults that go away."""
    with proxy_before(os.environ["STORAGE_EMULATOR_HOST"]) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.address)
        proxy.fail("403", for_ever=True)
        with pytest.raises(
            StoreError, match=r"must be able to create gs://.*/x: Forbidden \(403\)"
        ):
            open_store(gcs).put_if_absent("x", b"")
        assert len(proxy.requests) == 1
