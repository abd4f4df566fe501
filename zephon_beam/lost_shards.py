"""Shards and lane states that lanes count and that are not there any more, or not as a whole."""

from collections.abc import Sequence

from zephon_beam.avro_records import end_mark
from zephon_beam.heads import Heads
from zephon_beam.layout import shard_name, state_name
from zephon_beam.manifest import Manifest
from zephon_beam.numbered import shard_numbers, state_numbers
from zephon_beam.retained import read_first_shards
from zephon_beam.shard import END_MARK
from zephon_beam.store.base import Store
from zephon_beam.supply import LaneHead

NEWEST = 64
"""Shards of a lane that a machine which lost power may have had on their way to the disk."""


def drop_cut_off(store: Store, manifest: Manifest, newest: int | None = None) -> list[str]:
    """Delete the shards and lane states that end too early, so that they are lost ones.

    A store creates objects as a whole, but a machine that loses power, a full disk or a copy that
    broke off may leave less of one. Nothing can be told from the rest of it, and what is made
    again has the same bytes. Costs a look at the end of each object, in folders only.

    Args:
        store: of the stream.
        manifest: of the stream.
        newest: look at so many of the last shards and states of a lane; None: at all of them.

    Returns:
        Names of what was deleted.
    """
    cut = []
    first = 0 if newest is None else -newest
    for lane in range(manifest.lanes):
        shards = [(shard_name(lane, n), END_MARK) for n in shard_numbers(store, lane)[first:]]
        mark = end_mark(manifest.fingerprint)
        states = [(state_name(lane, n), mark) for n in state_numbers(store, lane)[first:]]
        for name, expected in shards + states:
            found = store.peek_end(name, len(expected))
            if found is not None and found != expected:
                cut.append(name)
    for name in cut:
        store.delete(name)
    return cut


def find_lost(store: Store, manifest: Manifest, heads: Sequence[LaneHead]) -> dict[int, list[int]]:
    """Find what is missing of the shards, and the states after them, that each lane counts.

    Those that were deleted on purpose are not lost, but the state that was kept before the first
    shard is, if it is missing; its shard then counts as lost. Costs two listings a lane.

    Args:
        store: of the stream.
        manifest: of the stream.
        heads: where the lanes stand.

    Returns:
        Numbers of lost shards in increasing order, by lane; lanes that lost nothing are left out.

    Raises:
        CorruptObjectError: where the stream begins is unknown.
    """
    present = {
        head.lane: (set(shard_numbers(store, head.lane)), set(state_numbers(store, head.lane)))
        for head in heads
    }
    # Read after the listings: whoever deletes on purpose says so before.
    first = read_first_shards(store, manifest.lanes)
    lost = {}
    for head in heads:
        shards, states = present[head.lane]
        kept = first[head.lane]
        end = -(-head.samples // manifest.samples_per_shard)
        missing = [n for n in range(kept, end) if n not in shards or n not in states]
        if kept and kept - 1 not in states:
            missing.insert(0, kept - 1)
        if missing:
            lost[head.lane] = missing
    return lost


def heads_before(
    store: Store, manifest: Manifest, lost: dict[int, list[int]]
) -> tuple[LaneHead, ...]:
    """Return what each lane that lost something goes on from: its last state, or its beginning."""
    found = Heads(store, manifest)
    return tuple(
        found.last_state(lane, shards[0]) or found.beginning(lane) for lane, shards in lost.items()
    )
