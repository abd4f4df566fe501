"""Engines side by side: speed, processor time and memory of every process, on one machine.

    python tests/benchmarks/bench_engines.py [--megabytes 2] [--advances 5] [--engines direct,prism]

Prints the table of docs/engines.md. Each engine is started once, with one driver, which first makes
a stream of so many advances (`cold`, 1x), each of so many megabytes of JSONL, and then one of ten
times as much text in advances of the same size (`warm`, 10x); 1x is every tenth document of it.
Memory is the largest sum of resident sets of the driver, of worker processes and of the engine,
looked at ten times a second. What stays from the first run is in that of the second, and advances
are equally full in both, so a figure that is no larger says that nothing grows with the stream.

`--advances 1` is for speed alone: a lane that goes on where another advance has ended holds more
than one that begins, so one advance says little about the memory of the next ones.

Processor time is that of all processes. `ratio` is tokens per CPU-second of the warm run over those
of `bare`: parsing and encoding the same files and nothing else, just before it.

Engines that this machine has not got are named; `zephon-beam selftest --install` fetches them.
Options of Beam choose engines of your own, whose processes on other machines are not seen.
"""

import argparse
import itertools
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench_text import in_child, run_bare, write_corpus

from pipelines.demo_corpus import TOKENIZER_FILE
from pipelines.engines.local import ENGINES, ready_engine
from pipelines.engines.software import NotAvailableError

DEFAULT_ENGINES = "direct,direct-threads,direct-processes,embedded,prism,flink,spark"
TIMES = 10
"""How much larger the second input is."""
LOOK_SECS = 0.1
NEW_SECS = 0.5
ROLES = ("driver", "workers", "engine")
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
RECIPE = """\
name: bench
lanes: 4
seq_len: 2048
chunk_bytes: 64KiB
tokenizer: {{path: {tokenizer}}}
datasets: {{code: {{files: "*.jsonl", passes: 1}}}}
shuffle: {{interleave: 4}}
"""


@dataclass(slots=True)
class Seen:
    """What the processes of an engine did while something ran."""

    cpu: float = 0.0
    wall: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    peak_mb: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROLES, 0.0))

    @property
    def all_mb(self) -> float:
        """Return the memory of all roles, each at its largest."""
        return sum(self.peak_mb.values())


def descendants(root: int) -> Iterator[tuple[int, list[str]]]:
    """Yield (id, the fields of its /proc/ID/stat behind the name) of all processes below one."""
    found: dict[int, list[tuple[int, list[str]]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            found.setdefault(int(stat[1]), []).append((int(entry.name), stat))
    waiting = [root]
    while waiting:
        for child, stat in found.get(waiting.pop(), ()):
            waiting.append(child)
            yield child, stat


def role(process: int, driver: int) -> str | None:
    """Say what a process is: Python is the driver or a worker, everything else is the engine."""
    if process == driver:
        return "driver"
    try:
        program = os.readlink(f"/proc/{process}/exe")
    except OSError:
        return None  # it has ended
    return "workers" if "python" in Path(program).name else "engine"


def resident_mb(root: int, driver: int, others: Container[int]) -> dict[str, float]:
    """Return the memory of the processes below one, by role.

    A process that has just been started may still be a copy of the one that starts it.
    """
    found = dict.fromkeys(ROLES, 0.0)
    now = float(Path("/proc/uptime").read_text().split()[0])
    for process, stat in descendants(root):
        kind = role(process, driver)
        if kind is not None and process not in others and now - int(stat[19]) / TICKS > NEW_SECS:
            found[kind] += int(stat[21]) * PAGE / 1e6
    return found


def cpu_seconds(root: int) -> float:
    """Return the processor time of all processes below one, ended children included."""
    return sum(sum(map(int, stat[11:15])) for _, stat in descendants(root)) / TICKS


def watch(driver: Connection, process: int, others: Container[int]) -> Seen:
    """Look at all processes until the driver says that it has made its next stream."""
    root, seen = os.getpid(), Seen()
    started, used = time.monotonic(), cpu_seconds(root)
    driver.send("begin")
    while not driver.poll(LOOK_SECS):
        memory = resident_mb(root, process, others)
        seen.peak_mb = {name: max(memory[name], seen.peak_mb[name]) for name in ROLES}
    seen.facts = driver.recv()
    seen.cpu, seen.wall = cpu_seconds(root) - used, time.monotonic() - started
    return seen


def drive(
    main: Connection,
    options: list[str],
    corpora: Sequence[Path],
    advance_bytes: int,
    backend: str,
    tokenizer: str,
) -> None:
    """Make in the driver's process the streams that are measured, each when it is told to."""
    from pipelines.run import run_stream
    from transforms.tokenizers.backends import load_tokenizer
    from zephon_beam.recipe import TokenizerRecipe

    # Workers in threads of the driver tell at length that an engine was stopped.
    logging.getLogger("apache_beam.runners.worker").setLevel(logging.CRITICAL)
    load_tokenizer(TokenizerRecipe(path=tokenizer), backend=backend).encode(["a"])
    for corpus in corpora:
        main.recv()
        with tempfile.TemporaryDirectory(prefix="stream-", dir=corpus.parent) as folder:
            facts = run_stream(
                corpus / "recipe.yaml",
                Path(folder) / "stream",
                backend=backend,
                options=options,
                advance_bytes=advance_bytes,
            )
            main.send(facts)


def measure(options: list[str], *given: Any) -> tuple[Seen, Seen]:
    """Return what was seen of the small stream and of the large stream."""
    here, there = multiprocessing.Pipe()
    driver = multiprocessing.get_context("spawn").Process(
        target=drive, args=(there, options, *given)
    )
    driver.start()
    there.close()
    process = int(driver.pid or 0)
    # Python's own helper for processes; no worker has been started yet.
    others = {p for p, _ in descendants(os.getpid()) if role(p, process) == "workers"}
    cold, warm = (watch(here, process, others) for _ in range(2))
    driver.join()
    return cold, warm


def keep_some(small: Path, large: Path) -> None:
    """Write every tenth document of a corpus, so that both have the same kinds of text."""
    for path in large.glob("*.jsonl"):
        with path.open("rb") as lines, (small / path.name).open("wb") as kept:
            kept.writelines(itertools.islice(lines, 0, None, TIMES))


def row(name: str, bare: float, start: float, cold: Seen, warm: Seen) -> str:
    """Return a row of the table."""
    speed = [seen.facts["tokens"] / seen.wall for seen in (cold, warm)]
    ratio = warm.facts["tokens"] / warm.cpu / bare
    advances = [seen.facts["advances"] for seen in (cold, warm)]
    memory = ["+".join(f"{seen.peak_mb[kind]:.0f}" for kind in ROLES) for seen in (cold, warm)]
    return (
        f"| {name} | {speed[0]:,.0f} / {speed[1]:,.0f} | {ratio:.3f} | {start:.0f} s | "
        f"{warm.wall / advances[1]:.1f} s | {advances[0]} / {advances[1]} | "
        f"{memory[0]} | {memory[1]} | "
        f"{warm.all_mb / cold.all_mb:.2f} |"
    )


def main() -> None:
    """Measure each engine and print its row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=2, help="text of an advance")
    parser.add_argument("--advances", type=int, default=5, help="of the small stream")
    parser.add_argument("--engines", default=DEFAULT_ENGINES)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--tokenizer", default=str(TOKENIZER_FILE))
    args, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="zephon-beam-bench-") as name:
        base = Path(name)
        corpora = [base / "small", base / "large"]
        advances = args.advances * TIMES
        for corpus in corpora:
            corpus.mkdir()
            (corpus / "recipe.yaml").write_text(RECIPE.format(tokenizer=args.tokenizer))
        written = write_corpus(corpora[1], args.megabytes * advances)
        keep_some(*corpora)
        size = sum(path.stat().st_size for path in corpora[1].glob("*.jsonl"))
        print(f"{written / 1e6:.1f} MB of text in {advances} advances, and a tenth of it")
        print(
            "\n| engine | tokens/s, cold / warm | ratio | start | an advance "
            "| advances | MB at 1x, driver+workers+engine | MB at 10x | 10x / 1x |"
        )
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
        for engine in args.engines.split(","):
            if engine not in ENGINES:
                sys.exit(f"--engines must be some of {', '.join(ENGINES)}, got {engine!r}")
            bare = in_child(run_bare, corpora[1], args.backend, args.tokenizer, [])["rate"]
            began = time.monotonic()
            try:
                with ready_engine(engine, options, base / engine, install=False) as flags:
                    start = time.monotonic() - began
                    seen = measure(flags, corpora, size // advances, args.backend, args.tokenizer)
            except NotAvailableError as error:
                print(f"| {engine} | not available: {error} |")
                continue
            print(row(engine, bare, start, *seen), flush=True)


if __name__ == "__main__":
    main()
