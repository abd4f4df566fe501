"""What a driver looks at between two advances: faults that no single lane can see."""

from math import gcd

from zephon_beam.errors import CorruptObjectError, SourceError
from zephon_beam.heads import Heads
from zephon_beam.lane_state import DatasetState, LaneState
from zephon_beam.manifest import Manifest
from zephon_beam.position import Position
from zephon_beam.slots import FREE
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
        tokens = sum(_given_tokens(entry) for _, entry in saved)
        if tokens or (manifest.origin is not None and not saved):
            # Nothing may be left of what a fork goes on with.
            continue
        is_opened = not saved or any(entry.next_number for _, entry in saved)
        # Two passes from where the last lane of a fork began hold a whole one.
        begun = _first_numbers(store, manifest, dataset)
        enough = frozen.chunk_count
        if manifest.origin is not None:
            enough = 2 * enough + manifest.lanes * (1 + max(begun))
        whole_pass = all(
            number * manifest.lanes + lane >= enough
            for lane, entry in saved
            for number in [entry.next_number, *_open_numbers(entry)]
        )
        dropped = sum(entry.counters.dropped_tokens for _, entry in saved)
        # A finite data set of which everything is dropped is counted as such, and ends.
        ends = manifest.recipe["datasets"][frozen.name]["passes"] != "repeat"
        if is_opened and whole_pass and not (ends and dropped):
            reason = "all were dropped as longer than seq_len" if dropped else "got none"
            raise SourceError(
                f"datasets.{frozen.name} must give at least one token in a pass, {reason} from "
                f"{frozen.chunk_count} chunks; the mixture would lack it or wait for it for ever; "
                "check its files, its field, its transforms, holdout and packing.overlong "
                "(chat.overlong of conversations), or give it weight 0, and run the recipe into a "
                "new place"
            )


def refuse_starving_lanes(store: Store, manifest: Manifest, position: Position) -> None:
    """Stop when a lane gets the same chunks in every pass, and none of them gives a token.

    With `shuffle.chunks` each pass has its own order, so only unshuffled data sets can starve one.
    """
    recipe = manifest.recipe
    if recipe["shuffle"]["chunks"]:
        return
    for dataset, frozen in enumerate(manifest.datasets):
        cycle = frozen.chunk_count // gcd(frozen.chunk_count, manifest.lanes)
        for head in position.heads:
            if head.state is None or recipe["datasets"][frozen.name]["passes"] != "repeat":
                continue
            entry = head.state.datasets[dataset]
            if _given_tokens(entry):
                continue
            used_up = min([entry.next_number, *_open_numbers(entry)])
            if used_up >= cycle + _first_numbers(store, manifest, dataset)[head.lane]:
                raise SourceError(
                    f"datasets.{frozen.name} must give every lane a token, gives lane {head.lane} "
                    f"none: it gets the same {cycle} chunks in every pass, and no document begins "
                    "in them; it would wait for ever; set shuffle.chunks to true, or use fewer "
                    "lanes or larger chunk_bytes, and run the recipe into a new place"
                )


def _first_numbers(store: Store, manifest: Manifest, dataset: int) -> list[int]:
    """Return the number of the chunk that each lane opens first; not 0 in a fork."""
    heads = Heads(store, manifest)
    states = [heads.beginning(lane).state for lane in range(manifest.lanes)]
    return [0 if state is None else state.datasets[dataset].next_number for state in states]


def _given_tokens(entry: DatasetState) -> int:
    """Return the tokens that a data set gave to a lane's packs."""
    return entry.counters.read_tokens - entry.counters.dropped_tokens


def _open_numbers(entry: DatasetState) -> list[int]:
    """Return the numbers of the chunks that are not used up."""
    return [slot.number for slot in entry.slots if slot.number != FREE]


def _last_state(store: Store, manifest: Manifest, head: LaneHead) -> LaneState | None:
    """Return the state that a lane stands at, also when it has ended; None without one."""
    if not head.ended or head.length == 0:
        return head.state
    shard = (head.length - 1) // manifest.samples_per_shard
    return Heads(store, manifest).state(head.lane, shard)


def refuse_holes(store: Store, position: Position, complete_samples: int) -> None:
    """Stop when shards are missing that later ones, carries or ends count."""
    if complete_samples < position.complete_samples:
        raise CorruptObjectError(
            f"shards must exist for the {position.complete_samples} complete samples that the "
            f"lanes count, found {complete_samples} in {store.uri!r}; readers would stop there; "
            "somebody deleted some while this ran; run the recipe again, which makes them again"
        )
