"""Lost shards and states are made again: the same bytes, from the nearest older state."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines import driver
from pipelines.run import run_stream
from tests.pipelines.small_streams import SHARD_SAMPLES, SmallStream, run, tree
from zephon_beam.consumers import Consumer, encode_consumer
from zephon_beam.errors import DeterminismError
from zephon_beam.keyed import keyed_int
from zephon_beam.layout import consumer_name, shard_name, state_name
from zephon_beam.manifest import read_manifest
from zephon_beam.retention import delete_garbage, find_garbage
from zephon_beam.store.base import open_store
from zephon_beam.verification import verify_stream


def copy(stream: SmallStream, folder: Path) -> Path:
    """Return a copy of a stream that may be damaged."""
    shutil.copytree(stream.folder, folder)
    return folder


def lose(stream: Path, names: Sequence[str]) -> None:
    """Delete objects."""
    for name in names:
        (stream / name).unlink()


def plan_lanes(stream: Path) -> dict[int, int]:
    """Return the last shard that the newest plan makes again, by lane."""
    plan = json.loads(max((stream / "recompute").iterdir()).read_text())
    return {entry["lane"]: entry["wanted_shards"][1] for entry in plan["lanes"]}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("advance_bytes", [1, 1 << 27])
def test_whatever_is_lost_comes_back(
    narrow: SmallStream, tmp_path: Path, seed: int, advance_bytes: int
) -> None:
    """Shards, states or both, of lanes that have ended, in jobs of any size."""
    stream = copy(narrow, tmp_path / "s")
    names = [name for name in narrow.tree if not name.startswith("end/")]
    lost = [name for name in names if keyed_int("lost", seed, name) % 100 < (2, 10, 40, 90)[seed]]
    assert lost
    lose(stream, lost)
    run(narrow.recipe, stream, advance_bytes=advance_bytes)
    assert tree(stream) == narrow.tree
    assert run(narrow.recipe, stream)["advances"] == 0


def test_only_what_is_lost_is_made_again(narrow: SmallStream, tmp_path: Path) -> None:
    """From the state before it, up to the last one that is lost, in the lanes that lost some."""
    stream = copy(narrow, tmp_path / "s")
    lose(stream, [shard_name(1, 2), shard_name(1, 4)])
    facts = run(narrow.recipe, stream)
    assert facts["advances"] == 1
    assert plan_lanes(stream) == {1: 4}
    plan = json.loads(next((stream / "recompute").iterdir()).read_text())
    assert plan["lanes"][0]["head"] == ["state", 1]
    assert tree(stream) == narrow.tree


def test_a_stream_that_goes_on_is_mended_first(narrow: SmallStream, tmp_path: Path) -> None:
    """Then it goes on from its carries, which that has not touched."""
    stream = tmp_path / "s"
    assert run(narrow.recipe, stream, until_samples=600, advance_bytes=1)["advances"] > 3
    carries = sorted((stream / "carry").rglob("*.avro"))
    # The job that makes lost shards again has number 0, too.
    assert not any(path.stem == "000000" for path in carries)
    lose(stream, [shard_name(0, 0), shard_name(2, 3), state_name(2, 3)])
    assert run(narrow.recipe, stream, until_samples=600)["advances"] == 1
    assert sorted((stream / "carry").rglob("*.avro")) == carries
    run(narrow.recipe, stream)
    assert tree(stream) == narrow.tree


def test_the_newest_advance_is_run_again_first(narrow: SmallStream, tmp_path: Path) -> None:
    """It has lost a shard of its own; only then is known what was lost of older ones."""
    stream = tmp_path / "s"
    assert run(narrow.recipe, stream, until_samples=200, advance_bytes=1)["advances"] > 1
    carries = sorted((stream / "carry").rglob("*.avro"))
    lose(stream, [shard_name(0, 0), shard_name(2, 3), state_name(2, 3)])
    assert run(narrow.recipe, stream, until_samples=200)["advances"] == 2
    assert sorted((stream / "carry").rglob("*.avro")) == carries
    run(narrow.recipe, stream)
    assert tree(stream) == narrow.tree


def test_what_was_deleted_on_purpose_stays_deleted(narrow: SmallStream, tmp_path: Path) -> None:
    """And what is lost behind it is made from the state that was kept for that."""
    stream = copy(narrow, tmp_path / "s")
    store = open_store(str(stream))
    manifest = read_manifest(store)
    reader = Consumer(name="run", fingerprint="f", position=0, pins={"a": 9 * SHARD_SAMPLES})
    store.replace(consumer_name("run"), encode_consumer(reader))
    delete_garbage(store, manifest, find_garbage(store, manifest, [reader]))
    kept = tree(stream)
    assert shard_name(0, 0) not in kept
    first = min(name for name in kept if name.startswith("shards/lane-00000/"))
    lose(stream, [first])
    run(narrow.recipe, stream)
    assert tree(stream) == kept


def test_the_state_before_the_first_shard_that_is_kept_comes_back(
    narrow: SmallStream, tmp_path: Path
) -> None:
    """It is all there is of what was deleted; nothing older comes back with it."""
    stream = copy(narrow, tmp_path / "s")
    store = open_store(str(stream))
    manifest = read_manifest(store)
    reader = Consumer(name="run", fingerprint="f", position=0, pins={"a": 12 * SHARD_SAMPLES})
    store.replace(consumer_name("run"), encode_consumer(reader))
    delete_garbage(store, manifest, find_garbage(store, manifest, [reader]))
    kept = tree(stream)
    first = min(name for name in kept if name.startswith("state/lane-00000/"))
    assert first > state_name(0, 1)
    lose(stream, [first])
    assert len(verify_stream(str(stream)).faults) == 1
    run(narrow.recipe, stream)
    found = tree(stream)
    extra = found.keys() - kept.keys()
    assert extra == {first.replace("state", "shards").replace("avro", "arrow")}
    assert all(found[name] == digest for name, digest in kept.items())
    assert verify_stream(str(stream)).faults == ()
    delete_garbage(store, manifest, find_garbage(store, manifest, [reader]))
    assert tree(stream) == kept


def test_a_twin_that_was_faster_is_no_error(
    narrow: SmallStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It made the shards, went on, and dropped the plan that this driver was about to run."""
    stream = copy(narrow, tmp_path / "s")
    lose(stream, [shard_name(0, 1)])
    original, calls = driver.run_advance, []

    def overtaken(*args: Any, **options: Any) -> None:
        calls.append(1)
        monkeypatch.setattr(driver, "run_advance", original)
        for shard in (2, 3):
            run_stream(narrow.recipe, stream)
            lose(stream, [shard_name(0, shard)])
        original(*args, **options)

    monkeypatch.setattr(driver, "run_advance", overtaken)
    run_stream(narrow.recipe, stream)
    assert calls
    assert tree(stream) == narrow.tree


def test_a_forged_shard_among_them_is_found(narrow: SmallStream, tmp_path: Path) -> None:
    """What is made again is compared with what is still there."""
    stream = copy(narrow, tmp_path / "s")
    lose(stream, [shard_name(0, 1), shard_name(0, 3)])
    shutil.copy(stream / shard_name(0, 0), stream / shard_name(0, 2))
    with pytest.raises(DeterminismError, match=r"000000002\.arrow exists with other content"):
        run_stream(narrow.recipe, stream)
