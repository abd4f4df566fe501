"""The point of a stream at which it is forked: what is read of it, and nothing is written."""

from zephon_beam.errors import CorruptObjectError, RecipeError
from zephon_beam.forking import Standing, standing
from zephon_beam.heads import Heads
from zephon_beam.lane_listing import global_order, list_lanes, read_lengths
from zephon_beam.lane_state import decode_state
from zephon_beam.layout import shard_name, state_name
from zephon_beam.manifest import Manifest
from zephon_beam.retained import first_retained_sample
from zephon_beam.shard import decode_shard, verify_digest
from zephon_beam.store.base import Store


def read_standings(store: Store, manifest: Manifest, at_sample: int) -> list[Standing]:
    """Read where the lanes of a stream stand at a sample.

    Args:
        store: of the stream, which may be written meanwhile.
        manifest: of the stream.
        at_sample: samples that come before the fork.

    Raises:
        RecipeError: the stream is not that long, or what is needed was deleted on purpose.
        CorruptObjectError: a shard or a lane state is missing or damaged.

    Determinism: depends on the stream's samples and `at_sample` alone.
    """
    if at_sample < 0:
        raise RecipeError(
            f"--at-sample must be at least 0, got {at_sample}; it counts samples from the stream's "
            "start"
        )
    lengths = read_lengths(store, manifest)
    lanes = list_lanes(store, manifest, lengths)
    order = global_order(lanes)
    complete = order.complete_prefix([lane.committed for lane in lanes])
    if at_sample > complete:
        raise RecipeError(
            f"--at-sample must be at most {complete}, the complete samples of {store.uri!r}, got "
            f"{at_sample}; what comes after them is not known yet; run the stream's own recipe on "
            f"with --until-samples {at_sample}, or name an earlier sample"
        )
    first = first_retained_sample(order, [lane.first for lane in lanes], manifest.samples_per_shard)
    standings = []
    for lane, count in zip(lanes, order.counts_before(at_sample), strict=True):
        if count < lane.first * manifest.samples_per_shard:
            raise RecipeError(
                f"--at-sample must be at least {first} in {store.uri!r}, got {at_sample}; the "
                "shards and lane states before it were deleted; name a later sample"
            )
        standings.append(_read_standing(store, manifest, lane.lane, count))
    return standings


def _read_standing(store: Store, manifest: Manifest, lane: int, count: int) -> Standing:
    """Read where one lane stands after its first `count` samples."""
    size = manifest.samples_per_shard
    if count == 0:
        begun = Heads(store, manifest).beginning(lane).state
        return Standing(state=None) if begun is None else standing(begun, None, 0)
    shard = (count - 1) // size
    name = state_name(lane, shard)
    try:
        state = decode_state(store.get(name), name)
        if state.samples == count:
            return standing(state, None, 0)
        name = shard_name(lane, shard)
        header, rows = decode_shard(store.open_mmap(name), name)
    except FileNotFoundError as error:
        raise CorruptObjectError(
            f"{name} must exist, found none in {store.uri!r}; where the lane stands is unknown; "
            "run the stream's own recipe again, which makes it again"
        ) from error
    verify_digest(header, rows, name)
    return standing(state, rows, count - shard * size)
