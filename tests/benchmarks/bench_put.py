"""What storing costs of a run over text: the time in stores against the whole, in one run.

    python tests/benchmarks/bench_put.py [--megabytes 200] [--backend auto] [--stream ADDRESS]

The run is that of `bench_text.py`: the source code of the installed packages, from JSONL to shards,
states and carries, here with every creation and replacement of an object timed: in a folder that is
its writing, the fsync of file and folder, and the link. CPU is that of all threads in it; wall time
is for how long the run stood still for it, beside the wall time of all puts, most of which pass
behind the run.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock, current_thread
from typing import Any

REPOSITORY = str(Path(__file__).resolve().parents[2])
if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)

from pipelines.demo_corpus import TOKENIZER_FILE  # noqa: E402
from tests.benchmarks.bench_text import write_corpus  # noqa: E402

GOES = 3


class Timed:
    """Adds up the time that calls of functions take."""

    def __init__(self) -> None:
        self.calls, self.cpu, self.wall, self.waited = 0, 0.0, 0.0, 0.0
        self._lock = Lock()

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and is timed."""

        def timed(*words: Any, **options: Any) -> Any:
            cpu, wall = time.thread_time(), time.perf_counter()
            try:
                return function(*words, **options)
            finally:
                cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
                is_put = function.__qualname__.split(".")[0] != "WriteBehind"
                with self._lock:
                    self.calls += is_put
                    self.cpu += cpu
                    self.wall += wall * is_put
                    self.waited += wall * (not current_thread().name.startswith("write-behind"))

        return timed


def measure(recipe: Path, stream: str, backend: str) -> tuple[Timed, float, float]:
    """Run a recipe; return (time in stores, CPU and wall seconds of all)."""
    from pipelines.run import run_stream
    from zephon_beam.store.behind import WriteBehind
    from zephon_beam.store.local import LocalStore
    from zephon_beam.store.remote import RemoteStore

    timed = Timed()
    kept = [
        (kind, name, vars(kind)[name])
        for kind in (LocalStore, RemoteStore, WriteBehind)
        for name in ("put_if_absent", "replace", "put", "wait")
        if name in vars(kind)
    ]
    for kind, name, function in kept:
        setattr(kind, name, timed.wrap(function))
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        run_stream(recipe, stream, backend=backend)
    finally:
        for kind, name, function in kept:
            setattr(kind, name, function)
    return timed, time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    """Print a row for each run, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--stream", help="where to build the streams; default: a temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zephon-beam-bench-") as name:
        folder = Path(name)
        print(f"{write_corpus(folder, args.megabytes) / 1e6:.1f} MB of text")
        recipe = folder / "recipe.yaml"
        recipe.write_text(
            f"name: bench\ntokenizer: {{path: {TOKENIZER_FILE}}}\n"
            'datasets: {code: {files: "*.jsonl", passes: 1}}\n'
        )
        base = args.stream or f"{name}/stream"
        measure(recipe, f"{base}-0", args.backend)  # loads the tokenizer
        print("objects   put cpu s  wall s  waited s   run cpu s  wall s   cpu share  waited share")
        shares = []
        for go in range(1, GOES + 1):
            timed, cpu, wall = measure(recipe, f"{base}-{go}", args.backend)
            shares.append((timed.cpu / cpu, timed.waited / wall))
            print(
                f"{timed.calls:7,} {timed.cpu:11.3f} {timed.wall:7.3f} {timed.waited:9.3f} "
                f"{cpu:11.2f} {wall:7.2f} {shares[-1][0]:11.2%} {shares[-1][1]:13.2%}"
            )
        medians = [statistics.median(column) for column in zip(*shares, strict=True)]
        print(
            f"median share of storing: {medians[0]:.2%} of CPU time, {medians[1]:.2%} of wall time"
        )


if __name__ == "__main__":
    main()
