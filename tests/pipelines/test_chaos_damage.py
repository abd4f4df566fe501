"""Every kind of object, damaged in every way: told by name or of no consequence, and mended.

What looks at a stream never ends in a traceback and never gives other bytes without a word; what a
message says to do, and running the recipe again, gives the bytes of a stream that nothing befell.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipelines.run import run_stream
from tests.chaos_actors import next_step, open_reader
from tests.chaos_streams import LANES, tree, write_recipe
from zephon_beam.consumers import Consumer, encode_consumer, read_consumers
from zephon_beam.errors import ZephonBeamError
from zephon_beam.inspection import inspect_stream
from zephon_beam.layout import consumer_name
from zephon_beam.manifest import read_manifest
from zephon_beam.retained import read_first_shards
from zephon_beam.retention import delete_garbage, find_garbage
from zephon_beam.store.base import open_store
from zephon_beam.verification import verify_stream

PINNED = 100
"""The sample from which a trainer of the streams keeps everything."""

KINDS = {
    "stream.json": "begun/stream.json",
    "catalog": "begun/catalog/rows.arrow",
    "first shard": "begun/shards/lane-00001/*.arrow:0",
    "middle shard": "begun/shards/lane-00001/*.arrow:3",
    "newest shard": "begun/shards/lane-00001/*.arrow:-1",
    "kept state": "begun/state/lane-00001/*.avro:0",
    "middle state": "begun/state/lane-00001/*.avro:3",
    "newest state": "begun/state/lane-00001/*.avro:-1",
    "carry": "begun/carry/lane-00001/*.avro:-1",
    "plan": "begun/advances/*.json:-1",
    "consumer": "begun/consumers/run.json",
    "beginning": "begun/base/*.json:0",
    "progress": "begun/progress/lane-00001.json",
    "quarantine": "begun/quarantine/lines/*.jsonl:0",
    "last shard of a finished stream": "finished/shards/lane-00001/*.arrow:-1",
    "last state of a finished stream": "finished/state/lane-00001/*.avro:-1",
    "end": "finished/end/lane-00001.json",
    "plan of a finished stream": "finished/advances/*.json:-1",
}
SHORT = (
    "stream.json",
    "catalog",
    "first shard",
    "newest shard",
    "middle state",
    "carry",
    "plan",
    "consumer",
    "beginning",
    "end",
)
SHORT_DAMAGE = ("cut in half", "a bit flipped", "replaced by that of another stream")


@dataclass(frozen=True, slots=True)
class Streams:
    """Streams that were begun and finished, those of another recipe, and what they must become."""

    recipe: Path
    folder: Path
    expected: dict[str, str]
    notes: list[str]


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    """Return streams some of whose samples were deleted on purpose."""
    folder = tmp_path_factory.mktemp("damage")
    recipe = write_recipe(folder / "sources", finite=True)
    run_stream(recipe, folder / "whole")
    expected = tree(open_store(str(folder / "whole")))
    with open_reader(str(folder / "whole"), start_sample=PINNED) as reader:
        notes = [next_step(reader) for _ in range(80)]
    other = folder / "sources" / "other.yaml"
    other.write_text(recipe.read_text().replace("seed: 3", "seed: 4"))
    for name, source in (("", recipe), ("other-", other)):
        finished, begun = folder / f"{name}finished", folder / f"{name}begun"
        run_stream(source, finished)
        run_stream(source, begun, until_samples=300, advance_bytes=1)
        for stream in (finished, begun):
            store = open_store(str(stream))
            manifest = read_manifest(store)
            trainer = Consumer(
                name="run",
                fingerprint=manifest.fingerprint,
                position=PINNED,
                pins={"acknowledged": PINNED},
            )
            store.replace(consumer_name("run"), encode_consumer(trainer))
            assert delete_garbage(store, manifest, find_garbage(store, manifest, [trainer]))
            assert (stream / "base").exists()
    return Streams(recipe, folder, expected, notes)


def cut(_rng: random.Random, _other: bytes, data: bytes) -> bytes:
    """Leave half."""
    return data[: len(data) // 2]


def flip(rng: random.Random, _other: bytes, data: bytes) -> bytes:
    """Flip a bit."""
    place = rng.randrange(8 * len(data))
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


DAMAGE: dict[str, Callable[[random.Random, bytes, bytes], bytes]] = {
    "emptied": lambda _rng, _other, _data: b"",
    "cut in half": cut,
    "without its last byte": lambda _rng, _other, data: data[:-1],
    "replaced by that of another stream": lambda _rng, other, _data: other,
    "a bit flipped": flip,
}


def find(streams: Streams, kind: str, prefix: str = "") -> Path:
    """Return the object of a kind."""
    pattern, _, place = KINDS[kind].partition(":")
    found = sorted(streams.folder.glob(prefix + pattern))
    return found[int(place or 0)]


def outcome(call: Callable[[], object]) -> str:
    """Call something and return what it says is wrong, empty if nothing."""
    try:
        call()
    except ZephonBeamError as error:
        return str(error)
    return ""


def read(stream: Path, expected: list[str], *, verify: bool) -> bool:
    """Read all samples that were kept; say whether they are right."""
    with open_reader(str(stream), start_sample=PINNED, verify_digests=verify) as reader:
        return [next_step(reader) for _ in range(50)] == expected[:50]


def mend(streams: Streams, kind: str, path: Path) -> None:
    """Do what messages say: restore what cannot be made again, delete the rest."""
    if kind in ("stream.json", "catalog", "beginning"):
        shutil.copy(find(streams, kind), path)
        return
    path.unlink(missing_ok=True)
    if kind.startswith("plan"):
        for carry in path.parents[1].glob(f"carry/*/{path.stem}.avro"):
            carry.unlink()


def check_end(streams: Streams, stream: Path) -> None:
    """Check that a stream has become what it must be."""
    store = open_store(str(stream))
    found = tree(store)
    first = read_first_shards(store, LANES)
    assert all(first)
    needed = {
        name: digest
        for name, digest in streams.expected.items()
        if not name.startswith("shards/") or int(name[-15:-6]) >= first[int(name[12:17])]
        if not name.startswith("state/") or int(name[-14:-5]) >= first[int(name[11:16])] - 1
    }
    assert {name: streams.expected.get(name) for name in found} == found
    # What was deleted on purpose may have come back with what lies behind it.
    assert needed.keys() <= found.keys()
    assert verify_stream(str(stream)).faults == ()


def cases() -> Iterator[Any]:
    """Yield kind, damage, bits to flip, and whether the stream is run, short forms and long ones.

    The short form runs a damaged stream once a kind, with one damage after another.
    """
    for place, kind in enumerate(SHORT):
        for number, damage in enumerate(SHORT_DAMAGE):
            runs = number == place % len(SHORT_DAMAGE)
            yield pytest.param(kind, damage, 1, runs, id=f"{kind}, {damage}")
    for kind in KINDS:
        for damage in DAMAGE:
            name = f"long: {kind}, {damage}"
            yield pytest.param(kind, damage, 12, True, id=name, marks=pytest.mark.long)


@pytest.mark.parametrize(("kind", "damage", "flips", "runs"), list(cases()))
def test_damage(
    streams: Streams, tmp_path: Path, kind: str, damage: str, flips: int, runs: bool
) -> None:
    """Looked at by everything that reads streams, run, mended and run again."""
    base = KINDS[kind].split("/")[0]
    original = find(streams, kind)
    name = original.relative_to(streams.folder / base).as_posix()
    rng = random.Random(f"{kind} {damage} {flips}")
    other = find(streams, kind, "other-").read_bytes()
    for number in range(flips if damage == "a bit flipped" else 1):
        stream = tmp_path / str(number)
        shutil.copytree(streams.folder / base, stream)
        path = stream / name
        damaged = DAMAGE[damage](rng, other, original.read_bytes())
        if damaged == original.read_bytes():
            pytest.skip("both streams have the same")
        path.write_bytes(damaged)
        look_at(streams, stream, kind, name)
        if runs:
            check_run(streams, stream, kind, name)


def look_at(streams: Streams, stream: Path, kind: str, name: str) -> None:
    """Have everything look at a damaged stream that only reads it."""
    report = verify_stream(str(stream))
    told = "\n".join(report.faults)
    said = outcome(lambda: inspect_stream(str(stream)))
    assert not said or name in said, said
    store = open_store(str(stream))
    said = outcome(lambda: find_garbage(store, read_manifest(store), read_consumers(store)))
    assert not said or name in said, said
    right: list[bool] = []
    said = outcome(lambda: right.append(read(stream, streams.notes, verify=True)))
    assert said or right == [True]
    assert not said or name in said, said
    if "shard" in kind and said:
        assert "delete" in said
        assert "run" in said
        assert name in told, told
    right = []
    said = outcome(lambda: right.append(read(stream, streams.notes, verify=False)))
    # Without digests a wrong value is not seen, but by `verify`.
    assert said or right == [True] or name in told


def check_run(streams: Streams, stream: Path, kind: str, name: str) -> None:
    """Run a damaged stream, mend it if that was not enough, and check what it becomes."""
    said = outcome(lambda: run_stream(streams.recipe, stream))
    if not said:
        faults = verify_stream(str(stream)).faults
        if not faults and (stream / name).exists():
            damaged = tree(open_store(str(stream))).get(name)
            if damaged in (None, streams.expected.get(name)):
                check_end(streams, stream)
            return
        assert not faults or any(name in fault for fault in faults), faults
    else:
        assert name in said or "fingerprint" in said or "recipe differs" in said, said
    mend(streams, kind, stream / name)
    said = outcome(lambda: run_stream(streams.recipe, stream))
    assert not said
    check_end(streams, stream)
