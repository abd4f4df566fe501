"""PackLanes: the stateful stage, keyed by lane, that restores order, mixes and packs.

Parts arrive in any order, possibly more than once. They are appended blindly to a bag; a *drain*
reads the bag once, offers everything to the lane process, commits the shards that fill and writes
back what is left. Drains happen when enough has gathered and when the timer of the round fires.
When a drain happens changes nothing but time: the lane process is a Kahn process.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, TupleCoder, VarIntCoder
from apache_beam.pvalue import PCollection
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)

from transforms.lane_messages import (
    LaneMessage,
    LaneMessageCoder,
    decode_message,
    encoded_part,
)
from transforms.stream_job import StreamJob
from transforms.write_shards import (
    LaneCommit,
    carry_commit,
    end_commit,
    position_report,
    progress_report,
    shard_commit,
)
from zephon_beam.carry import CarryHead, WaitingPart, decode_carry, encode_carry
from zephon_beam.errors import CorruptObjectError
from zephon_beam.lane import LaneProcess, ShardDraft
from zephon_beam.lane_progress import encode_progress, make_progress
from zephon_beam.lane_state import decode_state, encode_state
from zephon_beam.plan import LanePlan
from zephon_beam.sequences import PartKey, SequencePart
from zephon_beam.shard import encode_shard

DEFAULT_DRAIN_BYTES = 16 * 1024 * 1024
_DONE = -1
"""Parts so far of a lane whose share of the job has ended: what comes now came before."""
_UNKNOWN = -2
"""Parts in all of a lane of an endless job, until that is drained."""
_REPORT_PARTS = 8
"""Parts of a lane between two reports of progress: about 2 MiB of source."""


class PackLanes(beam.PTransform[Any, Any]):
    """Turn the parts of each lane into shards, lane states and the lane's carry.

    Element types: in tuple[int, LaneMessage], out LaneCommit; keyed by lane, any order. The
    event time of an element is its round; one event-time timer is set at that time, so when it
    fires everything of the round has arrived. The carry, or the lane's end, is emitted only when
    all that the plan supplied was used up or waits, which is decided from the plan. In an endless
    job the lane says after each drain where it stands, and it has ended when its sources are used
    up. There is a carry only if the job as a whole is drained, once all parts have come that its
    source says it has supplied; an engine that ends the source's time early gets none.

    Determinism: shards and states depend on the contents of the parts alone.
    """

    def __init__(self, job: StreamJob, *, drain_bytes: int = DEFAULT_DRAIN_BYTES) -> None:
        """Pack for `job`, draining a lane whenever `drain_bytes` have gathered for it."""
        super().__init__()
        self._job = job
        self._drain_bytes = drain_bytes

    def expand(self, messages: PCollection[Any]) -> PCollection[Any]:
        """Run one lane process for each key."""
        return messages | "MixAndPack" >> beam.ParDo(_PackLane(self._job, self._drain_bytes))


class _PackLane(beam.DoFn):
    STATE = ReadModifyWriteStateSpec("state", BytesCoder())
    """Encoded lane state, empty for a fresh lane; unset until the lane's head has come."""
    PARTS = BagStateSpec("parts", LaneMessageCoder())
    GATHERED = ReadModifyWriteStateSpec("gathered", TupleCoder((VarIntCoder(),) * 4))
    """Bytes that arrived since the last drain, how many start the next one, parts so far, and how
    many come in all."""
    ROUND = TimerSpec("round", TimeDomain.WATERMARK)

    def __init__(self, job: StreamJob, drain_bytes: int) -> None:
        self._job = job
        self._drain_bytes = drain_bytes

    def setup(self) -> None:
        self._config = self._job.lane_config()
        self._plan = self._job.plan()
        self._planned = {
            plan.lane: sum(entry.part_count for entry in plan.supply) for plan in self._plan.lanes
        }
        if self._plan.endless:
            self._planned = dict.fromkeys(self._planned, _UNKNOWN)

    def process(
        self,
        element: tuple[int, LaneMessage],
        timestamp: Any = beam.DoFn.TimestampParam,
        state: Any = beam.DoFn.StateParam(STATE),
        parts: Any = beam.DoFn.StateParam(PARTS),
        gathered: Any = beam.DoFn.StateParam(GATHERED),
        timer: Any = beam.DoFn.TimerParam(ROUND),
    ) -> Iterator[LaneCommit]:
        """Keep what arrived; drain when enough has gathered, or all that was planned.

        The latter spares parts the way into the stored state and back where the graph runs fused,
        and with it the lane's share of the advance mostly ends, before the timer.
        """
        lane, message = element
        arrived, threshold, count, planned = self._gathered(lane, gathered)
        if count == _DONE:
            return
        timer.set(timestamp)
        is_endless = self._plan.endless
        if message.part is not None:
            parts.add(message)
            arrived += message.size
            count += 1
            if not is_endless and count % _REPORT_PARTS == 0:
                yield progress_report(lane, count)
        elif message.head is not None and state.read() is None:
            for waiting in self._accept_head(lane, message.head, state):
                parts.add(waiting)
                arrived += waiting.size
        elif message.all_parts is not None:
            planned = message.all_parts
        has_all = count == planned
        if (has_all or arrived >= threshold) and state.read() is not None:
            process, left = yield from self._drain(lane, state, parts)
            if is_endless:
                yield self._position(lane, process)
            last = self._last_commit(lane, process, left) if has_all else None
            if last is None:
                self._keep(process, left, state, parts)
            else:
                yield last
                state.clear()
                left, count = [], _DONE
            arrived, threshold = 0, self._next_threshold(left)
        gathered.write((arrived, threshold, count, planned))

    @on_timer(ROUND)
    def close_round(
        self,
        lane: Any = beam.DoFn.KeyParam,
        state: Any = beam.DoFn.StateParam(STATE),
        parts: Any = beam.DoFn.StateParam(PARTS),
        gathered: Any = beam.DoFn.StateParam(GATHERED),
    ) -> Iterator[LaneCommit]:
        """Drain, and finish the lane's share of the advance if its supply is complete.

        Timers may fire early or more than once: everything here may be repeated.
        """
        if state.read() is None:
            return
        process, left = yield from self._drain(lane, state, parts)
        self._keep(process, left, state, parts)
        _, _, *counts = self._gathered(lane, gathered)
        gathered.write((0, self._next_threshold(left), *counts))
        if self._plan.endless:
            # Only a lane that has used all its sources up has ended: not one that is drained.
            if process.ended:
                yield end_commit(lane, process.samples)
            yield self._position(lane, process)
            return
        last = self._last_commit(lane, process, left)
        if last is not None:
            yield last

    def _gathered(self, lane: int, gathered: Any) -> tuple[int, int, int, int]:
        return gathered.read() or (0, self._drain_bytes, 0, self._planned[lane])

    def _last_commit(
        self, lane: int, process: LaneProcess, left: Sequence[LaneMessage]
    ) -> LaneCommit | None:
        """Return what ends the lane's share of an advance; None if its supply is not complete."""
        if self._plan.recompute:
            return None
        if process.ended:
            return end_commit(lane, process.samples)
        waiting = [message.part for message in left if message.part is not None]
        plan = self._plan.lane(lane)
        if not supply_is_complete(plan, process, {part.key: part for part in waiting}):
            return None
        head = CarryHead(
            advance=self._plan.advance,
            state=process.state(),
            waiting=[_describe(part) for part in waiting],
        )
        carry = encode_carry(head, [encoded_part(message) for message in left])
        return carry_commit(lane, self._plan.advance, carry)

    def _accept_head(self, lane: int, payload: bytes, state: Any) -> list[LaneMessage]:
        """Set the lane state from its head; return the parts that waited in a carry."""
        plan = self._plan.lane(lane)
        if plan.head_kind != "carry":
            state.write(payload)
            return []
        head, payloads = decode_carry(payload, plan.head_name or "carry")
        if head.state.fingerprint != self._config.fingerprint or head.state.lane != lane:
            raise CorruptObjectError(
                f"{plan.head_name} must belong to lane {lane} of this stream, found lane "
                f"{head.state.lane} of {head.state.fingerprint}; it would mix two streams; delete "
                "it and run the recipe again"
            )
        state.write(encode_state(head.state))
        return [decode_message(waiting) for waiting in payloads]

    def _drain(
        self, lane: int, state: Any, parts: Any
    ) -> Generator[LaneCommit, None, tuple[LaneProcess, list[LaneMessage]]]:
        """Offer all parts and commit full shards; the bag is empty then.

        Yields:
            Shard commits.

        Returns:
            (the lane process, messages with the parts that still wait, in order).
        """
        encoded = state.read()
        start = decode_state(encoded, f"state of lane {lane}") if encoded else None
        process = LaneProcess(self._config, lane, start)
        offered: dict[PartKey, LaneMessage] = {}
        for message in parts.read():
            part = message.part
            if part is not None and process.offer(part):
                offered[part.key] = message
        wanted = self._plan.lane(lane).wanted_shards
        for draft in process.take_shards():
            if wanted is not None and draft.shard > wanted[1]:
                break
            if wanted is None or draft.shard >= wanted[0]:
                yield self._commit(draft)
        parts.clear()
        return process, [offered[key] for key in process.waiting()]

    def _keep(
        self, process: LaneProcess, left: Sequence[LaneMessage], state: Any, parts: Any
    ) -> None:
        """Write back what a drain left."""
        for message in left:
            parts.add(message)
        state.write(encode_state(process.state()))

    def _position(self, lane: int, process: LaneProcess) -> LaneCommit:
        progress = make_progress(self._plan.advance, process.state(), ended=process.ended)
        return position_report(lane, process.samples, encode_progress(progress))

    def _next_threshold(self, left: Sequence[LaneMessage]) -> int:
        """Return how many new bytes start a drain: as many as wait, which it reads again."""
        return max(self._drain_bytes, sum(message.size for message in left))

    def _commit(self, draft: ShardDraft) -> LaneCommit:
        config = self._config
        shard = encode_shard(
            draft.samples,
            fingerprint=config.fingerprint,
            lane=draft.lane,
            first_sample=draft.first_index * config.lanes + draft.lane,
            compression=self._job.codec,
        )
        samples = draft.first_index + len(draft.samples)
        return shard_commit(draft.lane, draft.shard, samples, encode_state(draft.state), shard)


def supply_is_complete(
    plan: LanePlan, process: LaneProcess, waiting: dict[PartKey, SequencePart]
) -> bool:
    """Say whether all that a plan supplied was used up or waits.

    Args:
        plan: the lane's share of the plan.
        process: the lane after a drain.
        waiting: the parts that wait.
    """
    ends: dict[tuple[int, int], int] = {}
    for key, part in waiting.items():
        if part.last:
            chunk = (key.dataset, key.number)
            ends[chunk] = min(key.part, ends.get(chunk, key.part))
    for entry in plan.supply:
        end = ends.get((entry.dataset, entry.number), entry.first_part + entry.part_count)
        for number in range(entry.first_part, entry.first_part + entry.part_count):
            key = PartKey(dataset=entry.dataset, number=entry.number, part=number)
            if key not in waiting and number <= end and process.needs(key):
                return False
    return True


def _describe(part: SequencePart) -> WaitingPart:
    return WaitingPart(key=part.key, last=part.last, source_bytes=part.source_bytes)
