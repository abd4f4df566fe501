"""Text to committed shards against reading and tokenizing alone, per CPU-second, in one run.

    python tests/benchmarks/bench_text.py [--megabytes 50] [--backend hf] [--tokenizer FILE]

The text is the source code of the installed Python packages, written as JSONL: real documents of
all lengths. `bare` parses the lines and encodes them with the same backend and does nothing else,
a quarter of a megabyte at a time, which suits the libraries better than larger batches; `pipeline`
is everything from the JSONL files to shards, states and catalogs on disk. Both are measured from
the start of the first document on, after Beam is imported and the tokenizer loaded. A run has a
quarter of a CPU-second of its own, and every further advance (256 MiB) as much, whatever it reads:
`--megabytes` says how much they weigh.
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.demo_corpus import TOKENIZER_FILE

ROUNDS = 3
BATCH_CHARS = 256 * 1024


def write_corpus(folder: Path, megabytes: int) -> int:
    """Write JSONL files with at least so many megabytes of text; return the bytes of text."""
    roots = [Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib"))]
    written, files = 0, 8
    handles = [(folder / f"part-{i}.jsonl").open("w", encoding="utf-8") for i in range(files)]
    paths = (path for root in roots for path in sorted(root.rglob("*.py")))
    for place, path in enumerate(paths):
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        handles[place % files].write(json.dumps({"text": text}) + "\n")
        written += len(text.encode())
        if written >= megabytes * 1_000_000:
            break
    for handle in handles:
        handle.close()
    return written


def run_bare(folder: Path, backend: str, tokenizer: str, _options: list[str]) -> dict[str, Any]:
    """Parse and encode all documents."""
    from transforms.tokenizers.backends import load_tokenizer
    from zephon_beam.recipe import TokenizerRecipe

    encode = load_tokenizer(TokenizerRecipe(path=tokenizer), backend=backend).encode
    encode(["a"])
    started = _Clock()
    tokens = 0
    batch: list[str] = []
    size = 0
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                batch.append(json.loads(line)["text"])
                size += len(batch[-1])
                if size >= BATCH_CHARS:
                    tokens += len(encode(batch)[0])
                    batch, size = [], 0
    tokens += len(encode(batch)[0])
    return started.figures(tokens)


def run_pipeline(folder: Path, backend: str, tokenizer: str, options: list[str]) -> dict[str, Any]:
    """Run the recipe on the same files to its end."""
    from pipelines.run import run_stream
    from transforms.tokenizers.backends import load_tokenizer
    from zephon_beam.recipe import TokenizerRecipe

    load_tokenizer(TokenizerRecipe(path=tokenizer), backend=backend).encode(["a"])
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"name: bench\ntokenizer: {{path: {tokenizer}}}\n"
        'datasets: {code: {files: "*.jsonl", passes: 1}}\n'
    )
    started = _Clock()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as stream:
        facts = run_stream(recipe, stream, backend=backend, options=options)
        return started.figures(facts["tokens"])


class _Clock:
    """Processor and wall time since it was made, those of ended child processes included."""

    def __init__(self) -> None:
        self._cpu, self._wall = self._used(), time.monotonic()

    @staticmethod
    def _used() -> float:
        used = os.times()
        return used.user + used.system + used.children_user + used.children_system

    def figures(self, tokens: int) -> dict[str, Any]:
        """Return what `tokens` tokens took."""
        cpu, wall = self._used() - self._cpu, time.monotonic() - self._wall
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"tokens": tokens, "cpu": cpu, "wall": wall, "rate": tokens / cpu, "peak_mb": peak}


def in_child(run: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """Run in a process of its own, so that memory and caches are nobody else's."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run, args)


def main() -> None:
    """Print a row for each run and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--tokenizer", default=str(TOKENIZER_FILE))
    args, options = parser.parse_known_args()
    ratios = []
    with tempfile.TemporaryDirectory(prefix="zephon-beam-bench-") as name:
        folder = Path(name)
        written = write_corpus(folder, args.megabytes)
        print(f"{written / 1e6:.1f} MB of text, backend {args.backend}")
        print("run              tokens    cpu s   wall s  tokens/cpu s    tokens/s  MB peak")
        for _ in range(ROUNDS):
            given = (folder, args.backend, args.tokenizer, options)
            rows = {run.__name__: in_child(run, *given) for run in (run_bare, run_pipeline)}
            for label, row in rows.items():
                print(
                    f"{label[4:]:10} {row['tokens']:12,} {row['cpu']:8.2f} {row['wall']:8.2f} "
                    f"{row['rate']:13,.0f} {row['tokens'] / row['wall']:11,.0f} "
                    f"{row['peak_mb']:8,.0f}"
                )
            pair = [row["rate"] for row in rows.values()]
            ratios.append(pair[1] / pair[0])
    print(
        f"pipeline / bare, tokens per CPU-second: {sorted(ratios)[len(ratios) // 2]:.3f} median of"
    )
    print("  " + ", ".join(f"{ratio:.3f}" for ratio in ratios))


if __name__ == "__main__":
    sys.exit(main())
