"""`zephon-beam drain STREAM`."""

import argparse

from pipelines.commands.texts import write_json, write_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "For `run --follow --endless`: the job takes nothing new, commits all that it was supplied "
        "with, and ends, and its `run` with it; whoever goes on with the stream reads nothing "
        "twice. It may run anywhere, also where its `run` is gone. Asking again tells whether it "
        "is done."
    )
    parser.add_argument("stream", metavar="STREAM", help="path or URI of the stream")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Leave the wish in the stream."""
    from zephon_beam.draining import ask_to_drain, is_drained
    from zephon_beam.errors import RecipeError
    from zephon_beam.layout import plan_name
    from zephon_beam.manifest import read_manifest
    from zephon_beam.numbered import numbered
    from zephon_beam.position import read_plan
    from zephon_beam.store.base import open_store

    store = open_store(args.stream)
    manifest = read_manifest(store)
    numbers = numbered(store, "advances/", plan_name)
    plan = read_plan(store, manifest, plan_name(numbers[-1])) if numbers else None
    if plan is None or not plan.endless:
        raise RecipeError(
            f"STREAM must be written by an endless job to be drained, got {args.stream!r}, which "
            "is made by advances; nothing was done; Ctrl-C ends its run, and loses one advance "
            "at most"
        )
    ask_to_drain(store, plan.advance)
    drained = is_drained(store, manifest, plan)
    if args.json:
        write_json({"job": plan.advance, "drained": drained})
    elif drained:
        write_line(f"job {plan.advance} is drained: all that it was supplied with is committed")
    else:
        write_line(
            f"job {plan.advance} is asked to end; its run ends when all is committed; if run and "
            "engine are gone, nothing more comes of it: run the recipe again to go on"
        )
    return 0
