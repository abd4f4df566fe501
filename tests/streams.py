"""Small streams, made directly from packs without a pipeline, and what a reader must say of them.

A row is a list of `Segment`; a lane is a list of rows. `write_stream` turns lanes into shards,
`reference_batch` computes token by token what the reader computes with arrays.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from zephon_beam.layout import MANIFEST, end_name, shard_name
from zephon_beam.manifest import Manifest, encode_manifest
from zephon_beam.samples import SEGMENT_COLUMNS, Samples
from zephon_beam.shard import encode_shard

FINGERPRINT = "f" * 32
PAD = 7


@dataclass(frozen=True)
class Segment:
    """One document's span in a row."""

    start: int
    tokens: tuple[int, ...]
    following: int = -1
    """The document's next token, -1 at its end."""
    dataset: int = 0
    learned: tuple[int, ...] | None = None
    """1 where the label counts; None: everywhere."""


Row = list[Segment]


@dataclass(frozen=True)
class FakeStream:
    """A stream on disk and the rows it was made of."""

    uri: str
    manifest: Manifest
    lanes: list[list[Row]]
    order: list[tuple[int, int]] = field(default_factory=list)
    """(lane, index) of each global sample."""

    def row(self, sample: int) -> Row:
        """Return the segments of a global sample."""
        lane, index = self.order[sample]
        return self.lanes[lane][index]


def make_manifest(**changes: Any) -> Manifest:
    """Build a manifest of a small stream."""
    manifest = Manifest(
        name="fake",
        fingerprint=FINGERPRINT,
        lanes=3,
        seq_len=16,
        samples_per_shard=4,
        token_dtype="uint16",
        vocab_size=50_000,
        pad_id=PAD,
        eos_id=0,
        bos_id=None,
        has_loss_mask=False,
        tokenizer_digest="",
        recipe={},
    )
    return replace(manifest, **changes)


def samples_of(rows: Sequence[Row], manifest: Manifest) -> Samples:
    """Lay rows out as arrays, segment by segment."""
    tokens = np.full((len(rows), manifest.seq_len), manifest.pad_id, manifest.token_dtype)
    mask = np.zeros((len(rows), manifest.seq_len), np.uint8)
    columns: dict[str, list[int]] = {name: [] for name in SEGMENT_COLUMNS}
    offsets = [0]
    for number, row in enumerate(rows):
        for segment in row:
            stop = segment.start + len(segment.tokens)
            tokens[number, segment.start : stop] = segment.tokens
            mask[number, segment.start : stop] = 1 if segment.learned is None else segment.learned
            columns["segment_starts"].append(segment.start)
            columns["segment_lengths"].append(len(segment.tokens))
            columns["segment_next"].append(segment.following)
            columns["source_dataset"].append(segment.dataset)
        offsets.append(len(columns["segment_starts"]))
    count = offsets[-1]
    arrays = {
        name: np.array(columns[name] or [0] * count, dtype)
        for name, dtype in SEGMENT_COLUMNS.items()
    }
    return Samples(
        tokens=tokens,
        segment_offsets=np.array(offsets, np.int64),
        segments=arrays,
        loss_mask=mask if manifest.has_loss_mask else None,
    )


def put(folder: Path, name: str, data: bytes) -> None:
    """Write an object of a stream."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def encode_rows(
    rows: Sequence[Row], manifest: Manifest, lane: int, shard: int, compression: str = "none"
) -> bytes:
    """Encode rows as a shard of a lane."""
    return encode_shard(
        samples_of(rows, manifest),
        fingerprint=manifest.fingerprint,
        lane=lane,
        first_sample=shard * manifest.samples_per_shard * manifest.lanes + lane,
        compression=compression,
    )


def write_shard(stream: FakeStream, lane: int, shard: int, compression: str = "none") -> None:
    """Write one shard of a stream."""
    size = stream.manifest.samples_per_shard
    rows = stream.lanes[lane][shard * size : (shard + 1) * size]
    data = encode_rows(rows, stream.manifest, lane, shard, compression)
    put(Path(stream.uri), shard_name(lane, shard), data)


def write_end(stream: FakeStream, lane: int) -> None:
    """Write the end of a lane."""
    data = json.dumps({"samples": len(stream.lanes[lane])}).encode()
    put(Path(stream.uri), end_name(lane), data)


def shard_count(stream: FakeStream, lane: int) -> int:
    """Return how many shards hold a lane."""
    return -(-len(stream.lanes[lane]) // stream.manifest.samples_per_shard)


def plan_stream(folder: Path, lanes: list[list[Row]], **changes: Any) -> FakeStream:
    """Write `stream.json` alone; shards and ends are the caller's to write."""
    manifest = make_manifest(lanes=len(lanes), **changes)
    put(folder, MANIFEST, encode_manifest(manifest))
    places = ((index, lane) for lane, rows in enumerate(lanes) for index in range(len(rows)))
    order = [(lane, index) for index, lane in sorted(places)]
    return FakeStream(uri=str(folder), manifest=manifest, lanes=lanes, order=order)


def write_stream(
    folder: Path,
    lanes: list[list[Row]],
    *,
    finite: bool = True,
    compression: str = "none",
    **changes: Any,
) -> FakeStream:
    """Write a whole stream."""
    stream = plan_stream(folder, lanes, **changes)
    for lane in range(len(lanes)):
        for shard in range(shard_count(stream, lane)):
            write_shard(stream, lane, shard, compression)
        if finite:
            write_end(stream, lane)
    return stream


def random_lanes(
    lengths: Sequence[int],
    *,
    seed: int,
    seq_len: int = 16,
    vocab: int = 50_000,
    masked: bool = False,
) -> list[list[Row]]:
    """Fill lanes with rows of every kind: full, short, empty, with gaps and with cuts."""
    rng = np.random.default_rng(seed)
    return [[_random_row(rng, seq_len, vocab, masked) for _ in range(n)] for n in lengths]


def _random_row(rng: np.random.Generator, seq_len: int, vocab: int, masked: bool) -> Row:
    row: Row = []
    gaps = rng.integers(3) == 0
    place = 0
    while rng.integers(8) > 0:
        place += int(rng.integers(3)) if gaps else 0
        if place >= seq_len:
            break
        length = int(rng.integers(1, seq_len - place + 1))
        row.append(
            Segment(
                start=place,
                tokens=tuple(rng.integers(vocab, size=length).tolist()),
                following=int(rng.integers(vocab)) if rng.integers(3) == 0 else -1,
                dataset=int(rng.integers(3)),
                learned=tuple(rng.integers(2, size=length).tolist()) if masked else None,
            )
        )
        place += length
    return row


def reference_batch(stream: FakeStream, samples: Sequence[int]) -> dict[str, Any]:
    """Compute a microbatch token by token; -1 among the samples is filler."""
    seq_len, pad = stream.manifest.seq_len, stream.manifest.pad_id
    names = ("input_ids", "labels", "position_ids", "segment_ids", "loss_mask", "dataset_ids")
    batch: dict[str, Any] = {name: [] for name in names}
    bounds = [0]
    for sample in samples:
        row = stream.row(sample) if sample >= 0 else []
        cells: list[Any] = [None] * seq_len
        for number, segment in enumerate(row, start=1):
            document = [*segment.tokens, segment.following]
            for place, token in enumerate(segment.tokens):
                counts = document[place + 1] >= 0
                if stream.manifest.has_loss_mask and segment.learned is not None:
                    counts = counts and segment.learned[place] == 1
                label = document[place + 1] if counts else -100
                cell = (token, label, place, number, int(counts), segment.dataset)
                cells[segment.start + place] = cell
        begin = bounds[-1]
        since = 0
        for place, cell in enumerate(cells):
            before = cells[place - 1] if place else (0, 0, 0, -1)
            kind = 0 if cell is None else cell[3]
            if place and kind != (0 if before is None else before[3]):
                bounds.append(begin + place)
                since = place
            if cell is None:
                cells[place] = None
                cell = (pad, -100, place - since, 0, 0, 0xFFFF)
            for name, value in zip(names, cell, strict=True):
                batch[name].append(value)
        bounds.append(begin + seq_len)
    result = {name: np.array(batch[name]).reshape(len(samples), seq_len) for name in names}
    result["tokens"] = result["input_ids"]
    padded, real = reference_slots(stream, samples)
    result["cu_seqlens_padded"], result["cu_seqlens_real"] = np.array(padded), np.array(real)
    result["cu_seqlens"] = np.array(bounds)
    result["max_seqlen"] = max(b - a for a, b in pairwise(bounds))
    result["num_valid_tokens"] = int(sum(batch["loss_mask"]))
    result["sample_ids"] = np.array(samples)
    return result


def reference_slots(stream: FakeStream, samples: Sequence[int]) -> tuple[list[int], list[int]]:
    """Walk through rows slot by slot; return bounds in memory and sums of real lengths."""
    multiple = stream.manifest.recipe.get("packing", {}).get("segment_multiple", 1)
    padded, real = [0], [0]

    def add(whole: int, used: int) -> None:
        if whole:
            padded.append(padded[-1] + whole)
            real.append(real[-1] + used)

    for sample in samples:
        place = 0
        for segment in stream.row(sample) if sample >= 0 else []:
            add(segment.start - place, segment.start - place)
            place = segment.start
            while place < segment.start + len(segment.tokens):
                place += multiple
            place = min(place, stream.manifest.seq_len)
            add(place - segment.start, len(segment.tokens))
        rest = stream.manifest.seq_len - place
        add(rest, rest)
    return padded, real


def reference_share(
    stream: FakeStream,
    step: Sequence[int],
    *,
    global_batch_size: int,
    micro_batch_size: int,
    dp_rank: int,
    dp_world_size: int,
    placement: str = "by_lane",
) -> list[list[int]]:
    """Deal a step's samples out, one list a microbatch, filled up with -1."""
    placed = list(step)
    if placement != "contiguous":
        placed.sort(key=lambda sample: stream.order[sample])
    bounds = [rank * len(placed) // dp_world_size for rank in range(dp_world_size + 1)]
    if placement == "balanced":
        mine = _balanced(stream, placed, bounds)[dp_rank]
    else:
        mine = placed[bounds[dp_rank] : bounds[dp_rank + 1]]
    largest = -(-global_batch_size // dp_world_size)
    count = -(-largest // micro_batch_size)
    mine += [-1] * (count * micro_batch_size - len(mine))
    return [mine[k * micro_batch_size : (k + 1) * micro_batch_size] for k in range(count)]


def _balanced(stream: FakeStream, placed: Sequence[int], bounds: Sequence[int]) -> list[list[int]]:
    """Give each sample, the costliest first, to the rank with the least cost that has room."""
    cost = {s: sum(len(segment.tokens) ** 2 for segment in stream.row(s)) for s in placed}
    ranks: list[list[int]] = [[] for _ in bounds[1:]]
    for sample in sorted(placed, key=lambda sample: -cost[sample]):
        open_ranks = [r for r in range(len(ranks)) if len(ranks[r]) < bounds[r + 1] - bounds[r]]
        chosen = min(open_ranks, key=lambda rank: (sum(cost[s] for s in ranks[rank]), rank))
        ranks[chosen].append(sample)
    return [sorted(rank, key=placed.index) for rank in ranks]
