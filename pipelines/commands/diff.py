"""`zephon-beam diff A B`."""

import argparse
import sys
from typing import Any

from pipelines.commands.progress import Bar
from pipelines.commands.texts import count, write_json, write_line
from pipelines.commands.trace import write_sample


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "Compares the samples that both streams have, in order, whatever the sizes of their "
        "shards. Exit status 1 if a sample differs, or one stream has ended and the other goes on."
    )
    parser.add_argument("a", metavar="A", help="path or URI of a stream")
    parser.add_argument("b", metavar="B", help="path or URI of another one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Print in what two streams differ; 1 if their samples do."""
    from zephon_beam.comparison import compare_streams

    bar = Bar("samples")
    progress = bar.show if sys.stderr.isatty() else None
    try:
        facts = compare_streams(args.a, args.b, progress)
    finally:
        bar.close()
    if args.json:
        write_json(facts)
    else:
        _write_text(facts)
    return 1 if facts["different"] else 0


def _write_text(facts: dict[str, Any]) -> None:
    for side in ("a", "b"):
        stream = facts[side]
        end = ", finished" if stream["finished"] else ""
        write_line(
            f"{side.upper()}  {stream['fingerprint']}  {count(stream['complete_samples'])} "
            f"complete samples{end}  {stream['stream']}"
        )
    for reason in facts["reasons"]:
        write_line(f"{reason['field']}: A has {reason['a']}, B has {reason['b']}")
    write_line()
    first, last = facts["compared"]
    found = facts["first_difference"]
    if found is None:
        write_line(_same(facts, first, last))
        return
    columns = ", ".join(found["columns"])
    write_line(f"sample {count(found['sample'])} is the first that differs, in {columns}")
    if not facts["reasons"]:
        write_line("they were made alike, so one of them was altered: see `zephon-beam verify`")
    for side in ("a", "b"):
        write_line()
        write_line(f"{side.upper()}:")
        write_sample(found[side])


def _same(facts: dict[str, Any], first: int, last: int) -> str:
    """Say what it means that no sample differs."""
    if first == last:
        made = "differently" if facts["different"] else "alike"
        return (
            f"no sample could be compared, for there is none that both hold; they were made {made}"
        )
    text = f"samples {count(first)} to {count(last - 1)} are the same"
    return f"{text}, but one stream has ended and the other goes on" if facts["different"] else text
