"""What a driver looks at between two advances: faults that no single lane can see."""

from zephon_beam.channel import FREE
from zephon_beam.errors import CorruptObjectError, SourceError
from zephon_beam.lane_state import DatasetState, LaneState
from zephon_beam.manifest import Manifest
from zephon_beam.position import Position, read_state
from zephon_beam.store.base import Store
from zephon_beam.supply import LaneHead


def refuse_empty_datasets(store: Store, manifest: Manifest, position: Position) -> None:
    """Stop when a whole pass over a data set gave no token, instead of searching for ever."""
    states = [_last_state(store, manifest, head) for head in position.heads]
    if any(
        state is None and not (head.ended and head.length == 0)
        for state, head in zip(states, position.heads, strict=True)
    ):
        return
    for dataset, frozen in enumerate(manifest.datasets):
        saved = [
            (lane, state.datasets[dataset])
            for lane, state in enumerate(states)
            if state is not None
        ]
        is_opened = not saved or any(entry.next_number for _, entry in saved)
        whole_pass = all(
            number * manifest.lanes + lane >= frozen.chunk_count
            for lane, entry in saved
            for number in [entry.next_number, *_open_numbers(entry)]
        )
        tokens = sum(entry.counters.read_tokens for _, entry in saved)
        if is_opened and whole_pass and tokens == 0:
            raise SourceError(
                f"datasets.{frozen.name} must give at least one token in a pass, got none from "
                f"{frozen.chunk_count} chunks; the mixture would lack it or wait for it for ever; "
                "check its files and its text field, or give it weight 0, and run the recipe into "
                "a new place"
            )


def _open_numbers(entry: DatasetState) -> list[int]:
    """Return the numbers of the chunks that are not used up."""
    return [slot.number for slot in entry.slots if slot.number != FREE]


def _last_state(store: Store, manifest: Manifest, head: LaneHead) -> LaneState | None:
    """Return the state that a lane stands at, also when it has ended; None without one."""
    if not head.ended or head.length == 0:
        return head.state
    shard = (head.length - 1) // manifest.samples_per_shard
    return read_state(store, head.lane, shard)


def refuse_holes(store: Store, position: Position, complete_samples: int) -> None:
    """Stop when shards are missing that later ones, carries or ends count."""
    if complete_samples < position.complete_samples:
        raise CorruptObjectError(
            f"shards must exist for the {position.complete_samples} complete samples that the "
            f"lanes count, found {complete_samples} in {store.uri!r}; readers "
            "would stop there; delete the folders advances, carry and end of the stream and run "
            "the recipe again, which computes what is missing and compares what is there"
        )
