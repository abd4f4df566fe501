"""The lane process: sequential code that mixes and packs, independent of when things arrive.

A lane is a Kahn process. It decides which data set must give the next piece *before* looking at
what has arrived; if the part is not there it stops, and goes on when it is. Its shards and states
are therefore functions of its channels' contents alone.

Source: Kahn, "The Semantics of a Simple Language for Parallel Programming" (1974).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from zephon_beam.channel import Channel, Slot
from zephon_beam.lane_config import LaneConfig
from zephon_beam.lane_state import BinState, DatasetState, LaneState, SlotState
from zephon_beam.mixing import Mixer
from zephon_beam.packing.base import Bin, Packer, Packs
from zephon_beam.packing.best_fit import BestFit
from zephon_beam.packing.concat import Concat
from zephon_beam.packing.first_fit import FirstFit
from zephon_beam.pieces import Piece, gather_pieces
from zephon_beam.sequences import PartKey, SequencePart
from zephon_beam.shard import SEGMENT_COLUMNS, Samples


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardDraft:
    """A shard that is full, with the state right after it."""

    lane: int
    shard: int
    first_index: int
    """Index of its first sample within the lane."""
    samples: Samples
    state: LaneState


class LaneProcess:
    """Mixes and packs the documents of one lane.

    Determinism: shards and states depend on the configuration, the lane and the contents of the
    parts; not on the order, the repetition or the cutting of `offer` and `take_shards` calls.
    """

    def __init__(self, config: LaneConfig, lane: int, state: LaneState | None = None) -> None:
        """Start a lane, or continue it from a state."""
        self._config = config
        self._lane = lane
        self._samples = 0
        self._flushed = False
        self._packs = Packs(config.seq_len)
        self._packers = [_make_packer(config, self._packs) for _ in range(config.group_count)]
        self._mixer = Mixer(config.phases)
        self._channels = [
            Channel(
                dataset=dataset,
                chunk_count=config.channel_chunks(dataset, lane),
                interleave=config.interleave,
                seq_len=config.seq_len,
                overlong=config.overlong,
            )
            for dataset in range(config.dataset_count)
        ]
        if state is not None:
            self._restore(state)

    @property
    def samples(self) -> int:
        """Samples in the shards that were taken so far."""
        return self._samples

    @property
    def ended(self) -> bool:
        """Whether every sample of the lane was taken; `samples` is then its length."""
        return self._flushed and not self._packs.closed

    def offer(self, part: SequencePart) -> bool:
        """Accept a part in any order; False if it is a repetition or was used up already."""
        return self._channels[part.key.dataset].offer(part)

    def waiting(self) -> list[PartKey]:
        """Return the parts that were offered and are not used up, in order."""
        return [key for channel in self._channels for key in channel.waiting()]

    def needs(self, key: PartKey) -> bool:
        """Say whether a part is still to be used, now or later."""
        return self._channels[key.dataset].needs(key.number, key.part)

    def wanted(self) -> PartKey | None:
        """Return the part that the lane waits for; None if it has ended."""
        dataset = None if self._flushed else self._mixer.choose()
        return None if dataset is None else self._channels[dataset].wanted()

    def take_shards(self) -> Iterator[ShardDraft]:
        """Pull, mix and pack as far as the parts reach, yielding each shard as it fills.

        A finite lane ends with a shard that may be shorter.
        """
        size = self._config.samples_per_shard
        while True:
            while len(self._packs.closed) >= size:
                yield self._draft(size)
            if self._flushed:
                if self._packs.closed:
                    yield self._draft(len(self._packs.closed))
                return
            if not self._fill(size):
                return

    def state(self) -> LaneState:
        """Return everything needed to go on from here."""
        bins: list[BinState] = []
        pieces: list[Piece] = []
        for group, packer in enumerate(self._packers):
            for row in packer.bins():
                bins.append(BinState(group=group, created=row.created, pieces=len(row.pieces)))
                pieces.extend(row.pieces)
        for pack in self._packs.closed:
            pieces.extend(pack)
        config = self._config
        return LaneState(
            fingerprint=config.fingerprint,
            lane=self._lane,
            samples=self._samples,
            phase=self._mixer.phase,
            flushed=self._flushed,
            next_bin=self._packs.next_bin,
            datasets=[
                _dataset_state(channel, taken)
                for channel, taken in zip(self._channels, self._mixer.taken, strict=True)
            ],
            bins=bins,
            packs=[len(pack) for pack in self._packs.closed],
            pieces=gather_pieces(pieces, config.token_dtype, config.has_loss_mask),
        )

    def _fill(self, size: int) -> bool:
        """Pull pieces until a shard is full or the lane has ended; False if it is blocked."""
        closed, mixer, channels = self._packs.closed, self._mixer, self._channels
        by_tokens = self._config.unit == "tokens"
        packers = [self._packers[group] for group in self._config.group_of_dataset]
        while len(closed) < size:
            start = mixer.next_start
            if start is not None and self._samples + len(closed) >= start:
                mixer.advance(self._samples + len(closed))
            dataset = mixer.choose()
            if dataset is None:
                self._flush()
                return True
            piece = channels[dataset].pull()
            if piece is None:
                if not channels[dataset].exhausted:
                    return False
                if self._config.stop_when_exhausted:
                    self._flush()
                    return True
                mixer.exhaust()
                continue
            mixer.take(piece[3] if by_tokens else int(piece[2] == 0))
            packers[dataset].add(piece)
        return True

    def _flush(self) -> None:
        """Close all bins in order of creation: the lane has no more pieces."""
        rows = sorted(
            (row for packer in self._packers for row in packer.bins()), key=lambda row: row.created
        )
        self._packs.closed.extend(row.pieces for row in rows)
        for packer in self._packers:
            packer.restore([])
        self._packers = [_make_packer(self._config, self._packs) for _ in self._packers]
        self._flushed = True

    def _draft(self, count: int) -> ShardDraft:
        packs = self._packs.closed[:count]
        del self._packs.closed[:count]
        first = self._samples
        self._samples = first + count
        return ShardDraft(
            lane=self._lane,
            shard=first // self._config.samples_per_shard,
            first_index=first,
            samples=build_samples(packs, self._config),
            state=self.state(),
        )

    def _restore(self, state: LaneState) -> None:
        config = self._config
        self._samples = state.samples
        self._flushed = state.flushed
        self._packs.next_bin = state.next_bin
        taken = [dataset.taken for dataset in state.datasets]
        self._mixer = Mixer(config.phases, phase=state.phase, taken=taken)
        for channel, saved in zip(self._channels, state.datasets, strict=True):
            channel.restore(
                next_number=saved.next_number,
                turn=saved.turn,
                slots=[
                    Slot(number=s.number, part=s.part, document=s.document, offset=s.offset)
                    for s in saved.slots
                ],
                counters=replace(saved.counters),
            )
        pieces = iter(state.pieces.pieces())
        rows: list[list[Bin]] = [[] for _ in self._packers]
        for saved_bin in state.bins:
            row = Bin(config.seq_len, saved_bin.created)
            row.pieces = list(islice(pieces, saved_bin.pieces))
            row.space -= sum(piece[3] for piece in row.pieces)
            rows[saved_bin.group].append(row)
        for packer, group_rows in zip(self._packers, rows, strict=True):
            packer.restore(group_rows)
        self._packs.closed.extend(list(islice(pieces, count)) for count in state.packs)


def build_samples(packs: Sequence[Sequence[Piece]], config: LaneConfig) -> Samples:
    """Lay packs out as rows, their segments one behind the other from the row's start.

    Returns:
        Samples with tokens [packs, seq_len]; what is left of a row is `pad_id`.
    """
    pieces = [piece for pack in packs for piece in pack]
    gathered = gather_pieces(pieces, config.token_dtype, config.has_loss_mask)
    counts = np.array([len(pack) for pack in packs], np.int64)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    ends = np.concatenate(([0], np.cumsum(gathered.lengths, dtype=np.int64)))
    row_bounds = ends[offsets]
    starts = ends[:-1] - np.repeat(row_bounds[:-1], counts)
    columns = gathered.columns
    segments = {
        "segment_starts": starts.astype(np.int32),
        "segment_lengths": gathered.lengths,
        "source_dataset": columns.datasets,
        "source_file": columns.files,
        "source_document": columns.documents,
        "source_output": columns.outputs,
        "source_offset": columns.offsets,
        "source_pass": columns.passes,
        "segment_next": columns.nexts,
    }
    tokens = _rows(gathered.tokens, row_bounds, config.seq_len, config.pad_id)
    mask = gathered.loss_mask
    return Samples(
        tokens=tokens,
        segment_offsets=offsets,
        segments={name: segments[name] for name in SEGMENT_COLUMNS},
        loss_mask=None if mask is None else _rows(mask, row_bounds, config.seq_len, 0),
    )


def _rows(flat: Any, bounds: Any, seq_len: int, fill: int) -> Any:
    """Cut a flat array at `bounds` into rows of `seq_len`, filled up at their end."""
    rows = np.full((len(bounds) - 1, seq_len), fill, flat.dtype)
    edges = bounds.tolist()
    for row in range(len(rows)):
        first, last = edges[row], edges[row + 1]
        rows[row, : last - first] = flat[first:last]
    return rows


def _dataset_state(channel: Channel, taken: int) -> DatasetState:
    slots = [
        SlotState(number=s.number, part=s.part, document=s.document, offset=s.offset)
        for s in channel.slots
    ]
    return DatasetState(
        next_number=channel.next_number,
        turn=channel.turn,
        slots=slots,
        taken=taken,
        counters=replace(channel.counters),
    )


def _make_packer(config: LaneConfig, packs: Packs) -> Packer:
    limit = config.max_segments
    if config.packing == "concat":
        return Concat(packs, limit)
    if config.packing == "first_fit":
        return FirstFit(packs, config.open_bins, limit)
    split = config.packing == "best_fit_split"
    return BestFit(packs, config.open_bins, split=split, max_segments=limit)
