"""How far a run that follows goes, whom it waits for, and when it deletes: without a run."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipelines.follow import Follower
from tests.verified_streams import write_whole_stream
from zephon_beam.consumers import Consumer, encode_consumer
from zephon_beam.layout import consumer_name, shard_name
from zephon_beam.store.base import open_store

LOOKAHEAD = 6


@dataclass
class Scene:
    """A stream of two lanes with nine samples each, its follower, and a clock that is moved."""

    follower: Follower
    now: float = 0.0
    sleeps: list[float] = field(default_factory=list)

    def tell(self, name: str, position: int, *, fingerprint: str = "", **options: object) -> None:
        """Write what a consumer says of itself."""
        mark = fingerprint or self.follower.manifest.fingerprint
        consumer = Consumer(name=name, fingerprint=mark, position=position, **options)  # type: ignore[arg-type]
        self.follower.store.replace(consumer_name(name), encode_consumer(consumer))

    def exists(self, shard: int) -> bool:
        """Say whether a shard of lane 0 is there."""
        return self.follower.store.exists(shard_name(0, shard))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Return a scene whose follower deletes."""
    stream = write_whole_stream(tmp_path, [9, 9], samples_per_shard=2)
    follower = Follower(
        store=open_store(str(stream.uri)),
        manifest=stream.manifest,
        lookahead=LOOKAHEAD,
        deletes=True,
    )
    found = Scene(follower)
    follower.clock = lambda: found.now
    follower.sleep = found.sleeps.append
    return found


def test_the_slowest_run_that_reads_decides_how_far(scene: Scene) -> None:
    """Not one that has finished, and not one of another stream."""
    assert scene.follower.wait_for_need(0, None) == (LOOKAHEAD, False)
    scene.tell("fast", 9)
    scene.tell("slow", 3)
    scene.tell("over", 0, finished=True)
    scene.tell("stranger", 1, fingerprint="0" * 32)
    assert scene.follower.wait_for_need(8, None) == (3 + LOOKAHEAD, False)
    assert scene.follower.wait_for_need(4, 5) == (5, False)
    assert scene.sleeps == []


def test_it_waits_until_a_run_moves_on(scene: Scene) -> None:
    """And says that time has passed."""
    scene.tell("run", 0)

    def move(seconds: float) -> None:
        scene.sleeps.append(seconds)
        scene.tell("run", len(scene.sleeps))

    scene.follower.sleep = move
    assert scene.follower.wait_for_need(LOOKAHEAD + 2, None) == (LOOKAHEAD + 3, True)
    assert len(scene.sleeps) == 3


def test_it_deletes_also_when_it_never_has_to_wait(scene: Scene) -> None:
    """A run that is behind its trainers all the time must not fill the disk."""
    scene.tell("run", 12, pins={"acknowledged": 8})
    scene.follower.wait_for_need(8, None)
    assert [scene.exists(shard) for shard in range(3)] == [False, False, True]
    assert scene.sleeps == []


def test_nothing_is_deleted_unless_that_was_asked_for(scene: Scene) -> None:
    """`--retain all` is the default, whatever is pinned; and so it is at the end of a run."""
    scene.follower.deletes = False
    scene.tell("run", 12, pins={"acknowledged": 8})
    scene.follower.wait_for_need(8, None)
    scene.follower.clean_up()
    assert all(scene.exists(shard) for shard in range(5))


def test_it_looks_for_garbage_only_when_pins_have_moved(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes a listing of every lane."""
    listed: list[str] = []
    plain = scene.follower.store.list

    def note(prefix: str) -> object:
        listed.append(prefix)
        return plain(prefix)

    monkeypatch.setattr(scene.follower.store, "list", note)
    for pin in (4, 4, 4, 8, 8):
        scene.tell("run", 12, pins={"acknowledged": pin})
        scene.follower.wait_for_need(8, None)
    assert listed.count("shards/lane-00000/") == 2 * 2  # found, and listed to be deleted
    scene.follower.clean_up()
    assert listed.count("shards/lane-00000/") == 3 * 2


def test_nothing_is_deleted_while_a_consumer_is_damaged(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """What it needs is unknown."""
    scene.tell("run", 12, pins={"acknowledged": 8})
    scene.follower.store.replace(consumer_name("other"), b"{")
    assert scene.follower.wait_for_need(0, None) == (LOOKAHEAD, False)
    assert scene.exists(0)
    assert "consumers/other.json is corrupt" in caplog.text


def test_a_silent_run_is_reported_after_two_minutes_and_ever_more_rarely(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """With what to do; one that speaks again is not."""
    caplog.set_level(logging.WARNING)
    reports: list[float] = []

    def pass_time(_seconds: float) -> None:
        scene.now += 10
        if "has said nothing" in caplog.text:
            reports.append(scene.now - 10)
            assert "stands at sample 0" in caplog.text
            assert "gc STREAM --forget run" in caplog.text
            caplog.clear()
        if scene.now == 500:
            scene.tell("run", 0, beat=1)
        if scene.now == 600:
            scene.tell("run", 9, beat=2)

    scene.tell("run", 0)
    scene.follower.sleep = pass_time
    scene.follower.wait_for_need(LOOKAHEAD, None)
    assert reports == [120, 240, 480]
