"""Forking a lane: from where it stands in one stream to where it begins in another.

    older lane    … row 6  row 7 | row 8  row 9     packs that wait   open bins    cursors
    at sample 8                  '--------------------- pieces ---------------'      |
    fork                            packed anew under the fork's recipe           kept

Sample N of the older stream may lie inside a shard. The state after that shard is used, and the
shard's rows from N on are taken apart again, so the fork begins at exactly N: each document of a
data set that is kept was in a row before N, or is among the pieces, or is still to be read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from zephon_beam.channel import DatasetCounters
from zephon_beam.errors import RecipeError
from zephon_beam.gathered import join_pieces, pieces_of_rows, take_pieces
from zephon_beam.kept_datasets import DatasetFork
from zephon_beam.lane import LaneProcess
from zephon_beam.lane_config import LaneConfig
from zephon_beam.lane_state import DatasetState, LaneState, SlotState
from zephon_beam.open_part import kept_lengths
from zephon_beam.pieces import Array, GatheredPieces
from zephon_beam.samples import Samples
from zephon_beam.slots import FREE, SKIP_REST


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a lane of the older stream stands at the sample of the fork."""

    state: LaneState | None
    """After the shard that holds that sample; None: the lane has not begun."""
    pieces: GatheredPieces | None = None
    """Read and not in a row before that sample, in the order in which they re-enter."""


@dataclass(kw_only=True, slots=True)
class Losses:
    """What the older stream had read and neither it nor the fork delivers, by its data sets."""

    tokens: list[int]
    """In rows from the fork on, and in open rows; in its own tokens."""
    documents: list[int] = field(default_factory=list)
    """Documents that were partly used and whose rest is left out."""


def standing(state: LaneState, rows: Samples | None, first: int) -> Standing:
    """Take the rows of a shard apart, and put what waits in the state behind them.

    Args:
        state: after the shard.
        rows: of the shard; None: all of them come before the fork.
        first: first row that does not.
    """
    some = [] if rows is None else [pieces_of_rows(rows, first)]
    bin_pieces = sum(row.pieces for row in state.bins)
    ends = np.cumsum([row.pieces for row in state.bins]).tolist()
    order = list(range(bin_pieces, len(state.pieces.lengths)))
    by_age = sorted(range(len(ends)), key=lambda place: state.bins[place].created)
    for place in by_age:
        order += range(ends[place] - state.bins[place].pieces, ends[place])
    some.append(take_pieces(state.pieces, np.array(order, np.int64)))
    return Standing(state=state, pieces=join_pieces(some))


def fork_lane(
    config: LaneConfig, lane: int, stands: Standing, forks: Sequence[DatasetFork]
) -> LaneState:
    """Return the state that a lane of a fork begins with.

    The mixture counts from nothing; the counters hold the tokens that re-enter, those of them that
    are dropped or truncated, and no document.

    Args:
        config: of the fork.
        lane: which.
        stands: where it stands in the older stream.
        forks: what becomes of each data set of the fork.

    Raises:
        RecipeError: a data set is read in a later pass than the recipe has.

    Determinism: depends on the arguments alone.
    """
    state = stands.state
    if state is None or stands.pieces is None:
        return LaneProcess(config, lane).state()
    for dataset, fork in enumerate(forks):
        if fork.older is not None:
            _refuse_fewer_passes(config, dataset, lane, state.datasets[fork.older])
    pieces, counters = _entering(config, stands.pieces, forks)
    datasets = []
    for fork, counted in zip(forks, counters, strict=True):
        if fork.older is None:
            datasets.append(_fresh(config, counted))
        else:
            datasets.append(_kept(config, state.datasets[fork.older], fork, counted))
    empty = take_pieces(pieces, np.empty(0, np.int64))
    start = LaneState(
        fingerprint=config.fingerprint,
        lane=lane,
        samples=0,
        phase=0,
        flushed=False,
        next_bin=0,
        datasets=datasets,
        bins=[],
        packs=[],
        pieces=empty,
    )
    process = LaneProcess(config, lane, start)
    process.enter(pieces)
    return process.state()


def count_losses(
    standings: Sequence[Standing], forks: Sequence[DatasetFork], dataset_count: int
) -> Losses:
    """Count what the older stream had read and nobody delivers.

    Args:
        standings: of all lanes.
        forks: what becomes of each data set of the fork.
        dataset_count: data sets of the older stream.
    """
    entering = {fork.older for fork in forks if fork.older is not None and not fork.dropped}
    losses = Losses(tokens=[0] * dataset_count, documents=[0] * dataset_count)
    for stands in standings:
        if stands.state is None or stands.pieces is None:
            continue
        sums = np.bincount(
            stands.pieces.columns.datasets, stands.pieces.lengths, minlength=dataset_count
        )
        for dataset in range(dataset_count):
            if dataset in entering:
                continue
            losses.tokens[dataset] += int(sums[dataset])
            slots = stands.state.datasets[dataset].slots
            losses.documents[dataset] += sum(0 < slot.offset < SKIP_REST for slot in slots)
    return losses


def _refuse_fewer_passes(config: LaneConfig, dataset: int, lane: int, older: DatasetState) -> None:
    chunks = config.channel_chunks(dataset, lane)
    open_numbers = [slot.number for slot in older.slots if slot.number != FREE]
    if chunks is not None and any(number >= chunks for number in open_numbers):
        raise RecipeError(
            f"datasets.{config.dataset_name(dataset)}.passes must count the pass that is being "
            "read at the sample of the fork, got fewer; passes count from the older stream's "
            "beginning; raise it, give the data set weight 0, or leave it out"
        )


def _entering(
    config: LaneConfig, pieces: GatheredPieces, forks: Sequence[DatasetFork]
) -> tuple[GatheredPieces, list[DatasetCounters]]:
    """Return the pieces that re-enter, of the fork's data sets, and what becomes of the others."""
    counters = [DatasetCounters() for _ in forks]
    most = np.zeros(len(pieces.lengths), np.int64)
    numbers = np.zeros(len(pieces.lengths), np.int64)
    starts = np.cumsum(pieces.lengths, dtype=np.int64) - pieces.lengths
    for dataset, fork in enumerate(forks):
        if fork.older is None:
            continue
        mine = pieces.columns.datasets == fork.older
        lengths = pieces.lengths[mine].astype(np.int64)
        kept = np.zeros_like(lengths)
        if not fork.dropped:
            kept = kept_lengths(
                pieces.tokens,
                starts[mine],
                lengths,
                seq_len=config.seq_len,
                overlong=config.overlong[dataset],
                whole_ids=config.whole_ids(dataset),
            )
        lost = int(lengths.sum() - kept.sum())
        counted = counters[dataset]
        counted.read_tokens = int(lengths.sum())
        if config.overlong[dataset] == "truncate" and not fork.dropped:
            counted.truncated_tokens = lost
        else:
            counted.dropped_tokens = lost
        most[mine], numbers[mine] = kept, dataset
    places = np.flatnonzero(most)
    chosen = take_pieces(pieces, places, most=most[places])
    return _renumbered(chosen, numbers[places]), counters


def _renumbered(pieces: GatheredPieces, datasets: Array) -> GatheredPieces:
    columns = replace(pieces.columns, datasets=datasets.astype(np.uint16))
    return replace(pieces, columns=columns)


def _fresh(config: LaneConfig, counters: DatasetCounters) -> DatasetState:
    slots = [SlotState(FREE, 0, 0, 0)] * config.interleave
    return DatasetState(next_number=0, turn=0, slots=slots, taken=0, counters=counters)


def _kept(
    config: LaneConfig, older: DatasetState, fork: DatasetFork, counters: DatasetCounters
) -> DatasetState:
    """Go on where a data set is; slots that had nothing left to open may have now."""
    slots = list(older.slots)
    if fork.dropped:
        slots = [slot._replace(offset=SKIP_REST) if slot.offset else slot for slot in slots]
    slots += [SlotState(FREE, 0, 0, 0)] * (config.interleave - len(slots))
    return DatasetState(
        next_number=older.next_number,
        turn=older.turn,
        slots=slots,
        taken=0,
        counters=replace(
            counters,
            opened_bytes=older.counters.opened_bytes,
            opened_tokens=older.counters.opened_tokens,
        ),
    )
