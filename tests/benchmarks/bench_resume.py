"""What it costs to go on at 1 %, 50 % and 99 % of a stream of a million samples.

    python tests/benchmarks/bench_resume.py [--samples 1000000] [--lanes 8] [--stream ADDRESS]

The stream is a real one, with as many shards as rows of 2048 tokens would give it (256 samples
each), but of rows of 16 tokens of a source that is tokenized already, so that it is built in a few
minutes. At each place, in processes of their own, CPU-seconds after imports:

    run      from the call of `run_stream` to the first chunk that it reads; then the process is
             killed, so that all but the first time the plan of a killed run is gone on with
    rest     the same run to its end: an advance of four shards a lane, a last look at the stream
    reader   from opening a reader and loading a state of that place to its first batch
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = str(Path(__file__).resolve().parents[2])
if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from pipelines.demo_corpus import TOKENIZER_FILE  # noqa: E402
from zephon_beam.inspection import inspect_stream  # noqa: E402

SEQ_LEN = 16
SHARD_SAMPLES = 256
GOES = 3
FILES = 8


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_source(folder: Path, samples: int, lanes: int) -> Path:
    """Write token lists that fill so many rows, and the recipe; return its path."""
    rng = np.random.default_rng(0)
    tokens = samples * SEQ_LEN // FILES
    for number in range(FILES):
        ids = pa.array(rng.integers(1, 256, tokens).astype(np.uint16))
        bounds = np.append(np.arange(0, tokens, 400, dtype=np.int64), tokens)
        table = pa.table({"ids": pa.LargeListArray.from_arrays(pa.array(bounds), ids)})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=20)
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"name: resumed\nlanes: {lanes}\nseq_len: {SEQ_LEN}\nsamples_per_shard: {SHARD_SAMPLES}\n"
        f"tokenizer: {{path: {TOKENIZER_FILE}}}\npacking: {{method: concat}}\n"
        "shuffle: {interleave: 4}\nchunk_bytes: 16KiB\n"
        'datasets: {data: {files: "*.parquet", tokens: ids}}\n'
    )
    return recipe


def run(recipe: str, stream: str, until: str) -> None:
    """Run to so many samples."""
    from pipelines.run import run_stream

    began = time.process_time()
    run_stream(recipe, stream, until_samples=int(until))
    _end(began)


def run_to_first_read(recipe: str, stream: str, until: str) -> None:
    """Start the same run, and end the process at its first chunk."""
    from pipelines.run import run_stream
    from transforms import read_documents

    began = time.process_time()
    read_documents.read_part = lambda *_, **_options: _end(began)  # type: ignore[assignment]
    run_stream(recipe, stream, until_samples=int(until))
    raise SystemExit("the run read nothing")


def read_first_batch(stream: str, sample: str) -> None:
    """Open a reader at a sample and read its first batch."""
    from zephon_beam.reader import StreamReader

    began = time.process_time()
    reader = StreamReader(stream, global_batch_size=64, micro_batch_size=8)
    reader.load_state_dict({**reader.state_dict(), "next_sample": int(sample)})
    next(reader)
    _end(began)


def _end(began: float) -> None:
    """Tell the CPU-seconds since a moment, and end the process at once."""
    say(str(time.process_time() - began))
    os._exit(0)


WORK = {work.__name__: work for work in (run, run_to_first_read, read_first_batch)}


def _milliseconds(work: Callable[..., None], *words: object) -> float:
    """Do something in a process of its own, so that nothing is known from before."""
    command = [sys.executable, __file__, "--work", work.__name__, *map(str, words)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return 1e3 * float(told.splitlines()[-1])


def main() -> None:
    """Build the stream and print a row for each place."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--stream", help="where to build it; default: a temporary folder")
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        WORK[args.work[0]](*args.work[1:])
        return
    with tempfile.TemporaryDirectory(prefix="zephon-beam-bench-") as name:
        folder = Path(name)
        recipe = write_source(folder, args.samples, args.lanes)
        stream = args.stream or str(folder / "stream")
        more = 4 * args.lanes * SHARD_SAMPLES
        say("samples      shards    run ms (killed: least, most)    rest ms   reader ms (median)")
        for share in (0.01, 0.5, 0.99):
            samples = int(args.samples * share)
            built = time.monotonic()
            _milliseconds(run, recipe, stream, samples)
            built = time.monotonic() - built
            samples = inspect_stream(stream, by_states=True)["complete_samples"]
            further = (recipe, stream, samples + more)
            clean, *killed = [_milliseconds(run_to_first_read, *further) for _ in range(1 + GOES)]
            rest = _milliseconds(run, *further)
            places = [(samples // 64 - go) * 64 for go in range(1, 1 + GOES)]
            reads = [_milliseconds(read_first_batch, stream, place) for place in places]
            say(
                f"{samples:9,} {samples // SHARD_SAMPLES:9,} {clean:9.0f} "
                f"({min(killed):6.0f}, {max(killed):6.0f}) {rest:16.0f} "
                f"{statistics.median(reads):11.1f}   built in {built:.0f} s"
            )


if __name__ == "__main__":
    main()
