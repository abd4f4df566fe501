"""What is read next, over step edges where the next steps exist already."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from zephon_beam.errors import ZephonBeamError
from zephon_beam.manifest import Manifest
from zephon_beam.reader.batches import BatchBuilder
from zephon_beam.reader.blocks import Rows
from zephon_beam.reader.cursor import Cursor, Topology, following_step
from zephon_beam.reader.ranks import IntArray
from zephon_beam.reader.steps import Step, Steps

TOKENS = 1 << 21
"""Tokens looked up at a time: of that many rows the shards are opened in one go, which a core does
faster than one by one between other work."""
TOKENS_OF_MANY_SHARDS = 1 << 18
"""The same where so many rows could lie in too many shards to hold open, or in large ones."""
FEW_LANES = 64
MOST_SHARDS = 256
"""Shards after which no more rows are looked up: each that is mapped holds a descriptor."""


class ReadAhead:
    """Looks up what a cursor delivers next, and as much after it as is worth it.

    It waits for the step at the cursor only. Steps after it join if they exist, so that small
    steps are as fast as large ones; what is wrong with one is raised when it is next.
    """

    def __init__(self, steps: Steps, builder: BatchBuilder, manifest: Manifest) -> None:
        self._steps = steps
        self._builder = builder
        self._seq_len = manifest.seq_len
        is_light = manifest.lanes <= FEW_LANES and not builder.has_media
        self._tokens = TOKENS if is_light else TOKENS_OF_MANY_SHARDS
        self._in_hand: Step | None = None
        self._count = 1

    def reset(self) -> None:
        """Forget the step in hand; after a move one microbatch is looked up first, to be quick."""
        self._in_hand = None
        self._count = 1

    def build(
        self, cursor: Cursor, topology: Topology, stride: int = 1
    ) -> Iterator[dict[str, Any]] | None:
        """Build each `stride`-th microbatch from the cursor on; None at the end of a stream.

        What they consist of is opened at once, what they contain is made as they are asked for.
        """
        step = self._step_at(cursor.next_sample, topology)
        size, place, room = topology.micro_batch_size, cursor.microbatch, self._grow(topology)
        count = topology.microbatches_per_step
        # Of a large step too, so that its last shards are not opened with its first.
        most = max(1, TOKENS_OF_MANY_SHARDS // (self._seq_len * size))
        shards: set[int] = set()
        parts: list[Rows] = []
        sample_ids: list[IntArray] = []
        valid: list[int] = []
        while step is not None:
            places = range(place, count, stride)[: min(room, most)]
            stretches = _stretches(places, size)
            try:
                opened = [self._steps.open_rows(step, *stretch) for stretch in stretches]
            except (ZephonBeamError, OSError):
                if not valid:
                    raise
                break
            self._in_hand = step
            for rows, (begin, end) in zip(opened, stretches, strict=True):
                parts += rows
                shards.update(id(part.shard) for part in rows)
                sample_ids.append(step.sample_ids[begin:end])
            valid += [step.global_valid] * len(places)
            room -= len(places)
            # Filler stands at the end of what is built, so a step with filler is the last one.
            if room == 0 or len(step.sample_ids) < stretches[-1][1] or len(shards) >= MOST_SHARDS:
                break
            place = places[-1] + stride
            if place < count:
                continue
            while place >= count:
                cursor = following_step(cursor, topology.global_batch_size)
                place -= count
            step = self._step_if_ready(cursor.next_sample, topology)
        return self._builder.build(parts, np.concatenate(sample_ids), valid) if valid else None

    def _grow(self, topology: Topology) -> int:
        """Return how many microbatches to look up, twice as many as the last time."""
        most = max(1, self._tokens // (self._seq_len * topology.micro_batch_size))
        count = min(self._count, most)
        self._count = 2 * count
        return count

    def _step_at(self, first: int, topology: Topology) -> Step | None:
        """Find the step that begins with a sample, waiting for it, or reuse the one in hand."""
        if self._in_hand is not None and self._in_hand.first_sample == first:
            return self._in_hand
        return self._steps.find(first, topology, wait=True)

    def _step_if_ready(self, first: int, topology: Topology) -> Step | None:
        """Find a later step if it is complete and sound."""
        try:
            return self._steps.find(first, topology, wait=False)
        except (ZephonBeamError, OSError):
            return None


def _stretches(places: range, size: int) -> list[tuple[int, int]]:
    """Half-open ranges of rows that hold microbatches of a share; neighbours are joined."""
    if places.step == 1:
        return [(places.start * size, places.stop * size)]
    return [(place * size, (place + 1) * size) for place in places]
