"""`zephon-beam trace STREAM --sample G | --step S --batch B`."""

import argparse
from typing import Any

from pipelines.commands.texts import count, write_json, write_line, write_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "Prints, for every document of a sample: data set, file, place in the file, the stretch of "
        "its tokens that the sample holds, and the pass. `tokens 0-128 …` goes on in another row."
    )
    parser.add_argument("stream", metavar="STREAM", help="path or URI of the stream")
    parser.add_argument("--sample", type=int, metavar="G", help="number of the sample")
    parser.add_argument("--step", type=int, metavar="S", help="instead: all samples of a step")
    parser.add_argument("--batch", type=int, metavar="B", help="with --step: samples of a step")
    parser.add_argument(
        "--start-sample",
        type=int,
        default=0,
        metavar="N",
        help="with --step: sample that step 0 began with; default: 0",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Print which documents samples hold."""
    from zephon_beam.manifest import read_manifest
    from zephon_beam.store.base import open_store
    from zephon_beam.tracing import SampleTracer

    first, last = _wanted(args)
    store = open_store(args.stream)
    manifest = read_manifest(store)
    samples = SampleTracer(store, manifest).trace(first, last)
    if args.json:
        write_json({"fingerprint": manifest.fingerprint, "samples": samples})
        return 0
    for place, sample in enumerate(samples):
        if place:
            write_line()
        write_sample(sample)
    return 0


def write_sample(sample: dict[str, Any]) -> None:
    """Write the documents of a sample for people."""
    from zephon_beam.sources.locators import spell_locator

    write_line(
        f"sample {count(sample['sample'])}: {sample['shard']} row {sample['row']}, "
        f"{count(sample['tokens'])} tokens, {count(sample['padding'])} padding"
    )
    rows = []
    for document in sample["documents"]:
        first, last = document["tokens"]
        output = f", output {document['output']}" if document["output"] else ""
        rows.append(
            (
                f"  {document['dataset']}",
                document["file"],
                spell_locator(document["locator"]) + output,
                f"{first}-{last}" + ("" if document["ends"] else " …"),
                str(document["pass"]),
            )
        )
    write_table(("  data set", "file", "place", "tokens", "pass"), rows)


def _wanted(args: argparse.Namespace) -> tuple[int, int]:
    """Return the range of samples that is asked for."""
    from zephon_beam.errors import RecipeError

    if (args.sample is None) == (args.step is None):
        raise RecipeError(
            "exactly one of --sample and --step must be given, e.g. --sample 1000 or --step 12 "
            "--batch 512"
        )
    if args.sample is not None:
        if args.batch is not None:
            raise RecipeError("--batch must come with --step, got --sample; leave one of them out")
        return args.sample, args.sample + 1
    if args.batch is None or args.batch < 1 or args.step < 0:
        raise RecipeError(
            f"--step must be at least 0 and come with a --batch of at least 1, got --step "
            f"{args.step} --batch {args.batch}; name the global batch size of the training run"
        )
    first = args.start_sample + args.step * args.batch
    return first, first + args.batch
