"""Text to committed shards against the bare tokenizer, per CPU-second, in one run.

    python tests/benchmarks/bench_text.py [--megabytes 50]

The text is the source code of the installed Python packages, written as JSONL: real documents of
all lengths. `bare` is `encode_batch_fast` on the same documents and nothing else, a quarter of a
megabyte at a time, which suits the library better than larger batches; `pipeline` is everything
from the JSONL files to shards, states and catalogs on disk, with the import of Beam.
"""

import argparse
import json
import multiprocessing
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


def run_bare(folder: Path) -> dict[str, Any]:
    """Encode all documents, which lie in memory, with the library alone."""
    from tokenizers import Tokenizer

    texts = [
        json.loads(line)["text"]
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.open(encoding="utf-8")
    ]
    tokenizer = Tokenizer.from_file(str(TOKENIZER_FILE))
    tokenizer.encode_special_tokens = True
    started, wall = time.process_time(), time.monotonic()
    tokens = 0
    batch: list[str] = []
    for place, text in enumerate(texts):
        batch.append(text)
        if sum(map(len, batch)) >= BATCH_CHARS or place == len(texts) - 1:
            tokens += sum(map(len, tokenizer.encode_batch_fast(batch, add_special_tokens=False)))
            batch = []
    return _figures(tokens, started, wall)


def run_pipeline(folder: Path) -> dict[str, Any]:
    """Run the recipe on the same files to its end."""
    started, wall = time.process_time(), time.monotonic()
    from pipelines.run import run_stream

    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"name: bench\ntokenizer: {{path: {TOKENIZER_FILE}}}\n"
        'datasets: {code: {files: "*.jsonl", passes: 1}}\n'
    )
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as stream:
        facts = run_stream(recipe, stream)
        return _figures(facts["tokens"], started, wall)


def _figures(tokens: int, started: float, wall: float) -> dict[str, Any]:
    cpu = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "tokens": tokens,
        "cpu": cpu,
        "wall": time.monotonic() - wall,
        "tokens_per_cpu_second": tokens / cpu,
        "peak_mb": peak,
    }


def _in_child(run: Callable[[Path], dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Run in a process of its own, so that memory and caches are nobody else's."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run, (folder,))


def main() -> None:
    """Print a row for each run and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=50)
    megabytes = parser.parse_args().megabytes
    ratios = []
    with tempfile.TemporaryDirectory(prefix="zephon-beam-bench-") as name:
        folder = Path(name)
        written = write_corpus(folder, megabytes)
        print(f"{written / 1e6:.1f} MB of text")
        print("run              tokens    cpu s   wall s  tokens/cpu s  MB peak")
        for _ in range(ROUNDS):
            rows = {run.__name__: _in_child(run, folder) for run in (run_bare, run_pipeline)}
            for label, row in rows.items():
                print(
                    f"{label[4:]:10} {row['tokens']:12,} {row['cpu']:8.2f} {row['wall']:8.2f} "
                    f"{row['tokens_per_cpu_second']:13,.0f} {row['peak_mb']:8,.0f}"
                )
            pair = [row["tokens_per_cpu_second"] for row in rows.values()]
            ratios.append(pair[1] / pair[0])
    print(
        f"pipeline / bare, tokens per CPU-second: {sorted(ratios)[len(ratios) // 2]:.3f} median of"
    )
    print("  " + ", ".join(f"{ratio:.3f}" for ratio in ratios))


if __name__ == "__main__":
    sys.exit(main())
