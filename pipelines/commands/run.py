"""`zephon-beam run RECIPE --stream URI`."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from pipelines.commands.progress import Bar
from pipelines.commands.texts import (
    count,
    percent,
    write_facts,
    write_json,
    write_line,
    write_table,
)

TAKES_BEAM_OPTIONS = True
_LINE_SECS = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; what is not declared belongs to Beam."""
    parser.epilog = (
        "Every other option goes to Apache Beam, e.g. --runner FlinkRunner; put RECIPE before "
        "them. Running again goes on with the stream; running it when it is complete does nothing."
    )
    parser.add_argument("recipe", metavar="RECIPE", help="recipe file")
    parser.add_argument("--stream", metavar="URI", required=True, help="where the stream is kept")
    parser.add_argument(
        "--until-samples", type=int, metavar="N", help="stop with at least N complete samples"
    )
    parser.add_argument(
        "--until-tokens", type=int, metavar="N", help="the same, in tokens of whole rows"
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="keep the stream ahead of the trainers that read it, until it is stopped",
    )
    parser.add_argument(
        "--endless",
        action="store_true",
        help="with --follow: by one streaming job, where the engine is known to carry it: Prism",
    )
    parser.add_argument(
        "--lookahead",
        type=int,
        metavar="N",
        help="with --follow: samples ahead of the slowest trainer; default: 4 shards of each lane",
    )
    parser.add_argument(
        "--retain",
        default="all",
        metavar="WHAT",
        help="with --follow: keep all, or pins: delete what no trainer's checkpoint needs",
    )
    parser.add_argument(
        "--advance-bytes",
        metavar="SIZE",
        help="source read by one Beam job, e.g. 64MiB; default: 1/16 of the memory of the workers, "
        "from 16MiB to 256MiB for each of them",
    )
    parser.add_argument(
        "--drain-bytes",
        metavar="SIZE",
        help="tokenized data that gathers for a lane before it packs; default: 16MiB",
    )
    parser.add_argument(
        "--backend",
        default="auto",
        metavar="NAME",
        help="library that encodes text: auto, hf, fastokens or tiktoken; never changes a byte",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Refuse what can be refused without Beam, then run and print the facts."""
    from pipelines.recipe_file import load_recipe
    from zephon_beam.errors import RecipeError
    from zephon_beam.limits import check_following, resolve_until_samples
    from zephon_beam.recipe_mapping import parse_byte_size
    from zephon_beam.store.base import open_store

    sizes: dict[str, Any] = {
        name: parse_byte_size(f"--{name.replace('_', '-')}", value)
        for name in ("advance_bytes", "drain_bytes")
        if (value := getattr(args, name)) is not None
    }
    open_store(args.stream)
    try:
        recipe = load_recipe(args.recipe)
    except RecipeError as error:
        if args.beam_args and isinstance(error.__cause__, OSError):
            raise RecipeError(f"{error}; options of Beam must come after it") from error
        raise
    limits = {"until_samples": args.until_samples, "until_tokens": args.until_tokens}
    following: dict[str, Any] = {
        name: getattr(args, name) for name in ("follow", "endless", "lookahead", "retain")
    }
    check_following(**following)
    resolve_until_samples(recipe, **limits, follow=args.follow)

    from pipelines.run import run_stream

    bar = Bar("samples")
    tell = _told_by(bar) if sys.stderr.isatty() else _told_in_lines()

    try:
        facts = run_stream(
            args.recipe,
            args.stream,
            **limits,
            **sizes,
            **following,
            backend=args.backend,
            options=args.beam_args,
            progress=tell,
        )
    finally:
        bar.close()
    if args.json:
        write_json(facts)
    else:
        _write_text(facts)
        _write_remark(facts, args.until_samples)
        _write_quarantined(facts, args.stream)
    return 0


def _told_by(bar: Bar) -> Callable[[Any], None]:
    """Return what draws the samples that exist, and how far the running advance is."""

    def tell(done: Any) -> None:
        running = done.supplied is not None
        note = f"advance {done.advance}: {percent(done.supplied, 0)} read" if running else ""
        wanted = max(done.samples, done.until_samples) if done.until_samples else None
        bar.show(done.samples, wanted, note)

    return tell


def _told_in_lines() -> Callable[[Any], None]:
    """Return what writes a line for each job, and one now and then within a long one."""
    told = [0.0]

    def tell(done: Any) -> None:
        if done.running and done.seconds - told[0] < _LINE_SECS:
            return
        told[0] = done.seconds
        sys.stderr.write(_spell(done))

    return tell


def _spell(done: Any) -> str:
    """Tell how far a run is in a line, for logs."""
    if done.supplied is not None:
        return (
            f"advance {done.advance}: {percent(done.supplied, 0)} read, {count(done.samples)} "
            f"samples after {done.seconds:.1f} s\n"
        )
    wanted = f", {count(done.until_samples)} wanted" if done.until_samples else ""
    job = "endless job" if done.endless else f"advance {done.advance}"
    return (
        f"{job}: {count(done.complete_samples)} samples complete{wanted}, after "
        f"{done.seconds:.1f} s\n"
    )


def _write_remark(facts: dict[str, Any], until_samples: int | None) -> None:
    """Say what the figures alone would leave open."""
    if until_samples and facts["finished"] and facts["complete_samples"] < until_samples:
        write_line(f"the sources are used up: {count(until_samples)} samples were wanted")
    elif not facts["advances"]:
        write_line("nothing was left to do")


def _write_quarantined(facts: dict[str, Any], stream: str) -> None:
    """Say that the samples lack documents, and where to look."""
    found = {name: entry["quarantined"] for name, entry in facts["datasets"].items()}
    if any(found.values()):
        each = ", ".join(f"{count(number)} of {name}" for name, number in found.items() if number)
        write_line(f"documents set aside: {each}; see {stream.rstrip('/')}/quarantine")


def _write_text(facts: dict[str, Any]) -> None:
    samples = f"{count(facts['samples'])}, complete: {count(facts['complete_samples'])}"
    write_facts(
        {
            "samples": samples + (", finished" if facts["finished"] else ""),
            "tokens": count(facts["tokens"]),
            "tokens/s": count(round(facts["tokens_per_second"])),
            "advances": count(facts["advances"]),
        }
    )
    write_line()
    write_table(
        ("data set", "share", "tokens", "truncated", "dropped"),
        [
            (
                name,
                percent(entry["share"]),
                *(count(entry[key]) for key in ("tokens", "truncated_tokens", "dropped_tokens")),
            )
            for name, entry in facts["datasets"].items()
        ],
    )
