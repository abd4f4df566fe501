"""The lane process: sequential code that mixes and packs, independent of when things arrive.

A lane is a Kahn process. It decides which data set must give the next piece *before* looking at
what has arrived; if the part is not there it stops, and goes on when it is. Its shards and states
are therefore functions of its channels' contents alone.

Source: Kahn, "The Semantics of a Simple Language for Parallel Programming" (1974).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from zephon_beam.channel import Channel
from zephon_beam.lane_config import LaneConfig
from zephon_beam.lane_state import BinState, DatasetState, LaneState, SlotState
from zephon_beam.mixing import Mixer
from zephon_beam.packing.base import Bin, Packer, Packs
from zephon_beam.packing.best_fit import BestFit
from zephon_beam.packing.concat import Concat
from zephon_beam.packing.first_fit import FirstFit
from zephon_beam.pieces import LENGTH_MASK, GatheredPieces, Piece, cut_piece, length_of
from zephon_beam.quarantine_budget import QuarantineBudget
from zephon_beam.rows import build_samples
from zephon_beam.samples import Samples
from zephon_beam.sequences import PartKey, SequencePart
from zephon_beam.slots import Slot
from zephon_beam.views import Views


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
        self._packs = Packs(config.seq_len, config.segment_multiple)
        self._packers = [_make_packer(config, self._packs) for _ in range(config.group_count)]
        self._mixer = Mixer(config.phases)
        self._views = Views(config.token_dtype, has_loss_mask=config.has_loss_mask)
        self._channels = [
            _make_channel(config, dataset, lane, self._views)
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
                self._settle()
                return

    def state(self) -> LaneState:
        """Return everything needed to go on from here."""
        self._settle()
        bins = [
            BinState(group, row.created, len(row.pieces))
            for group, packer in enumerate(self._packers)
            for row in packer.bins()
        ]
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
            pieces=self._views.gather(self._pieces()),
        )

    def enter(self, pieces: GatheredPieces) -> None:
        """Pack pieces that were read before the lane began; the mixture does not count them.

        Args:
            pieces: those longer than a row are split.
        """
        seq_len = self._config.seq_len
        adds = [self._packers[group].add for group in self._config.group_of_dataset]
        datasets = pieces.columns.datasets.tolist()
        for piece, dataset in zip(self._views.add_gathered(pieces), datasets, strict=True):
            rest = piece
            while length_of(rest) > seq_len:
                first, rest = cut_piece(rest, seq_len)
                adds[dataset](first, seq_len)
            adds[dataset](rest, length_of(rest))

    def _fill(self, size: int) -> bool:
        """Pull pieces until a shard is full or the lane has ended; False if it is blocked."""
        closed, mixer = self._packs.closed, self._mixer
        while len(closed) < size:
            start = mixer.next_start
            if start is not None and self._samples + len(closed) >= start:
                mixer.advance(self._samples + len(closed))
                start = mixer.next_start
            dataset = mixer.choose()
            if dataset is None:
                self._flush()
                return True
            stop = size if start is None else min(size, start - self._samples)
            dataset = self._pack_until(stop, dataset)
            if dataset is None:
                continue
            if not self._channels[dataset].exhausted:
                return False
            if self._config.stop_when_exhausted:
                self._flush()
                return True
            mixer.exhaust()
        return True

    def _pack_until(self, stop: int, dataset: int) -> int | None:
        """Move pieces from channels to packers until `stop` packs are closed.

        Args:
            stop: packs that may wait, more than do now.
            dataset: that must give the next piece.

        Returns:
            None, or the data set that was chosen and has no piece now.
        """
        closed, take = self._packs.closed, self._mixer.take
        by_tokens = self._config.unit == "tokens"
        channels = self._channels
        queues = [channel.queue for channel in channels]
        adds = [self._packers[group].add for group in self._config.group_of_dataset]
        while len(closed) < stop:
            queue = queues[dataset]
            if not queue:
                if not channels[dataset].refill():
                    return dataset
                continue
            piece = queue.pop()
            length = piece & LENGTH_MASK
            is_first = True
            if not length:
                piece, length, is_first = channels[dataset].take_marked(piece)
                if not length:
                    continue
            adds[dataset](piece, length)
            dataset = take(length if by_tokens else is_first)
        return None

    def _settle(self) -> None:
        """Bring the channels to what was taken from them, and forget views now and then."""
        for channel in self._channels:
            channel.settle()
        if self._views.is_crowded:
            views = [view for channel in self._channels for view in channel.views()]
            self._views.keep(self._pieces(), views)

    def _pieces(self) -> list[Piece]:
        """Return the pieces of open bins, then those of packs that wait for their shard."""
        pieces: list[Piece] = []
        for packer in self._packers:
            for row in packer.bins():
                pieces += row.pieces
        for pack in self._packs.closed:
            pieces += pack
        return pieces

    def _flush(self) -> None:
        """Close all bins in order of creation: the lane has no more pieces."""
        for channel in self._channels:
            channel.settle()
            channel.judge(ended=True)
        rows = sorted(
            (row for packer in self._packers for row in packer.bins()), key=lambda row: row.created
        )
        self._packs.closed.extend(row.pieces for row in rows)
        self._packers = [_make_packer(self._config, self._packs) for _ in self._packers]
        self._flushed = True

    def _draft(self, count: int) -> ShardDraft:
        for channel in self._channels:
            channel.settle()
            channel.judge(ended=self._flushed)
        packs = self._packs.closed[:count]
        del self._packs.closed[:count]
        first = self._samples
        self._samples = first + count
        return ShardDraft(
            lane=self._lane,
            shard=first // self._config.samples_per_shard,
            first_index=first,
            samples=build_samples(packs, self._config, self._views),
            state=self.state(),
        )

    def _restore(self, state: LaneState) -> None:
        self._samples = state.samples
        self._flushed = state.flushed
        self._packs.next_bin = state.next_bin
        taken = [dataset.taken for dataset in state.datasets]
        self._mixer = Mixer(self._config.phases, phase=state.phase, taken=taken)
        for channel, saved in zip(self._channels, state.datasets, strict=True):
            channel.restore(
                next_number=saved.next_number,
                turn=saved.turn,
                slots=[
                    Slot(number=s.number, part=s.part, document=s.document, offset=s.offset)
                    for s in saved.slots
                ],
                counters=saved.counters,
            )
        pieces = iter(self._views.add_gathered(state.pieces))
        rows: list[list[Bin]] = [[] for _ in self._packers]
        for saved_bin in state.bins:
            filled = list(islice(pieces, saved_bin.pieces))
            rows[saved_bin.group].append(Bin(saved_bin.created, filled))
        for packer, group_rows in zip(self._packers, rows, strict=True):
            packer.restore(group_rows)
        self._packs.closed.extend(list(islice(pieces, count)) for count in state.packs)


def _dataset_state(channel: Channel, taken: int) -> DatasetState:
    slots = [
        SlotState(slot.number, slot.part, slot.document, slot.offset) for slot in channel.slots
    ]
    return DatasetState(
        next_number=channel.next_number,
        turn=channel.turn,
        slots=slots,
        taken=taken,
        counters=channel.counters(),
    )


def _make_channel(config: LaneConfig, dataset: int, lane: int, views: Views) -> Channel:
    limit = config.quarantine_limit
    budget = None
    if limit is not None:
        budget = QuarantineBudget(dataset=config.dataset_name(dataset), limit=limit)
    return Channel(
        dataset=dataset,
        chunk_count=config.channel_chunks(dataset, lane),
        interleave=config.interleave,
        seq_len=config.seq_len,
        overlong=config.overlong[dataset],
        whole_ids=config.whole_ids(dataset),
        views=views,
        budget=budget,
    )


def _make_packer(config: LaneConfig, packs: Packs) -> Packer:
    limit = config.max_segments
    if config.packing == "concat":
        return Concat(packs, limit)
    if config.packing == "first_fit":
        return FirstFit(packs, config.open_bins, limit)
    split = config.packing == "best_fit_split"
    return BestFit(packs, config.open_bins, split=split, max_segments=limit)
