"""Faults of an object store: those that go away are waited out, the others are told by name."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.object_stores import Proxy, proxy_before
from zephon_beam.errors import DeterminismError, StoreError
from zephon_beam.store import bucket
from zephon_beam.store.base import Store, open_store
from zephon_beam.store.remote import SMALL_BYTES

# The client of Google leaves the connections of answers that it does not read to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ADDRESSES = {"gcs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT"}
GONE_SOON = ("429", "503", "reset", "lose")
OPERATIONS: dict[str, Callable[[Store], Any]] = {
    "create": lambda store: (store.put_if_absent("new", b"1" * 999), store.get("new"))[1],
    "replace": lambda store: (store.replace("new", b"1" * 999), store.get("new"))[1],
    "get": lambda store: store.get("old"),
    "get_range": lambda store: store.get_range("old", 3, 4),
    "open_mmap": lambda store: bytes(store.open_mmap("old")),
    "exists": lambda store: (store.exists("old"), store.exists("none")),
    "list": lambda store: list(store.list("")),
    "delete": lambda store: (store.delete("old"), store.delete("none"), list(store.list("")))[2],
}
RESULTS = {
    "create": b"1" * 999,
    "replace": b"1" * 999,
    "get": b"0123456789",
    "get_range": b"3456",
    "open_mmap": b"0123456789",
    "exists": (True, False),
    "list": ["old"],
    "delete": [],
}


@pytest.fixture(params=["gcs", "s3"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return a kind of object store."""
    name: str = request.param
    return name


@pytest.fixture
def proxy(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Proxy]:
    """Yield a proxy before the object store; requests are given up soon."""
    request.getfixturevalue(kind)
    monkeypatch.setattr(bucket, "REQUEST_SECS", 0.2)
    monkeypatch.setattr(bucket, "FIRST_PAUSE_SECS", 0.01)
    monkeypatch.setattr(bucket, "LONGEST_PAUSE_SECS", 0.05)
    with proxy_before(os.environ[ADDRESSES[kind]]) as running:
        monkeypatch.setenv(ADDRESSES[kind], running.address)
        yield running


@pytest.fixture
def store(kind: str, proxy: Proxy, request: pytest.FixtureRequest) -> Store:
    """Return a store behind the proxy, with one object."""
    del proxy
    found = open_store(f"{request.getfixturevalue(kind)}/s")
    found.put_if_absent("old", b"0123456789")
    return found


@pytest.mark.parametrize(
    ("operation", "fault"),
    [(operation, fault) for operation in OPERATIONS for fault in GONE_SOON]
    + [("create", "silent"), ("get", "silent")],
)
def test_faults_that_go_away_are_waited_out(
    store: Store, proxy: Proxy, operation: str, fault: str
) -> None:
    """Whatever was asked is done as if nothing had happened."""
    asked = len(proxy.requests)
    proxy.fail(fault, fault)
    assert OPERATIONS[operation](store) == RESULTS[operation]
    assert len(proxy.requests) >= asked + 3


@pytest.mark.parametrize("operation", ["get", "get_range", "open_mmap"])
def test_a_body_that_breaks_off_is_read_anew(store: Store, proxy: Proxy, operation: str) -> None:
    """Half an object is never taken for one."""
    proxy.fail("cut", "cut", methods=["GET"])
    assert OPERATIONS[operation](store) == RESULTS[operation]


def test_an_upload_that_meets_itself_is_no_conflict(store: Store, proxy: Proxy) -> None:
    """The answer was lost, the object is there: it is compared and found to be the same."""
    proxy.fail("lose")
    assert not store.put_if_absent("x", b"content")
    assert store.get("x") == b"content"
    proxy.fail("lose")
    with pytest.raises(DeterminismError):
        store.put_if_absent("x", b"other content")
    assert store.get("x") == b"content"


@pytest.mark.parametrize("operation", ["create", "replace", "get", "list", "delete"])
@pytest.mark.parametrize("fault", ["503", "reset"])
def test_a_store_that_fails_for_too_long_is_named(
    kind: str,
    proxy: Proxy,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    fault: str,
) -> None:
    """In bounded time, with the object and what to do; and nothing is lost by it."""
    monkeypatch.setattr(bucket, "DEADLINE_SECS", 0.25)
    address = f"{request.getfixturevalue(kind)}/s"
    store = open_store(address)
    store.put_if_absent("old", b"0123456789")
    asked = len(proxy.requests)
    proxy.fail(fault, for_ever=True)
    message = f"store must be able to .* {address}/.* what is stored is intact; check the network"
    with pytest.raises(StoreError, match=message) as caught:
        OPERATIONS[operation](store)
    assert isinstance(caught.value, OSError)
    assert 2 < len(proxy.requests) - asked < 100
    proxy.fail()
    assert OPERATIONS[operation](store) == RESULTS[operation]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("status", ["401", "403"])
def test_refused_permission_is_told_at_once(
    store: Store, proxy: Proxy, operation: str, status: str
) -> None:
    """To wait would not help."""
    asked = len(proxy.requests)
    proxy.fail(status, for_ever=True)
    message = f"store must be able to .*/s.*(InvalidOperation|{status}.*give the account that runs)"
    with pytest.raises(StoreError, match=message):
        OPERATIONS[operation](store)
    assert len(proxy.requests) - asked == 1


def test_each_operation_is_one_request(store: Store, proxy: Proxy) -> None:
    """Nothing is looked up before it is created, read or deleted."""
    expected = {
        "create": 2,  # with the reading of it
        "replace": 2,
        "get": 1,
        "get_range": 1,
        "open_mmap": 2,  # what it is, and its content
        "exists": 2,  # one each
        "list": 1,
        "delete": 3,
    }
    for operation, count in expected.items():
        asked = len(proxy.requests)
        OPERATIONS[operation](store)
        assert (operation, len(proxy.requests) - asked) == (operation, count)
        store.delete("new")


def test_what_was_looked_up_is_not_asked_again(store: Store, proxy: Proxy) -> None:
    """To map an object right after finding it costs its content only."""
    assert store.exists("old")
    asked = len(proxy.requests)
    store.open_mmap("old")
    assert len(proxy.requests) - asked == 1
    list(store.list(""))
    asked = len(proxy.requests)
    store.open_mmap("old")
    assert len(proxy.requests) - asked == 1


def test_what_is_expected_is_fetched_before_it_is_wanted(store: Store, proxy: Proxy) -> None:
    """In the background, without a request more; what goes wrong is met when it is wanted."""
    content = os.urandom(SMALL_BYTES + 1)
    for name in ("a", "b"):
        store.put_if_absent(name, content)
    store.expect("a")
    assert store.exists("a")
    asked = len(proxy.requests)
    store.expect("a")
    end = time.monotonic() + 30
    while len(proxy.requests) == asked:
        assert time.monotonic() < end
    assert bytes(store.open_mmap("a")) == content
    assert len(proxy.requests) == asked + 1
    assert store.exists("b")
    other = open_store(store.uri)
    other.delete("b")
    store.expect("b")
    with pytest.raises(FileNotFoundError):
        store.open_mmap("b")


def test_advice_is_not_written_more_often_than_buckets_allow(store: Store, proxy: Proxy) -> None:
    """The first of it is, and what must last always is."""
    asked = len(proxy.requests)
    for number in range(5):
        store.replace("advice", b"%d" % number, durable=False)
        store.replace(f"other/{number}", b"", durable=False)
    assert len(proxy.requests) - asked == 6
    assert store.get("advice") == b"0"
    store.replace("advice", b"last")
    assert store.get("advice") == b"last"
