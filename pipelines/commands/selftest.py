"""`zephon-beam selftest`."""

import argparse
from dataclasses import asdict
from typing import Any

from pipelines.commands.texts import count, write_json, write_line

TAKES_BEAM_OPTIONS = True
_DEFAULT_ENGINES = "direct,direct-repeat,direct-threads,direct-processes,embedded,prism,flink,spark"
_HEADER = ("engine", "arrivals", "advances", "tokens/s", "seconds", "stream digest")
_WIDTHS = (16, 9, 8, 9, 7, 13)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; what is not declared belongs to Beam."""
    parser.epilog = (
        "An engine of your own is used if an option of Beam names it, e.g. --engines flink "
        "--flink_master=HOST:8081, or --engines portable --job_endpoint=HOST:8099; give --folder "
        "where its workers see it. Others are started on this machine."
    )
    parser.add_argument(
        "--engines",
        default=_DEFAULT_ENGINES,
        metavar="NAMES",
        help=f"engines to compare, separated by commas; default: {_DEFAULT_ENGINES}",
    )
    parser.add_argument("--short", action="store_true", help="two ways an engine instead of six")
    parser.add_argument(
        "--install",
        action="store_true",
        help="fetch what engines need into ~/.cache/zephon-beam/engines (Go, Java 17 and Maven "
        "have to be there)",
    )
    parser.add_argument("--folder", metavar="FOLDER", help="for corpus and streams")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Compute one stream in every way; 0 if it is always the same."""
    from pipelines.engines.local import ENGINES
    from pipelines.selftest import differing, run_selftest
    from zephon_beam.checks import nearest
    from zephon_beam.errors import RecipeError

    engines = [name.strip() for name in args.engines.split(",") if name.strip()]
    for name in engines:
        if name not in ENGINES:
            hint = nearest(name, list(ENGINES))
            raise RecipeError(
                f"--engines must be some of {', '.join(ENGINES)}, got {name!r}; nothing was run; "
                f"{f'did you mean {hint}?' if hint else 'correct it'}"
            )
    if not engines:
        raise RecipeError("--engines must name at least one engine, got none; name e.g. direct")
    if not args.json:
        _write_row(_HEADER)
    cells = run_selftest(
        engines,
        folder=args.folder,
        short=args.short,
        install=args.install,
        options=args.beam_args,
        tell=None if args.json else _write_cell,
    )
    wrong = differing(cells)
    digests = {cell.digest for cell in cells if cell.digest}
    if args.json:
        write_json({"equal": not wrong, "cells": [asdict(cell) for cell in cells]})
    else:
        write_line()
        for cell in wrong:
            write_line(f"differs: {_name(cell)}: {cell.error or cell.digest}")
        done = sum(1 for cell in cells if cell.digest)
        if not wrong:
            write_line(f"{done} runs, {len(digests)} stream digest: equal")
    return 1 if wrong or not digests else 0


def _name(cell: Any) -> str:
    order = "as delivered" if cell.arrivals is None else f"shuffled {cell.arrivals}"
    return f"{cell.engine}, arrivals {order}, {cell.advances} advances"


def _write_cell(cell: Any) -> None:
    if cell.unavailable:
        write_line(f"{cell.engine:<{_WIDTHS[0]}}  not available: {cell.unavailable}")
        return
    order = "-" if cell.arrivals is None else f"shuffle {cell.arrivals}"
    if cell.error:
        write_line(f"{cell.engine:<{_WIDTHS[0]}}  {order:<{_WIDTHS[1]}}  failed: {cell.error}")
        return
    speed = count(round(cell.tokens / cell.seconds))
    seconds = f"{cell.seconds:.1f}"
    _write_row((cell.engine, order, count(cell.advances), speed, seconds, cell.digest))


def _write_row(cells: tuple[str, ...]) -> None:
    name, order, *numbers, digest = cells
    spelt = [f"{text:>{width}}" for text, width in zip(numbers, _WIDTHS[2:], strict=False)]
    write_line(f"{name:<{_WIDTHS[0]}}  {order:<{_WIDTHS[1]}}  {'  '.join(spelt)}  {digest}")
