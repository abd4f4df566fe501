"""`zephon-beam verify STREAM`."""

import argparse
import sys

from pipelines.commands.progress import Bar
from pipelines.commands.texts import count, write_json, write_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("stream", metavar="STREAM", help="path or URI of the stream")
    parser.add_argument(
        "--until-samples",
        type=int,
        metavar="N",
        help="look at the first N samples only, and digest exactly those",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Print every fault, then the digest; 1 if there was a fault."""
    from zephon_beam.errors import RecipeError
    from zephon_beam.verification import verify_stream

    if args.until_samples is not None and args.until_samples < 1:
        raise RecipeError(
            f"--until-samples must be at least 1, got {args.until_samples}; it counts samples from "
            "the stream's start"
        )
    bar = Bar("shards")
    progress = bar.show if sys.stderr.isatty() else None
    try:
        report = verify_stream(args.stream, args.until_samples, progress)
    finally:
        bar.close()
    if args.json:
        write_json(
            {
                "faults": list(report.faults),
                "complete_samples": report.complete_samples,
                "first_sample": report.first_sample,
                "samples": report.samples,
                "shards": report.shards,
                "stream_digest": report.stream_digest,
            }
        )
        return 0 if report.ok else 1
    for fault in report.faults:
        write_line(f"fault: {fault}")
    write_line(
        f"{_counted(len(report.faults), 'fault')} in {_counted(report.shards, 'shard')}; samples: "
        f"{count(report.samples)}, complete: {count(report.complete_samples)}"
    )
    if report.first_sample:
        write_line(
            f"samples before {count(report.first_sample)} were deleted on purpose; the digest "
            "begins there"
        )
    if any(fault.startswith(("shards/", "state/")) for fault in report.faults):
        write_line(
            "to mend: delete the shards and lane states that are named, and run the recipe again, "
            "which makes the same bytes"
        )
    write_line(f"stream digest: {report.stream_digest or 'none'}")
    return 0 if report.ok else 1


def _counted(number: int, noun: str) -> str:
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")
