"""Compares the reader with MosaicML Streaming on the same samples, in one run.

    python -m venv bench && bench/bin/pip install -e . mosaicml-streaming
    bench/bin/python tests/benchmarks/bench_mosaicml.py [--rows 16384] [--dtype uint16]

Both read the same packed rows in the same order from a local folder, which is checked first; both
have been read once before. MosaicML Streaming gets samples of a fixed shape
(`ndarray:uint16:2048`), without compression and hashes, neither shuffled nor downloaded, in one
process. Its rows are

    iterated       `for sample in StreamingDataset(...)`; nothing is made of a sample
    collated       iterated, and each eight samples copied into an int32 array [8, seq_len]
    …, all ahead   the same with `predownload` of all samples, its best case: its threads, which
                   look for shards even where all are there, are done early then
    by number      `dataset[k]` for each k, without these threads; nothing is made of a sample

Ours are `input_ids` alone, int32 [8, seq_len], which is what `collated` yields too, and `tokens`,
as stored, which is what `iterated` yields one by one: these ratios compare like with like. The five
keys of packed training (labels, positions, segments and bounds besides) have no counterpart:
MosaicML Streaming leaves them to the trainer. They are built by compiled code too, if numba is
installed.

Figures are CPU-seconds of this process, all threads of it, per sample: medians of rounds in which
every way has its turn, and medians of the rounds' ratios.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

REPOSITORY = str(Path(__file__).resolve().parents[2])
if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)

import numpy as np  # noqa: E402

from tests.benchmarks.bench_reader import (  # noqa: E402
    MICRO_BATCH_SIZE,
    PACKED_FIELDS,
    fabricate,
    open_reader,
    say,
)

OURS, STORED = "ours, input_ids", "ours, tokens as stored"
FIVE, COMPILED = "ours, five packed keys", "ours, five packed keys, numba"
ITERATED, COLLATED, NUMBERED = "theirs, iterated", "theirs, collated", "theirs, by number"
AHEAD = ", all ahead"


def write_mds(folder: Path, stream: Path, args: argparse.Namespace) -> None:
    """Write the samples of a stream once more, as MosaicML Streaming's own data set."""
    from streaming import MDSWriter

    columns = {"tokens": f"ndarray:{args.dtype}:{args.seq_len}"}
    with MDSWriter(out=str(folder), columns=columns, compression=None, hashes=None) as writer:
        for batch in open_reader(stream, ("tokens",)):
            for row in batch["tokens"]:
                writer.write({"tokens": row})


def open_mds(folder: Path) -> Any:
    """Open it as the only rank, local and in its own order."""
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    return StreamingDataset(
        local=str(folder),
        shuffle=False,
        batch_size=MICRO_BATCH_SIZE,
        num_canonical_nodes=1,
        allow_unsafe_types=False,
    )


def collate(dataset: Any, seq_len: int) -> Iterator[Any]:
    """Copy the samples that a data set iterates over into batches of int32."""
    row = 0
    batch = np.empty((MICRO_BATCH_SIZE, seq_len), np.int32)
    for sample in dataset:
        batch[row] = sample["tokens"]
        row += 1
        if row == MICRO_BATCH_SIZE:
            yield batch
            row = 0
            batch = np.empty((MICRO_BATCH_SIZE, seq_len), np.int32)


def check(stream: Path, dataset: Any, seq_len: int) -> None:
    """Stop unless both yield the same batches."""
    count = 0
    for ours, theirs in zip(
        open_reader(stream, ("input_ids",)), collate(dataset, seq_len), strict=True
    ):
        if ours["input_ids"].dtype != theirs.dtype or (ours["input_ids"] != theirs).any():
            raise RuntimeError(f"batch {count} differs; nothing is compared")
        count += 1
    say(f"{count} batches are the same")


def exhaust(batches: Any) -> None:
    """Take all there are."""
    for _ in batches:
        pass


def by_number(dataset: Any) -> None:
    """Take each sample."""
    for number in range(dataset.num_samples):
        dataset[number]


def measure(stream: Path, dataset: Any, args: argparse.Namespace) -> None:
    """Print CPU time per sample, and ratios to ours."""
    alone, stored = open_reader(stream, ("input_ids",)), open_reader(stream, ("tokens",))
    packed = open_reader(stream, PACKED_FIELDS)
    default = dataset.predownload

    def theirs(batches: Any, predownload: int) -> None:
        dataset.predownload = predownload
        exhaust(batches)

    ways: dict[str, Callable[[], None]] = {
        OURS: lambda: exhaust(alone),
        COLLATED: lambda: theirs(collate(dataset, args.seq_len), default),
        COLLATED + AHEAD: lambda: theirs(collate(dataset, args.seq_len), args.rows),
        STORED: lambda: exhaust(stored),
        ITERATED: lambda: theirs(dataset, default),
        ITERATED + AHEAD: lambda: theirs(dataset, args.rows),
        FIVE: lambda: exhaust(packed),
        NUMBERED: lambda: by_number(dataset),
    }
    if find_spec("numba"):
        compiled = open_reader(stream, PACKED_FIELDS, compiled=True)
        ways[COMPILED] = lambda: exhaust(compiled)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for go in range(args.rounds + 1):
        for name, work in ways.items():
            begin = time.process_time()
            work()
            if go:  # the first one warms up
                seconds[name].append((time.process_time() - begin) / args.rows)
    for name, values in seconds.items():
        say(f"{name:32} {median(values) * 1e6:8.3f} us CPU a sample")
    alike = {OURS: COLLATED, STORED: ITERATED}
    for ours in (name for name in ways if name.startswith("ours")):
        for other in (name for name in ways if name.startswith("theirs")):
            pairs = zip(seconds[other], seconds[ours], strict=True)
            ratio = median(slow / fast for slow, fast in pairs)
            note = "  like for like" if other.startswith(alike.get(ours, "-")) else ""
            say(f"{other:27} / {ours:28} {ratio:6.1f} x{note}")


def main() -> None:
    """Write both in a temporary folder and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=16384, help="samples")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--seq_len", type=int, default=2048)
    parser.add_argument("--dtype", choices=["uint16", "uint32"], default="uint16")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    if not find_spec("streaming"):
        say("nothing is compared: pip install mosaicml-streaming")
        return
    args.masked, args.samples_per_shard = False, 256
    args.rows -= args.rows % (args.samples_per_shard * args.lanes)
    from streaming import __version__

    with tempfile.TemporaryDirectory() as name:
        stream, folder = Path(name) / "stream", Path(name) / "mds"
        fabricate(stream, args)
        write_mds(folder, stream, args)
        say(
            f"{args.rows} rows of {args.seq_len} {args.dtype}, batches of {MICRO_BATCH_SIZE}; "
            f"mosaicml-streaming {__version__}"
        )
        dataset = open_mds(folder)
        check(stream, dataset, args.seq_len)
        measure(stream, dataset, args)


if __name__ == "__main__":
    main()
