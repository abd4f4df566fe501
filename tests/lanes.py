"""Small synthetic lanes: sources made of numbered tokens, and lane processes fed in any order."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from zephon_beam.lane import LaneProcess, ShardDraft
from zephon_beam.lane_config import LaneConfig
from zephon_beam.lane_state import LaneState, decode_state, encode_state
from zephon_beam.mixing import MixingPhase, integer_weights
from zephon_beam.sequences import PartKey, SequencePart, decode_part, encode_part
from zephon_beam.shard import encode_shard

DTYPE = np.uint32
QUARANTINED = -1
"""Length that stands for a document set aside."""


def make_part(
    *, dataset: int, number: int, part: int, last: bool, lengths: Sequence[int], first_token: int
) -> SequencePart:
    """Make a part whose tokens are consecutive numbers, so that each is known by its value.

    A length of `QUARANTINED` makes an empty document that was set aside.
    """
    given = np.array(lengths, np.int64)
    offsets = np.concatenate(([0], np.cumsum(np.maximum(given, 0)))).astype(np.int64)
    count = len(lengths)
    return SequencePart(
        key=PartKey(dataset=dataset, number=number, part=part),
        last=last,
        pass_number=number,
        source_bytes=int(offsets[-1]) * 4,
        tokens=np.arange(first_token, first_token + offsets[-1], dtype=DTYPE),
        offsets=offsets,
        files=np.full(count, dataset, np.uint32),
        locators=np.arange(count, dtype=np.int64) + 1000 * part,
        outputs=np.zeros(count, np.uint32),
        quarantined=given == QUARANTINED,
    )


@dataclass
class Source:
    """All parts that a lane can be supplied with, by data set."""

    parts: list[SequencePart] = field(default_factory=list)
    chunk_counts: list[int] = field(default_factory=list)

    def tokens(self, dataset: int) -> int:
        """Tokens of one data set."""
        return sum(len(part.tokens) for part in self.parts if part.key.dataset == dataset)


def make_source(datasets: Sequence[Sequence[Sequence[Sequence[int]]]]) -> Source:
    """Make a source from lengths: data sets of chunks of parts of documents."""
    source = Source()
    token = 1
    for dataset, chunks in enumerate(datasets):
        source.chunk_counts.append(len(chunks))
        for number, parts in enumerate(chunks):
            for place, lengths in enumerate(parts):
                part = make_part(
                    dataset=dataset,
                    number=number,
                    part=place,
                    last=place == len(parts) - 1,
                    lengths=lengths,
                    first_token=token,
                )
                token += len(part.tokens)
                source.parts.append(part)
    return source


def make_config(source: Source, **changes: Any) -> LaneConfig:
    """Make a configuration of one lane that reads every chunk of the source once."""
    count = len(source.chunk_counts)
    weights = changes.pop("weights", [1] * count)
    values: dict[str, Any] = {
        "fingerprint": "f" * 32,
        "lanes": 1,
        "seq_len": 16,
        "samples_per_shard": 4,
        "token_dtype": "uint32",
        "pad_id": 0,
        "has_loss_mask": False,
        "interleave": 2,
        "chunk_totals": tuple(source.chunk_counts),
        "phases": (MixingPhase(start=0, weights=integer_weights([Decimal(w) for w in weights])),),
        "unit": "tokens",
        "stop_when_exhausted": False,
        "overlong": ("split",) * count,
        "packing": "best_fit",
        "open_bins": 4,
        "max_segments": None,
        "group_of_dataset": (0,) * count,
    }
    return LaneConfig(**{**values, **changes})


def draft_bytes(draft: ShardDraft) -> tuple[bytes, bytes]:
    """Return what a draft is stored as: (shard, state)."""
    shard = encode_shard(
        draft.samples, fingerprint="f" * 32, lane=draft.lane, first_sample=draft.first_index
    )
    return shard, encode_state(draft.state)


def run_in_order(config: LaneConfig, source: Source) -> list[ShardDraft]:
    """Feed everything at once, in order: the run that all others are compared with."""
    process = LaneProcess(config, 0)
    for part in source.parts:
        process.offer(part)
    return list(process.take_shards())


def run_shuffled(
    config: LaneConfig, source: Source, seed: int, *, restart: float = 0.3
) -> list[ShardDraft]:
    """Feed parts one by one in a random order, some twice, with random restarts in between."""
    rng = random.Random(seed)
    arrivals = list(source.parts) + rng.sample(source.parts, len(source.parts) // 2)
    rng.shuffle(arrivals)
    process = LaneProcess(config, 0)
    waiting: dict[PartKey, bytes] = {}
    drafts: list[ShardDraft] = []
    for part in arrivals:
        encoded = encode_part(part)
        if process.offer(decode_part(encoded)):
            waiting[part.key] = encoded
        if rng.random() < 0.5:
            drafts.extend(process.take_shards())
        if rng.random() < restart:
            process = restarted(config, process, waiting.values())
    drafts.extend(process.take_shards())
    return drafts


def restarted(config: LaneConfig, process: LaneProcess, payloads: Iterable[bytes]) -> LaneProcess:
    """Continue a process from its encoded state, in arbitrary order of what waits."""
    state: LaneState = decode_state(encode_state(process.state()), "state")
    again = LaneProcess(config, 0, state)
    for payload in payloads:
        again.offer(decode_part(payload))
    return again
