"""Numbered objects of a folder: which numbers there are, and where they first lack one."""

from collections.abc import Callable, Iterable

from zephon_beam.layout import lane_folder, number_of, shard_name, state_name
from zephon_beam.store.base import Store


def numbered(store: Store, folder: str, namer: Callable[[int], str]) -> list[int]:
    """Return the numbers of the objects in a folder, in order, passing over foreign files."""
    found = []
    for name in store.list(folder):
        try:
            number = number_of(name)
        except ValueError:
            continue
        if namer(number) == name:
            found.append(number)
    return sorted(found)


def shard_numbers(store: Store, lane: int) -> list[int]:
    """Return the numbers of the shards of a lane that exist, in order."""
    return numbered(store, lane_folder("shards", lane), lambda number: shard_name(lane, number))


def state_numbers(store: Store, lane: int) -> list[int]:
    """Return the numbers of the lane states of a lane that exist, in order."""
    return numbered(store, lane_folder("state", lane), lambda number: state_name(lane, number))


def first_missing(numbers: Iterable[int], first: int) -> int:
    """Return the smallest number from `first` on that is not among some."""
    present = set(numbers)
    while first in present:
        first += 1
    return first
