"""`zephon-beam fork OLD_STREAM RECIPE --stream NEW --at-sample N`."""

import argparse
from typing import Any

from pipelines.commands.texts import count, write_facts, write_json, write_line

TAKES_BEAM_OPTIONS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; what is not declared belongs to Beam."""
    parser.epilog = (
        "Data sets whose name, files, fields and transforms are unchanged go on where they are, so "
        "within their pass no document repeats or is missed; the others begin anew. The older "
        "stream is only read. Then go on with `zephon-beam run RECIPE --stream NEW --until-samples "
        "N`; sample 0 of the new stream follows sample N - 1 of the older one."
    )
    parser.add_argument("older", metavar="OLD_STREAM", help="path or URI of the older stream")
    parser.add_argument("recipe", metavar="RECIPE", help="recipe file of the new stream")
    parser.add_argument("--stream", metavar="NEW", required=True, help="where the new stream is")
    parser.add_argument(
        "--at-sample",
        type=int,
        metavar="N",
        required=True,
        help="samples of the older stream that come before the new one",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Create the new stream and say what goes on and what begins anew."""
    from pipelines.fork import fork_stream

    facts = fork_stream(
        args.older, args.recipe, args.stream, at_sample=args.at_sample, options=args.beam_args
    )
    if args.json:
        write_json(facts)
    else:
        _write_text(facts, args)
    return 0


def _write_text(facts: dict[str, Any], args: argparse.Namespace) -> None:
    origin = facts["origin"]
    write_facts(
        {
            "fork of": f"{origin['stream']} at sample {count(origin['at_sample'])}",
            "fingerprint": facts["fingerprint"],
        }
    )
    write_line()
    for name, entry in facts["datasets"].items():
        if not entry["kept"]:
            write_line(f"{name}: begins anew; {entry['why']}")
        elif entry["why"]:
            write_line(f"{name}: goes on, without what waited in open rows; {entry['why']}")
        else:
            write_line(f"{name}: goes on; what waited in open rows comes first")
    for name, lost in facts["left_out"].items():
        write_line(
            f"left out of {name}: {count(lost['tokens'])} tokens of open rows, the rest of "
            f"{count(lost['documents'])} documents"
        )
    write_line()
    if not facts["created"]:
        write_line("nothing was left to do")
    write_line(
        f"go on with: zephon-beam run {args.recipe} --stream {args.stream} --until-samples N"
    )
