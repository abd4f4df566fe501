"""Objects that are created behind the caller: in order, all of them, and errors are its own."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from zephon_beam.errors import DeterminismError, StoreError
from zephon_beam.store import behind
from zephon_beam.store.base import SameContent
from zephon_beam.store.behind import NewObject, WriteBehind
from zephon_beam.store.local import LocalStore


class Slow(LocalStore):
    """A store that creates nothing before it is told to, and notes in which order it does."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.go_on = threading.Event()
        self.created: list[str] = []

    def put_if_absent(self, name: str, data: bytes, same: SameContent | None = None) -> bool:
        """Create an object."""
        assert self.go_on.wait(60)
        is_new = super().put_if_absent(name, data, same)
        self.created.append(name)
        return is_new


@pytest.fixture
def store(tmp_path: Path) -> Slow:
    """Return an empty store."""
    return Slow(tmp_path)


@pytest.fixture
def writer(store: Slow) -> Iterator[WriteBehind]:
    """Return a writer into it."""
    found = WriteBehind(store)
    yield found
    store.go_on.set()
    found.close()


def objects(*names: str, data: bytes = b"1") -> list[NewObject]:
    """Name objects to create."""
    return [(name, data, None) for name in names]


def test_the_caller_goes_on_and_waits_at_the_end(store: Slow, writer: WriteBehind) -> None:
    """Those of a queue come in their order; callbacks come on the caller's thread."""
    told: list[tuple[int, bool, bool]] = []
    this = threading.get_ident()
    for number in range(40):
        queue = number % 20
        writer.put(
            queue,
            objects(f"{queue}/{number}-state", f"{queue}/{number}"),
            lambda is_new, n=number: told.append((n, is_new, threading.get_ident() == this)),
        )
    assert (store.created, told) == ([], [])
    store.go_on.set()
    writer.wait()
    assert told == [(number, True, True) for number in range(40)]
    assert len(store.created) == 80
    for queue in range(20):
        own = [name for name in store.created if name.startswith(f"{queue}/")]
        expected = [f"{queue}/{n}{end}" for n in (queue, queue + 20) for end in ("-state", "")]
        assert own == expected
    writer.put(0, objects("0/0"), lambda is_new: told.append((-1, is_new, True)))
    writer.wait()
    assert told[-1] == (-1, False, True)


def test_what_waits_is_bounded(
    store: Slow, writer: WriteBehind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever adds more than that waits until the oldest is written."""
    monkeypatch.setattr(behind, "_MOST_BYTES", 2500)
    written: list[str] = []

    def put(name: str) -> None:
        writer.put(0, objects(name, data=bytes(1000)), lambda _: written.append(name))

    put("a")
    put("b")
    assert written == []
    third = threading.Thread(target=put, args=("c",))
    third.start()
    third.join(0.2)
    assert third.is_alive()
    store.go_on.set()
    third.join(60)
    assert "a" in written
    writer.wait()
    assert written == ["a", "b", "c"]


def test_an_error_is_raised_once_and_nothing_follows_it(store: Slow, writer: WriteBehind) -> None:
    """What waits behind it is not created; a caller that begins anew may go on."""
    LocalStore.put_if_absent(store, "0/b", b"other")
    for name in ("a", "b", "c"):
        writer.put(0, objects(f"0/{name}"), lambda _: None)
    store.go_on.set()
    with pytest.raises(DeterminismError, match="0/b exists with other content"):
        writer.wait()
    writer.forget()
    assert sorted(store.list("")) == ["0/a", "0/b"]
    writer.put(0, objects("0/d"), lambda _: None)
    writer.wait()
    assert store.exists("0/d")


def test_whatever_failed_for_a_caller_before_fails_nothing_now(
    store: Slow, writer: WriteBehind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what no store is known to raise: the caller begins anew at once, and may end."""
    together = threading.Barrier(4)

    def refuse(name: str, _data: bytes, _same: SameContent | None = None) -> bool:
        together.wait(60)
        raise RuntimeError(name)

    monkeypatch.setattr(store, "put_if_absent", refuse)
    for queue in range(3):
        writer.put(queue, objects(f"{queue}/a"), lambda _: None)
    together.wait(60)
    with pytest.raises(RuntimeError, match="0/a"):
        writer.wait()
    writer.forget()
    monkeypatch.undo()
    store.go_on.set()
    writer.put(0, objects("0/b"), lambda _: None)
    writer.wait()
    assert list(store.list("")) == ["0/b"]


def test_a_worker_that_was_told_to_end_writes_nothing_more(writer: WriteBehind) -> None:
    """It may be at work still; what it meets is told as an error of ours, in one line."""
    writer.close()
    with pytest.raises(StoreError, match=r"0/a must be written .* told to end.*run again") as met:
        writer.put(0, objects("0/a"), lambda _: None)
    assert "\n" not in str(met.value)
