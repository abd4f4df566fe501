"""Measures the reader on a stream made for the purpose: speed, first batch, memory.

    python tests/benchmarks/bench_reader.py [--rows 16384] [--lanes 8] [--dtype uint16]

Speeds are bytes per CPU-second of this process, the median of seven goes, beside the ratio to
memcpy, which is measured before each of them; bytes are those of int32 input_ids (of stored tokens
for `tokens`). memcpy copies 1 MiB, the size of the arrays that are built at a time. The first row
is what the machine allows: each shard is mapped and its tokens are converted into one array that
is used again, without Arrow, order, checks or batches. Rows marked + are built by compiled code,
if numba is installed. Memory is what reading adds to a process
that has imported the reader, peak, with and without the mapped pages of the page cache.
"""

import argparse
import json
import mmap
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

REPOSITORY = str(Path(__file__).resolve().parents[2])
if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)

import numpy as np  # noqa: E402

from tests.streams import make_manifest, put  # noqa: E402
from zephon_beam.layout import MANIFEST, end_name, shard_name  # noqa: E402
from zephon_beam.manifest import encode_manifest  # noqa: E402
from zephon_beam.reader import StreamReader  # noqa: E402
from zephon_beam.reader.batches import DEFAULT_FIELDS, FIELDS  # noqa: E402
from zephon_beam.samples import SEGMENT_COLUMNS, Samples  # noqa: E402
from zephon_beam.shard import encode_shard  # noqa: E402

MICRO_BATCH_SIZE = 8
PACKED_FIELDS = ("input_ids", "labels", "position_ids", "segment_ids", "cu_seqlens")


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def fabricate(folder: Path, args: argparse.Namespace) -> None:
    """Write a finite stream of log-normal segments with 0.3 % padding."""
    manifest = make_manifest(
        lanes=args.lanes,
        seq_len=args.seq_len,
        samples_per_shard=args.samples_per_shard,
        token_dtype=args.dtype,
        has_loss_mask=args.masked,
    )
    put(folder, MANIFEST, encode_manifest(manifest))
    rng = np.random.default_rng(0)
    size = args.samples_per_shard
    shards = max(1, args.rows // (size * args.lanes))
    samples = fill(rng, size, args)
    for shard in range(shards):
        for lane in range(args.lanes):
            data = encode_shard(
                samples,
                fingerprint=manifest.fingerprint,
                lane=lane,
                first_sample=shard * size * args.lanes + lane,
            )
            put(folder, shard_name(lane, shard), data)
    for lane in range(args.lanes):
        put(folder, end_name(lane), json.dumps({"samples": shards * size}).encode())


def fill(rng: np.random.Generator, rows: int, args: argparse.Namespace) -> Samples:
    """Fill rows with segments."""
    starts: list[int] = []
    lengths: list[int] = []
    offsets = [0]
    for _ in range(rows):
        place, limit = 0, args.seq_len - int(rng.integers(0, max(1, args.seq_len // 150)))
        while place < limit:
            length = min(int(rng.lognormal(6.0, 1.0)) + 1, limit - place)
            starts.append(place)
            lengths.append(length)
            place += length
        offsets.append(len(starts))
    count = len(starts)
    segments: dict[str, Any] = {
        name: np.zeros(count, dtype) for name, dtype in SEGMENT_COLUMNS.items()
    }
    segments["segment_starts"] = np.array(starts, np.int32)
    segments["segment_lengths"] = np.array(lengths, np.int32)
    segments["segment_next"] = np.where(rng.random(count) < 0.2, 5, -1).astype(np.int32)
    shape = (rows, args.seq_len)
    return Samples(
        tokens=rng.integers(0, 50_000, shape).astype(args.dtype),
        segment_offsets=np.array(offsets, np.int64),
        segments=segments,
        loss_mask=rng.integers(0, 2, shape).astype(np.uint8) if args.masked else None,
    )


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one go."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def open_reader(
    folder: "Path | str", fields: tuple[str, ...], compiled: bool = False
) -> StreamReader:
    """Open the stream as the only rank."""
    return StreamReader(
        str(folder),
        global_batch_size=512,
        micro_batch_size=MICRO_BATCH_SIZE,
        fields=fields,
        compiled=compiled,
    )


def measure_speed(folder: Path, args: argparse.Namespace) -> None:
    """Print throughputs against memcpy."""
    tokens = args.rows * args.seq_len
    batches = tokens // (MICRO_BATCH_SIZE * args.seq_len)
    source, target = np.ones(1 << 18, np.int32), np.ones(1 << 18, np.int32)

    def copy() -> None:
        for _ in range(tokens >> 18):
            np.copyto(target, source)

    def read_bare() -> None:
        convert_shards(folder, args)

    read_bare()
    seconds = median(cpu_seconds(read_bare) for _ in range(7))
    say(
        f"{'(bare: map and convert)':46} {tokens * 4 / seconds / 1e9:6.2f} GB/s "
        f"{seconds / batches * 1e6:7.1f} us a batch"
    )
    cases: list[tuple[str, tuple[str, ...], bool]] = [
        ("tokens", ("tokens",), False),
        ("input_ids", ("input_ids",), False),
        ("input_ids, labels", ("input_ids", "labels"), False),
        ("… and position_ids, segment_ids, cu_seqlens", PACKED_FIELDS, False),
        ("default fields", DEFAULT_FIELDS, False),
        ("all fields", FIELDS, False),
    ]
    if find_spec("numba"):
        cases += [
            ("+ … and position_ids, segment_ids, cu_seqlens", PACKED_FIELDS, True),
            ("+ default fields", DEFAULT_FIELDS, True),
        ]
    for label, fields, compiled in cases:
        reader = open_reader(folder, fields, compiled)

        def read(reader: StreamReader = reader) -> None:
            for _ in reader:
                pass

        read()
        pairs = [(cpu_seconds(copy), cpu_seconds(read)) for _ in range(7)]
        width = np.dtype(args.dtype).itemsize if fields == ("tokens",) else 4
        seconds = median(pair[1] for pair in pairs)
        copied = tokens * 4 / median(pair[0] for pair in pairs)
        speed = tokens * width / seconds
        say(
            f"{label:46} {speed / 1e9:6.2f} GB/s {seconds / batches * 1e6:7.1f} us a batch "
            f"{speed / copied:6.3f} of memcpy {copied / 1e9:.1f} GB/s"
        )


def convert_shards(folder: Path, args: argparse.Namespace) -> None:
    """Map every shard and convert its tokens, as fast as NumPy does it."""
    size, dtype = args.samples_per_shard, np.dtype(args.dtype)
    out = np.empty((64, args.seq_len), np.int32)
    for path in sorted(folder.glob("shards/*/*.arrow")):
        with path.open("rb") as file:
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            data = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
        # Where exactly they lie does not matter here: the first column is that of the tokens.
        rows = np.frombuffer(data, dtype, size * args.seq_len, 1024).reshape(size, -1)
        for first in range(0, size, len(out)):
            part = rows[first : first + len(out)]
            np.copyto(out[: len(part)], part, casting="unsafe")


def measure_first_batch(folder: Path, args: argparse.Namespace) -> None:
    """Print the CPU time of going to a saved state, and from there to its first batch."""
    known = open_reader(folder, DEFAULT_FIELDS)
    state = known.state_dict()
    for label, opened in (("seek in an open reader", known), ("seek with a new reader", None)):
        rng = np.random.default_rng(1)
        seeks, firsts = [], []
        for position in rng.integers(0, args.rows // 512, size=40).tolist():
            begin = time.process_time()
            reader = opened or open_reader(folder, DEFAULT_FIELDS)
            reader.load_state_dict({**state, "next_sample": position * 512})
            seeks.append((time.process_time() - begin) * 1e3)
            next(reader)
            firsts.append((time.process_time() - begin) * 1e3)
        say(
            f"{label:42} {sorted(seeks)[20]:8.2f} ms CPU median, "
            f"first batch after {sorted(firsts)[20]:.2f} ms, {max(firsts):.2f} ms at worst"
        )


def resident() -> dict[str, int]:
    """Return this process's resident memory by kind, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":") for line in lines if line.startswith("Rss") or "VmHWM" in line)
    return {key: int(value.split()[0]) for key, value in pairs}


def measure_memory(folder: Path, args: argparse.Namespace) -> None:
    """Print what reading the stream adds, measured in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", str(folder), "--lanes", str(args.lanes)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    say(output.strip())


def memory_child(folder: Path) -> None:
    """Read a stream once and print the growth of this process."""
    next(open_reader(folder, ("input_ids",)))
    before = resident()
    anonymous = mapped = 0
    for number, _ in enumerate(open_reader(folder, DEFAULT_FIELDS)):
        if number % 64 == 0:
            now = resident()
            anonymous = max(anonymous, now["RssAnon"] - before["RssAnon"])
            mapped = max(mapped, now["RssFile"] - before["RssFile"])
    # Not `ru_maxrss`: a new program begins with that of the process which started it.
    peak = resident()["VmHWM"] - before["VmHWM"]
    say(
        f"memory over baseline                       {peak / 1024:8.1f} MB peak "
        f"({anonymous / 1024:.1f} MB own, {mapped / 1024:.1f} MB mapped)"
    )


def main() -> None:
    """Make a stream in a temporary folder and measure."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=16384, help="samples of the stream")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--seq_len", type=int, default=2048)
    parser.add_argument("--samples-per-shard", type=int, default=256, help="as of `auto`: 256")
    parser.add_argument("--dtype", choices=["uint16", "uint32"], default="uint16")
    parser.add_argument("--masked", action="store_true", help="with a stored loss mask")
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of is not None:
        memory_child(args.memory_of)
        return
    args.rows -= args.rows % (args.samples_per_shard * args.lanes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fabricate(folder, args)
        say(f"{args.rows} rows of {args.seq_len} {args.dtype}, {args.lanes} lanes, batches of 8")
        measure_speed(folder, args)
        measure_first_batch(folder, args)
        measure_memory(folder, args)


if __name__ == "__main__":
    main()
