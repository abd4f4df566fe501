"""Whole streams in memory: every choice that lanes offer, drawn from one seed.

A case holds all lanes of a stream, with data sets that are visited pass after pass in their keyed
order, so that what must hold over all lanes can be checked, too. Documents of different data sets,
chunks and places have different tokens; a pass repeats them.
"""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.lanes import QUARANTINED, Source, make_config
from zephon_beam.chunk_order import ChunkOrder
from zephon_beam.lane_config import LaneConfig
from zephon_beam.mixing import MixingPhase
from zephon_beam.sequences import PartKey, SequencePart

Document = tuple[int, int, int]
"""(data set, chunk, number in the chunk)."""

SUPPLIED_PASSES = 2
"""Passes of an endless data set that a case supplies."""


@dataclass(frozen=True, kw_only=True)
class LaneCase:
    """A configuration and all that its lanes can be supplied with."""

    config: LaneConfig
    chunks: list[list[list[list[int]]]]
    """Lengths of documents, by data set, chunk and part."""
    passes: list[int | None]
    first_tokens: dict[Document, int]
    orders: list[ChunkOrder | None]

    def chunk_of(self, dataset: int, lane: int, number: int) -> tuple[int, int] | None:
        """Return (pass, chunk) of a lane's chunk number, None if it is not supplied."""
        order = self.orders[dataset]
        position = order.position(lane, number) if order is not None else None
        if position is None or (self.passes[dataset] is None and position[0] >= SUPPLIED_PASSES):
            return None
        return position

    def parts(self, lane: int) -> list[SequencePart]:
        """Return every part that a lane is supplied with, in order."""
        parts = []
        for dataset in range(len(self.chunks)):
            number = 0
            while (position := self.chunk_of(dataset, lane, number)) is not None:
                pass_number, chunk = position
                place = 0
                lengths_of_parts = self.chunks[dataset][chunk]
                for part, lengths in enumerate(lengths_of_parts):
                    key = PartKey(dataset=dataset, number=number, part=part)
                    is_last = part == len(lengths_of_parts) - 1
                    parts.append(
                        self._part(key, pass_number, chunk, lengths, place, is_last=is_last)
                    )
                    place += len(lengths)
                number += 1
        return parts

    def tokens_of(self, document: Document, length: int) -> list[int]:
        """Return the tokens of a document."""
        first = self.first_tokens[document]
        return list(range(first, first + max(0, length)))

    def _part(
        self,
        key: PartKey,
        pass_number: int,
        chunk: int,
        lengths: list[int],
        place: int,
        *,
        is_last: bool,
    ) -> SequencePart:
        documents = [(key.dataset, chunk, place + number) for number in range(len(lengths))]
        tokens = [
            token
            for document, length in zip(documents, lengths, strict=True)
            for token in self.tokens_of(document, length)
        ]
        flat = np.array(tokens, self.config.token_dtype)
        given = np.array(lengths, np.int64)
        return SequencePart(
            key=key,
            last=is_last,
            pass_number=pass_number,
            source_bytes=3 * len(tokens) + 1,
            tokens=flat,
            offsets=np.concatenate(([0], np.cumsum(np.maximum(given, 0)))).astype(np.int64),
            files=np.full(len(lengths), chunk, np.uint32),
            locators=np.arange(place, place + len(lengths), dtype=np.int64),
            outputs=np.zeros(len(lengths), np.uint32),
            loss_mask=mask_of_tokens(flat) if self.config.has_loss_mask else None,
            quarantined=given == QUARANTINED,
        )


def mask_of_tokens(tokens: Any) -> Any:
    """Return a mask that follows from the tokens alone."""
    return (tokens % 5 != 0).astype(np.uint8)


def make_case(seed: int) -> LaneCase:
    """Draw a case."""
    rng = random.Random(seed)
    seq_len = rng.choice([1, 3, 8, 8, 12, 16, 17])
    # Mostly a few data sets; sometimes hundreds of tiny ones.
    count = rng.randint(1, 4) if rng.random() < 0.99 else rng.randint(100, 200)
    chunks = [_chunks(rng, seq_len, few=count > 4) for _ in range(count)]
    lanes = rng.choice([1, 1, 2, 3, 5])
    passes = [rng.choice([None, 1, 1, 2, 3]) for _ in range(count)]
    return LaneCase(
        config=_config(rng, seq_len, lanes, chunks, passes),
        chunks=chunks,
        passes=passes,
        first_tokens=_first_tokens(chunks),
        orders=[
            ChunkOrder(
                seed=seed,
                dataset=str(dataset),
                chunk_count=len(chunks[dataset]),
                lanes=lanes,
                shuffle=rng.random() < 0.7,
                passes=passes[dataset],
            )
            if chunks[dataset]
            else None
            for dataset in range(count)
        ],
    )


def _first_tokens(chunks: list[list[list[list[int]]]]) -> dict[Document, int]:
    """Number all tokens of a case from 1."""
    first_tokens = {}
    token = 1
    for dataset, chunk_list in enumerate(chunks):
        for chunk, parts in enumerate(chunk_list):
            lengths = [length for part in parts for length in part]
            for document, length in enumerate(lengths):
                first_tokens[dataset, chunk, document] = token
                token += max(0, length)
    return first_tokens


def _chunks(rng: random.Random, seq_len: int, *, few: bool) -> list[list[list[int]]]:
    edges = [0, 1, 2, seq_len // 2 + 1, seq_len - 1, seq_len, seq_len + 1]
    edges += [2 * seq_len, 2 * seq_len + 1, 10 * seq_len, QUARANTINED]
    filtered = rng.choice([0, 0, 0.3, 0.9, 1])

    def length() -> int:
        return rng.choice(edges) if rng.random() < 0.5 else rng.randrange(3 * seq_len)

    def part() -> list[int]:
        documents = 0 if rng.random() < filtered else rng.randrange(6)
        return [length() for _ in range(documents)]

    chunk_count = rng.randint(0, 2) if few else rng.choice([0, 1, 2, 3, 5, 9])
    return [[part() for _ in range(rng.randint(1, 3))] for _ in range(chunk_count)]


def _config(
    rng: random.Random,
    seq_len: int,
    lanes: int,
    chunks: list[list[list[list[int]]]],
    passes: list[int | None],
) -> LaneConfig:
    count = len(chunks)
    largest = rng.choice([1, 5, 10**12])
    weights = [rng.randint(0, largest) for _ in range(count)]
    if not any(weights):
        weights[rng.randrange(count)] = 1
    phases = [MixingPhase(start=0, weights=tuple(weights))]
    for start in sorted(rng.sample(range(1, 20), rng.choice([0, 0, 1, 2]))):
        if rng.random() < 0.5:
            # `at_tokens`, rounded up to whole samples of every lane.
            sample = -(-(start * seq_len + rng.randrange(seq_len)) // seq_len)
            start = -(-sample // lanes)
        if start > phases[-1].start:
            phases.append(MixingPhase(start=start, weights=tuple(rng.sample(weights, count))))
    totals = [
        (0 if not chunk_list else None) if given is None else given * len(chunk_list)
        for chunk_list, given in zip(chunks, passes, strict=True)
    ]
    return make_config(
        Source(chunk_counts=[len(chunk_list) for chunk_list in chunks]),
        lanes=lanes,
        seq_len=seq_len,
        chunk_totals=tuple(totals),
        phases=tuple(phases),
        has_loss_mask=rng.random() < 0.3,
        interleave=rng.randint(1, 4),
        samples_per_shard=rng.randint(1, 5),
        packing=rng.choice(["concat", "best_fit", "first_fit", "best_fit_split"]),
        open_bins=rng.randint(1, 6),
        overlong=tuple(rng.choice(["split", "split", "truncate", "drop"]) for _ in range(count)),
        unit=rng.choice(["tokens", "documents"]),
        stop_when_exhausted=rng.random() < 0.4,
        max_segments=rng.choice([None, None, 1, 3]),
        segment_multiple=rng.choice(
            [1, 1, *(size for size in range(2, seq_len + 1) if seq_len % size == 0)]
        ),
        group_of_dataset=rng.choice(
            [(0,) * count, tuple(range(count)), tuple(number % 2 for number in range(count))]
        ),
    )
