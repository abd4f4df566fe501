"""What a lane of an endless job says of itself after a drain: advice for its supplier.

One object a lane, replaced. It may be late, lost, damaged, of another job, or of a time before the
job was set back to a checkpoint; then time is lost, and nothing else.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from zephon_beam.channel import DatasetCounters
from zephon_beam.lane_state import DatasetState, LaneState, SlotState
from zephon_beam.pieces import GatheredPieces
from zephon_beam.supply import LaneHead
from zephon_beam.views import Views

_COUNTERS = ("opened_bytes", "opened_tokens", "read_tokens", "dropped_tokens")
KIND = "progress"
"""Of a head that was made of advice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneProgress:
    """Where a lane stood after a drain."""

    job: int
    """Number of the plan that the job runs."""
    lane: int
    samples: int
    """In shards."""
    packs: int
    """Finished ones that wait for their shard."""
    phase: int
    ended: bool
    datasets: tuple[DatasetState, ...]
    """Without places within parts, and with some of the counters."""

    def head(self, fingerprint: str) -> LaneHead:
        """Return it as a head to plan from; nothing can start from it."""
        state = LaneState(
            fingerprint=fingerprint,
            lane=self.lane,
            samples=self.samples,
            phase=self.phase,
            flushed=self.ended,
            next_bin=0,
            datasets=list(self.datasets),
            bins=[],
            packs=[0] * self.packs,
            pieces=_no_pieces(),
        )
        return LaneHead(lane=self.lane, kind=KIND, number=self.job, state=state)


def make_progress(job: int, state: LaneState, *, ended: bool) -> LaneProgress:
    """Return what a lane says of itself.

    Args:
        job: number of the plan.
        state: after a drain.
        ended: whether every sample of the lane was taken.
    """
    return LaneProgress(
        job=job,
        lane=state.lane,
        samples=state.samples,
        packs=len(state.packs),
        phase=state.phase,
        ended=ended,
        datasets=tuple(
            DatasetState(
                next_number=found.next_number,
                turn=found.turn,
                slots=[SlotState(slot.number, slot.part, 0, 0) for slot in found.slots],
                taken=0,
                counters=DatasetCounters(
                    **{name: getattr(found.counters, name) for name in _COUNTERS}
                ),
            )
            for found in state.datasets
        ),
    )


def encode_progress(progress: LaneProgress) -> bytes:
    """Encode as one line of JSON; `advance` and `samples` are as in the advice of advances."""
    content = {
        "advance": progress.job,
        "lane": progress.lane,
        "samples": progress.samples,
        "packs": progress.packs,
        "phase": progress.phase,
        "ended": progress.ended,
        "datasets": [
            {
                "next_number": found.next_number,
                "turn": found.turn,
                "slots": [[slot.number, slot.part] for slot in found.slots],
                "counters": [getattr(found.counters, name) for name in _COUNTERS],
            }
            for found in progress.datasets
        ],
    }
    return (json.dumps(content, separators=(",", ":")) + "\n").encode()


def decode_progress(data: bytes) -> LaneProgress | None:
    """Decode advice; None if it cannot be used."""
    try:
        raw = json.loads(data)
        return LaneProgress(
            job=int(raw["advance"]),
            lane=int(raw["lane"]),
            samples=int(raw["samples"]),
            packs=int(raw["packs"]),
            phase=int(raw["phase"]),
            ended=bool(raw["ended"]),
            datasets=tuple(_dataset_from(entry) for entry in raw["datasets"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _dataset_from(entry: Any) -> DatasetState:
    counters = zip(_COUNTERS, entry["counters"], strict=True)
    return DatasetState(
        next_number=int(entry["next_number"]),
        turn=int(entry["turn"]),
        slots=[SlotState(int(number), int(part), 0, 0) for number, part in entry["slots"]],
        taken=0,
        counters=DatasetCounters(**{name: int(value) for name, value in counters}),
    )


def _no_pieces() -> GatheredPieces:
    return Views(np.dtype(np.uint16), has_loss_mask=False).gather([])
