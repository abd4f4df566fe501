"""`zephon-beam demo`."""

import argparse

from pipelines.commands.texts import write_json, write_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--keep", metavar="FOLDER", help="keep corpus, recipe and stream in this folder"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Run the demo: it tells its story line by line, or its facts as one JSON object."""
    from pipelines.demo import run_demo

    facts = run_demo(keep=args.keep, say=None if args.json else write_line)
    if args.json:
        write_json(facts)
    return 0
