"""How much to supply: a guess that can cost time but never change a byte.

A lane's need is estimated from its weights, from how many source bytes a token took so far, and
from what waits already. Whatever the guess, every plan holds the part that each data set needs
next, so every advance makes progress.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from zephon_beam.carry import WaitingPart
from zephon_beam.catalog.table import Catalog
from zephon_beam.channel import DatasetCounters
from zephon_beam.chunk_order import ChunkOrder
from zephon_beam.demand import lane_targets
from zephon_beam.lane_config import LaneConfig
from zephon_beam.lane_state import DatasetState, LaneState, SlotState
from zephon_beam.mixing import Mixer
from zephon_beam.plan import LanePlan, SupplyEntry
from zephon_beam.slots import FREE

IsSupplied = Callable[[int, int, int], bool]
"""Says whether a lane gets a part without more: (data set, chunk number, part)."""

_FIRST_BYTES_PER_TOKEN = 4.0
"""Before anything was read; byte-level tokenizers on prose and code take 3 to 5."""
_MARGIN = Fraction(11, 10)
_SPARE_CHUNKS = 2
_FIRST_EXPANSION = 4.0
"""Expanded bytes of a compressed byte before a file was read to its end; gzip gives 3 to 4."""
_MAX_NEW_PARTS = 4096
"""Parts of one data set, lane and advance beyond the open chunks: they may be tiny."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneHead:
    """Where a lane stands: the object it starts from and what that object says."""

    lane: int
    kind: str
    number: int
    state: LaneState | None
    waiting: tuple[WaitingPart, ...] = field(default_factory=tuple)
    ended: bool = False
    length: int = 0
    """Samples of a lane that has ended."""

    @property
    def samples(self) -> int:
        """Samples of the lane in shards."""
        return self.state.samples if self.state is not None else self.length

    @property
    def packed_samples(self) -> int:
        """Samples in shards and finished packs that wait for their shard."""
        return self.samples + (len(self.state.packs) if self.state is not None else 0)


class SupplyPlanner:
    """Plans what an advance supplies to each lane.

    Determinism: a plan depends on the heads, the limits and the catalogs; streams do not depend
    on plans.
    """

    def __init__(
        self, config: LaneConfig, catalogs: Sequence[Catalog], orders: Sequence[ChunkOrder]
    ) -> None:
        """Take the catalogs and chunk orders of the data sets, in recipe order."""
        self._config = config
        self._catalogs = catalogs
        self._orders = orders
        self._expansions: list[float] = []
        """Expanded bytes of a compressed byte, by data set, as far as the lanes have seen."""

    def plan(
        self, heads: Sequence[LaneHead], *, advance_bytes: int, until_samples: int | None
    ) -> tuple[LanePlan, ...]:
        """Return the supply of every lane that has not ended and not reached its target.

        Args:
            heads: one for each lane.
            advance_bytes: source bytes that the whole advance may supply, roughly.
            until_samples: global samples wanted, None without a limit.
        """
        ratios, self._expansions = self._bytes_per_token(heads), self._expansion(heads)
        lengths = [head.length if head.ended else None for head in heads]
        targets = lane_targets(until_samples, lengths, self._config.samples_per_shard)
        plans = []
        active = [head for head in heads if not head.ended]
        for head in active:
            target = targets[head.lane]
            if target is not None and head.samples >= target:
                continue
            budget = advance_bytes // max(1, len(active))
            missing = None if target is None else target - head.packed_samples
            supply = self._supply(head, budget, missing, ratios)
            plans.append(
                LanePlan(
                    lane=head.lane, head_kind=head.kind, head_number=head.number, supply=supply
                )
            )
        return tuple(plans)

    def plan_again(
        self, heads: Sequence[LaneHead], lost: Mapping[int, Sequence[int]], *, advance_bytes: int
    ) -> tuple[LanePlan, ...]:
        """Return the supply that makes lost shards again.

        Args:
            heads: older states to start from, of the lanes that lost shards.
            lost: numbers of the lost shards of each lane, in increasing order.
            advance_bytes: source bytes that the whole job may supply, roughly.
        """
        ratios, self._expansions = self._bytes_per_token(heads), self._expansion(heads)
        size = self._config.samples_per_shard
        plans = []
        for head in heads:
            first, last = lost[head.lane][0], lost[head.lane][-1]
            missing = (last + 1) * size - head.packed_samples
            supply = self._supply(head, advance_bytes // len(heads), missing, ratios)
            plans.append(
                LanePlan(
                    lane=head.lane,
                    head_kind=head.kind,
                    head_number=head.number,
                    supply=supply,
                    wanted_shards=(first, last),
                )
            )
        return tuple(plans)

    def supply_lane(
        self,
        head: LaneHead,
        is_supplied: IsSupplied,
        *,
        window_bytes: int,
        missing: int | None,
    ) -> tuple[SupplyEntry, ...]:
        """Return what a lane lacks of a window of source beyond where it stands; may be empty.

        The current part of every slot belongs to the window, whatever its size.

        Args:
            head: where the lane stands.
            is_supplied: says of (data set, chunk number, part) whether it was supplied.
            window_bytes: source bytes in the window, roughly.
            missing: samples that are wanted, None without a limit; fewer bytes may be enough.
        """
        ratios, self._expansions = self._bytes_per_token([head]), self._expansion([head])
        return self._supply(head, window_bytes, missing, ratios, is_supplied)

    def part_count(self, lane: int, dataset: int, number: int) -> int:
        """Return the number of parts of a chunk of a lane.

        Raises:
            ValueError: the lane has no such chunk, or only reading tells.
        """
        position = self._orders[dataset].position(lane, number)
        count = None if position is None else self._catalogs[dataset].part_count(position[1])
        if count is None:
            raise ValueError(f"data set {dataset} must have a counted chunk {number}")
        return count

    def _bytes_per_token(self, heads: Sequence[LaneHead]) -> list[float]:
        ratios = []
        for dataset in range(self._config.dataset_count):
            counters = [
                head.state.datasets[dataset].counters for head in heads if head.state is not None
            ]
            tokens = sum(counter.opened_tokens for counter in counters)
            source = sum(counter.opened_bytes for counter in counters)
            ratios.append(source / tokens if tokens else _FIRST_BYTES_PER_TOKEN)
        return ratios

    def _expansion(self, heads: Sequence[LaneHead]) -> list[float]:
        """Return what the files that lanes have read to their end say, if there are any."""
        found = []
        for dataset, catalog in enumerate(self._catalogs):
            states = [head.state.datasets[dataset] for head in heads if head.state is not None]
            begun = [slot for state in states for slot in state.slots if slot.number != FREE]
            finished = sum(state.next_number for state in states) - len(begun)
            expanded = sum(state.counters.opened_bytes for state in states)
            expanded -= sum((slot.part + 1) * catalog.chunk_bytes for slot in begun)
            stored = catalog.source_bytes / catalog.chunk_count
            known = finished > 0 and expanded > 0
            found.append(expanded / (finished * stored) if known else _FIRST_EXPANSION)
        return found

    def _supply(
        self,
        head: LaneHead,
        budget: int,
        missing: int | None,
        ratios: Sequence[float],
        is_supplied: IsSupplied | None = None,
    ) -> tuple[SupplyEntry, ...]:
        """Choose the parts for one lane: those needed next, up to a number of source bytes."""
        config = self._config
        weights = self._weights(head)
        cost = [weight * ratio for weight, ratio in zip(weights, ratios, strict=True)]
        total = sum(cost)
        factor = float(budget) / total
        if missing is not None:
            tokens = float(max(1, missing) * config.seq_len * _MARGIN) / sum(weights)
            factor = min(factor, tokens)
        entries: list[SupplyEntry] = []
        for dataset in range(config.dataset_count):
            if weights[dataset]:
                wanted = int(cost[dataset] * factor)
                entries.extend(self._parts(head, dataset, wanted, is_supplied))
        return tuple(_merged(entries))

    def _weights(self, head: LaneHead) -> list[int]:
        mixer = Mixer(self._config.phases)
        if head.state is not None:
            mixer = Mixer(self._config.phases, phase=head.state.phase)
            mixer.advance(head.packed_samples)
        return list(self._config.phases[mixer.phase].weights)

    def _parts(
        self, head: LaneHead, dataset: int, wanted: int, is_supplied: IsSupplied | None
    ) -> Iterator[SupplyEntry]:
        """Yield missing parts in about the order of use.

        A lane reads from all its slots in turn, so it needs the current part of every slot before
        it can use any; what it uses after that is roughly what is opened anew.

        Args:
            head: where the lane stands.
            dataset: place of the data set.
            wanted: source bytes to be used up.
            is_supplied: says which parts the lane gets anyway; None: those that wait in the head,
                and then at least one part more.
        """
        catalog, order = self._catalogs[dataset], self._orders[dataset]
        waiting = {(p.key.number, p.key.part) for p in head.waiting if p.key.dataset == dataset}
        state = head.state.datasets[dataset] if head.state is not None else self._fresh()
        open_numbers = {slot.number for slot in state.slots}
        wanted += _SPARE_CHUNKS * min(catalog.chunk_bytes, catalog.source_bytes)
        ends = {
            p.key.number: p.key.part for p in head.waiting if p.key.dataset == dataset and p.last
        }
        supplied = is_supplied is not None
        in_order = self._in_order_of_use(head.lane, dataset, state, ends)
        for place, (number, part) in enumerate(in_order):
            is_current = place < len(state.slots)
            enough = wanted <= 0 or place >= len(state.slots) + _MAX_NEW_PARTS
            if not is_current and supplied and enough:
                return
            position = order.position(head.lane, number)
            if position is None:
                return
            if not is_current or number not in open_numbers:
                wanted -= max(1, catalog.part_source_bytes(position[1], part))
            if is_supplied is not None:
                is_there = is_supplied(dataset, number, part)
            else:
                is_there = (number, part) in waiting
            if not is_there:
                supplied = True
                yield SupplyEntry(dataset=dataset, number=number, first_part=part, part_count=1)

    def _in_order_of_use(
        self, lane: int, dataset: int, state: DatasetState, ends: Mapping[int, int]
    ) -> Iterator[tuple[int, int]]:
        """Yield (chunk number, part) as if all slots moved on a part at a time, without end.

        Args:
            lane: the lane.
            dataset: place of the data set.
            state: where the lane stands in it.
            ends: last parts of the chunks of which one waits.
        """
        reached = {slot.number: slot.part for slot in state.slots}
        slots = [(slot.number, slot.part) for slot in state.slots]
        turn = min(state.turn, len(slots))
        slots = slots[turn:] + slots[:turn]
        next_number = state.next_number
        while slots:
            for place, (number, part) in enumerate(slots):
                if number == FREE:
                    number, part = next_number, 0
                    next_number += 1
                position = self._orders[dataset].position(lane, number)
                if position is None:
                    slots = [slot for slot in slots if slot[0] != FREE]
                    break
                yield number, part
                last = ends.get(number)
                if last is None:
                    last = self._last_part(dataset, position[1], reached.get(number, 0))
                slots[place] = (FREE, 0) if part >= last else (number, part + 1)

    def _last_part(self, dataset: int, chunk: int, reached: int) -> int:
        """Return the last part of a chunk, or a guess where only reading tells.

        Too large a guess supplies nothing there, as reading ends at the last part. Too small a one
        makes the lane wait for the rest, so it doubles as a lane goes on in the chunk: what a plan
        leaves out of one file shrinks with each advance.
        """
        catalog = self._catalogs[dataset]
        parts = catalog.part_count(chunk)
        if parts is not None:
            return parts - 1
        expanded = catalog.expanded_bytes(chunk, self._expansions[dataset])
        return max(expanded // catalog.chunk_bytes, 2 * reached)

    def _fresh(self) -> DatasetState:
        slots = [
            SlotState(number=FREE, part=0, document=0, offset=0)
            for _ in range(self._config.interleave)
        ]
        return DatasetState(next_number=0, turn=0, slots=slots, taken=0, counters=DatasetCounters())


def _merged(entries: Sequence[SupplyEntry]) -> Iterator[SupplyEntry]:
    """Join neighbouring parts of a chunk into one entry, so that they are read in one go."""
    ordered = sorted(entries, key=lambda entry: (entry.dataset, entry.number, entry.first_part))
    pending: SupplyEntry | None = None
    for entry in ordered:
        if pending is not None and (entry.dataset, entry.number, entry.first_part) == (
            pending.dataset,
            pending.number,
            pending.first_part + pending.part_count,
        ):
            pending = SupplyEntry(
                dataset=pending.dataset,
                number=pending.number,
                first_part=pending.first_part,
                part_count=pending.part_count + entry.part_count,
            )
            continue
        if pending is not None:
            yield pending
        pending = entry
    if pending is not None:
        yield pending
