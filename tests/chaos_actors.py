"""Who lives and dies in the chaos suite: drivers and trainers, each run in a fork.

A trainer does what a real one does: it goes on from its last checkpoint, and after each step notes
what it was given. What was noted after the last checkpoint is read again, so the note of a step
may come twice, and must then be the same.
"""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

import pipelines.follow
from pipelines.run import run_stream
from zephon_beam.errors import ZephonBeamError
from zephon_beam.reader import StreamReader
from zephon_beam.serve import serve
from zephon_beam.store import bucket, remote

BATCH = 4
MICRO_BATCH = 2
FIELDS = ["sample_ids", "input_ids", "labels", "loss_mask", "cu_seqlens"]
_STEPS_PER_PIN = 3


Limits = Mapping[str, float]
"""Seconds after which requests of a store are given up or tried again, by their names."""


def drive(*, limits: Limits | None = None, user: int | None = None, **options: Any) -> None:
    """Run a stream; a driver that follows looks for its consumers without long pauses."""
    _become(limits, user)
    pipelines.follow.POLL_SECS = 0.05
    run_stream(**options)


def tell_error(call: str, said: str, options: dict[str, Any]) -> None:
    """Call `module:function` and write the error of ours that it meets, or nothing, to a file."""
    module, _, name = call.partition(":")
    with open(said, "w") as file:
        try:
            getattr(import_module(module), name)(**options)
        except ZephonBeamError as error:
            file.write(f"{type(error).__name__}: {error}")


def run_words(words: list[str]) -> None:
    """Run a program."""
    subprocess.run(words, check=True)


def fill_disk(path: str) -> None:
    """Write a file until there is no room for a byte more."""
    with open(path, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def look_at_clock() -> None:
    """Check that the wall clock jumps by hours, and that the other one does not."""
    looks = [(time.time(), time.monotonic()) for _ in range(20)]
    wall, steady = zip(*looks, strict=True)
    assert max(wall) - min(wall) > 3600 > steady[-1] - steady[0]


def _become(limits: Limits | None, user: int | None) -> None:
    """Take on limits of a store and another user, if given."""
    for name, seconds in (limits or {}).items():
        setattr(bucket, name, seconds)
    if user is not None:
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def train(
    stream: Any,
    folder: str,
    name: str,
    steps: int,
    pace: float = 0.0,
    limits: Limits | None = None,
    user: int | None = None,
) -> None:
    """Read up to so many steps, from the last checkpoint on, and note each.

    Copies of objects in buckets are made of all sizes, so that there are some to be broken off.

    Args:
        stream: where the stream is.
        folder: of the trainer's checkpoint and notes.
        name: of the trainer among the stream's consumers; without one it pins nothing.
        steps: of the whole training.
        pace: seconds that a step takes.
        limits: of requests to a store.
        user: to become before anything is done.
    """
    _become(limits, user)
    remote.SMALL_BYTES = 0
    os.makedirs(folder, exist_ok=True)
    saved = Path(folder, "checkpoint.json")
    reader = open_reader(stream, consumer=name or None)
    if saved.exists():
        reader.load_state_dict(json.loads(saved.read_text()))
    with open(Path(folder, "notes"), "a") as notes, reader:
        notes.write(f"from {reader.step}\n")
        while reader.step < steps:
            step = reader.step
            notes.write(f"{step} {next_step(reader)}\n")
            notes.flush()
            time.sleep(pace)
            state = reader.state_dict()
            temporary = saved.with_suffix(".new")
            temporary.write_text(json.dumps(state))
            temporary.replace(saved)
            notes.write(f"saved {reader.step}\n")
            notes.flush()
            if name and step % _STEPS_PER_PIN == 0:
                reader.acknowledge(state)
        if name:
            reader.acknowledge(reader.state_dict())


def train_with_pipeline(recipe: str, stream: str, folder: str, name: str, steps: int) -> None:
    """Train beside a pipeline that is the trainer's own child process."""
    with serve(recipe, stream, lookahead=100, retain="pins", options=["--advance-bytes=1"]) as own:
        train(own, folder, name, steps)


def open_reader(stream: Any, **options: Any) -> StreamReader:
    """Open the reader of a trainer, which looks for missing samples without long pauses."""
    return StreamReader(
        stream,
        global_batch_size=BATCH,
        micro_batch_size=MICRO_BATCH,
        fields=FIELDS,
        timeout=100.0,
        sleep=lambda seconds: time.sleep(min(seconds, 0.02)),
        **options,
    )


def next_step(reader: StreamReader) -> str:
    """Read a step and digest every byte of it."""
    digest = blake2b(digest_size=8)
    for _ in range(reader.microbatches_per_step):
        batch = next(reader)
        for field in FIELDS:
            digest.update(batch[field].tobytes())
    return digest.hexdigest()


def expected_notes(stream: Path, steps: int) -> list[str]:
    """Return the digest of each step of a stream that nothing disturbed."""
    with open_reader(stream) as reader:
        return [next_step(reader) for _ in range(steps)]


def check_notes(folder: Path, expected: list[str]) -> int:
    """Check that a trainer was given every step, in order, from each of its starts on.

    Returns:
        How often it was started.
    """
    starts, following, seen, saved = 0, 0, 0, 0
    for line in (folder / "notes").read_text().splitlines():
        word, value = line.split()
        if word == "from":
            # At its last checkpoint, which it may not have lived to note, or never written.
            assert saved <= int(value) <= seen, (folder, line, saved, seen)
            starts, following = starts + 1, int(value)
            continue
        if word == "saved":
            saved = int(value)
            continue
        assert int(word) == following, (folder, line, following)
        assert value == expected[following], (folder, line)
        following += 1
        seen = max(seen, following)
    assert seen == len(expected), (folder, seen)
    return starts
