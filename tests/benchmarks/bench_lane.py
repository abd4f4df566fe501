"""Measures the lane process alone: from decoded parts to shard drafts with their states.

    python tests/benchmarks/bench_lane.py [--pieces 120000] [--part_tokens 65536] [--method M]

Two data sets of weights 0.7 and 0.3 hold documents of log-normal length (median 400 tokens, sigma
1.2); rows have 2048 uint16 tokens, 64 bins are open, 16 chunks are interleaved and a shard has 256
samples. 65,536 tokens a part are about 256 KiB of text. Speeds are pieces per CPU-second of this
process, the best of three runs; memcpy of the same bytes is measured in the same run.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = str(Path(__file__).resolve().parents[2])
if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)

import numpy as np  # noqa: E402

from tests.lanes import Source, make_config  # noqa: E402
from zephon_beam.lane import LaneProcess  # noqa: E402
from zephon_beam.lane_config import LaneConfig  # noqa: E402
from zephon_beam.sequences import PartKey, SequencePart  # noqa: E402

SEQ_LEN = 2048
WEIGHTS = (7, 3)
METHODS = ("best_fit", "best_fit_split", "first_fit", "concat")
DRAIN_PARTS = 128
"""Parts offered between two calls of `take_shards`, about what a drain holds."""


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def lengths_of_part(rng: np.random.Generator, tokens: int) -> np.ndarray:
    """Draw log-normal document lengths of about `tokens` in all."""
    drawn = np.maximum(rng.lognormal(np.log(400), 1.2, size=tokens // 400).astype(np.int64), 1)
    return drawn[: max(1, int(np.searchsorted(np.cumsum(drawn), tokens)))]


def make_parts(pieces: int, part_tokens: int) -> list[list[SequencePart]]:
    """Make the parts of each data set, one a chunk, for at least so many pieces."""
    rng = np.random.default_rng(0)
    pool = rng.integers(0, 50_000, size=1 << 25).astype(np.uint16)
    datasets = []
    for dataset, weight in enumerate(WEIGHTS):
        parts: list[SequencePart] = []
        made = 0
        while made < pieces * weight / sum(WEIGHTS):
            lengths = lengths_of_part(rng, part_tokens)
            made += int(-(-lengths // SEQ_LEN).sum())
            offsets = np.concatenate(([0], np.cumsum(lengths)))
            first = int(rng.integers(0, len(pool) - offsets[-1]))
            parts.append(
                SequencePart(
                    key=PartKey(dataset=dataset, number=len(parts), part=0),
                    last=True,
                    pass_number=0,
                    source_bytes=4 * int(offsets[-1]),
                    tokens=pool[first : first + int(offsets[-1])],
                    offsets=offsets,
                    files=np.full(len(lengths), 3, np.uint32),
                    locators=np.arange(len(lengths), dtype=np.int64),
                    outputs=np.zeros(len(lengths), np.uint32),
                )
            )
        datasets.append(parts)
    return datasets


def arrivals(datasets: list[list[SequencePart]]) -> Iterator[SequencePart]:
    """Yield the parts of both data sets in proportion to their number."""
    places = [
        ((place + 1) / len(parts), dataset, place)
        for dataset, parts in enumerate(datasets)
        for place in range(len(parts))
    ]
    for _, dataset, place in sorted(places):
        yield datasets[dataset][place]


def config_of(method: str, datasets: list[list[SequencePart]]) -> LaneConfig:
    """Return the configuration that the speeds are stated for."""
    return make_config(
        Source(chunk_counts=[len(parts) for parts in datasets]),
        weights=WEIGHTS,
        seq_len=SEQ_LEN,
        samples_per_shard=256,
        token_dtype="uint16",
        interleave=16,
        packing=method,
        open_bins=64,
        stop_when_exhausted=True,
    )


def run(method: str, datasets: list[list[SequencePart]]) -> tuple[float, int, int, float]:
    """Run a lane; return (CPU-seconds, pieces, bytes of tokens, fraction of padding)."""
    config = config_of(method, datasets)
    ordered = list(arrivals(datasets))
    process = LaneProcess(config, 0)
    pieces = rows = tokens = 0
    begin = time.process_time()
    for first in range(0, len(ordered), DRAIN_PARTS):
        for part in ordered[first : first + DRAIN_PARTS]:
            process.offer(part)
        for draft in process.take_shards():
            pieces += int(draft.samples.segment_offsets[-1])
            rows += len(draft.samples)
            tokens += int(draft.samples.segments["segment_lengths"].sum())
    seconds = time.process_time() - begin
    return seconds, pieces, tokens * 2, 1 - tokens / (rows * SEQ_LEN)


def memcpy_seconds(size: int) -> float:
    """Return the CPU-seconds of copying `size` bytes, a shard at a time, the best of three."""
    block = SEQ_LEN * 256 * 2
    source = np.ones(1 << 26, np.uint8)
    target = np.empty(block, np.uint8)
    times = []
    for _ in range(3):
        begin = time.process_time()
        for copy in range(max(1, size // block)):
            first = copy * block % (len(source) - block)
            target[:] = source[first : first + block]
        times.append(time.process_time() - begin)
    return min(times)


def main() -> None:
    """Measure every packing method."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--pieces", type=int, default=120_000)
    parser.add_argument("--part_tokens", type=int, default=65_536)
    parser.add_argument("--method", choices=METHODS, action="append")
    args = parser.parse_args()
    datasets = make_parts(args.pieces, args.part_tokens)
    for method in args.method or METHODS:
        seconds, pieces, size, padding = min(run(method, datasets) for _ in range(3))
        ratio = seconds / memcpy_seconds(size)
        say(
            f"{method:15} {pieces / seconds:9,.0f} pieces/s  {size / 2 / seconds / 1e6:6.1f} M "
            f"tokens/s  {ratio:5.1f} x memcpy  padding {padding:.2%}"
        )


if __name__ == "__main__":
    main()
