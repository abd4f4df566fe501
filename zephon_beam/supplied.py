"""What an endless job has supplied a lane with: one place in each of its channels.

Chunks of a channel are begun in the order of their numbers, and the parts of a chunk are supplied
in order, so little says exactly which parts were supplied:

    numbers   0   1   2   3   4   5        next number: 4
    parts     all all 0-6 all              begun: chunk 2, next part 7

It only ever grows, and is the position of the splittable source: what a runner stores of a lane
between two polls, in a checkpoint or on another machine, is this and nothing else.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from zephon_beam.lane_state import DatasetState
from zephon_beam.plan import SupplyEntry
from zephon_beam.slots import FREE
from zephon_beam.supply import LaneHead

PartCounts = Callable[[int, int], int]
"""Parts of a chunk of a lane, by data set and chunk number."""

_INTEGER = np.dtype("<i8")


class ChannelSupply(NamedTuple):
    """What was supplied of one channel."""

    next_number: int
    """Chunks below it were begun."""
    begun: tuple[tuple[int, int], ...]
    """(number, next part) of the chunks that were begun and not supplied whole, by number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Supplied:
    """What a lane was supplied with, and how its source goes on."""

    channels: tuple[ChannelSupply, ...] = field(default_factory=tuple)
    head_sent: bool = False
    """Whether the lane's head was sent; until then the channels are not known."""
    empty_polls: int = 0
    """Polls in a row that supplied nothing though the lane was to go on."""
    stopped: bool = False
    """Whether nothing more comes: the lane has ended, or another holder has the rest."""
    parts: int = 0
    """How many the job has supplied, so that the lane can tell when all have come."""

    def holds(self, dataset: int, number: int, part: int) -> bool:
        """Say whether a part was supplied."""
        channel = self.channels[dataset]
        if number >= channel.next_number:
            return False
        return all(part < following for begun, following in channel.begun if begun == number)

    def is_behind(self, datasets: Sequence[DatasetState]) -> bool:
        """Say whether a lane that stands there has used parts that were not supplied.

        So it is with what a lane said of itself before its job was set back to a checkpoint.
        """
        return any(
            _is_behind(channel, state)
            for channel, state in zip(self.channels, datasets, strict=True)
        )

    def add(self, entries: Iterable[SupplyEntry], part_counts: PartCounts) -> "Supplied":
        """Return this with more parts.

        Raises:
            ValueError: a part before them was not supplied.
        """
        parts = self.parts
        numbers = [channel.next_number for channel in self.channels]
        begun = [dict(channel.begun) for channel in self.channels]
        for entry in entries:
            dataset, number = entry.dataset, entry.number
            if number == numbers[dataset]:
                numbers[dataset] += 1
                begun[dataset][number] = 0
            if begun[dataset].get(number) != entry.first_part:
                raise ValueError(f"supply of {self.channels[dataset]} must have no hole, {entry}")
            parts += entry.part_count
            following = entry.first_part + entry.part_count
            if following < part_counts(dataset, number):
                begun[dataset][number] = following
            else:
                del begun[dataset][number]
        channels = tuple(
            ChannelSupply(number, tuple(sorted(open_chunks.items())))
            for number, open_chunks in zip(numbers, begun, strict=True)
        )
        return replace(self, channels=channels, parts=parts)


def supplied_with_head(head: LaneHead, dataset_count: int, part_counts: PartCounts) -> Supplied:
    """Return what a lane has that starts from a head: the parts that wait in it.

    What waits behind a part that is missing counts as not supplied: to supply it again costs time
    only.
    """
    channels = []
    for dataset in range(dataset_count):
        waits = {(p.key.number, p.key.part) for p in head.waiting if p.key.dataset == dataset}
        state = head.state.datasets[dataset] if head.state is not None else None
        open_chunks = {}
        number = 0
        if state is not None:
            number = state.next_number
            open_chunks = {slot.number: slot.part for slot in state.slots if slot.number != FREE}
        while (number, 0) in waits:
            open_chunks[number] = 0
            number += 1
        begun = []
        for chunk, first in sorted(open_chunks.items()):
            part = first
            while (chunk, part) in waits:
                part += 1
            if part < part_counts(dataset, chunk):
                begun.append((chunk, part))
        channels.append(ChannelSupply(number, tuple(begun)))
    return Supplied(channels=tuple(channels), head_sent=True)


def encode_supplied(supplied: Supplied) -> bytes:
    """Encode as little-endian integers; equal values have equal encodings."""
    values = [int(supplied.head_sent), supplied.empty_polls, int(supplied.stopped), supplied.parts]
    for channel in supplied.channels:
        values += [channel.next_number, len(channel.begun)]
        for pair in channel.begun:
            values += pair
    return np.array(values, _INTEGER).tobytes()


def decode_supplied(data: bytes) -> Supplied:
    """Decode what `encode_supplied` made."""
    values = np.frombuffer(data, _INTEGER).tolist()
    head_sent, empty_polls, stopped, parts = values[:4]
    channels, place = [], 4
    while place < len(values):
        number, count = values[place : place + 2]
        place += 2
        pairs = values[place : place + 2 * count]
        channels.append(ChannelSupply(number, tuple(zip(pairs[::2], pairs[1::2], strict=True))))
        place += 2 * count
    return Supplied(
        channels=tuple(channels),
        head_sent=bool(head_sent),
        empty_polls=empty_polls,
        stopped=bool(stopped),
        parts=parts,
    )


def _is_behind(channel: ChannelSupply, state: DatasetState) -> bool:
    if state.next_number > channel.next_number:
        return True
    reached = {slot.number: slot.part for slot in state.slots}
    for number, following in channel.begun:
        if number in reached:
            if reached[number] > following:
                return True
        elif number < state.next_number:
            return True
    return False
