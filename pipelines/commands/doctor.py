"""`zephon-beam doctor [RECIPE] [--stream URI]`."""

import argparse

from pipelines.commands.texts import write_json, write_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "Looks for the libraries and engines of this machine; with RECIPE imports its functions, "
        "lists its files and looks for their fields; with --stream tries whether the place keeps "
        "what is created there, and deletes it again. Exit status 1 if a run would stop."
    )
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="recipe file")
    parser.add_argument("--stream", metavar="URI", help="where a stream is or is to be")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Print what was found; 1 if a run would stop."""
    from dataclasses import asdict

    from pipelines.doctor import examine

    checks = []
    for check in examine(args.recipe, args.stream):
        checks.append(check)
        if not args.json:
            write_line(f"{check.status:<7}  {check.name}: {check.text}")
    faults = [check for check in checks if check.status == "fault"]
    if args.json:
        write_json({"ok": not faults, "checks": [asdict(check) for check in checks]})
    return 1 if faults else 0
