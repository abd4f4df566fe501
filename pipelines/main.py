"""The command line `zephon-beam`: finds the command, turns errors into one line and a status.

Exit status: 0 done; 1 the stream or the data is at fault; 2 the recipe or the command is; 130
interrupted. Nothing of ours is imported before `console` has made the import path safe, and
Apache Beam only when something runs.
"""

import argparse
import io
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

PROGRAM = "zephon-beam"
COMMANDS = {
    "run": "compute a stream from a recipe, or go on with it",
    "demo": "build a small stream and read it, to see how it works",
    "inspect": "sum up a stream: samples, tokens, padding, shares",
    "diff": "find the first sample in which two streams differ, and why",
    "trace": "say which documents a sample or a step holds",
    "fork": "begin a new stream with a new recipe where another one is",
    "drain": "let an endless job commit what it was supplied with, and end",
    "gc": "delete the shards that no trainer's checkpoint needs",
    "verify": "find every fault of a stream and print its digest",
    "doctor": "look for what a machine, a recipe or a place for a stream lacks",
    "selftest": "compute one stream with several engines and compare them",
}

_INTERRUPTED = 130
_BEAM_LOOK_ALIKES = ("--streaming",)
"""Options of Beam that are spelt almost like one of ours."""
_NO_INTEGER = re.compile(r"argument (\S+): invalid int value: (.*)")
"""What argparse says."""


def console() -> None:
    """Run as the installed program; never returns."""
    _leave_working_directory()
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone; keep the interpreter from complaining at exit.
        _silence(1)
        status = 1
    if status == _INTERRUPTED:
        # Threads of workers are still at work, and complain of an interpreter that ends.
        _silence(2)
    sys.exit(status)


def _silence(descriptor: int) -> None:
    """Let nobody read what is written to standard output or error from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; None: those of the process.

    Returns:
        The exit status. Errors that users can act on are one line on standard error; any other
        exception is a defect and is raised.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with _noted_interrupts() as interrupts:
        try:
            return _run_or_complain(words, interrupts)
        except KeyboardInterrupt:
            pass
        except Exception:
            # Beam turns an interrupt that meets a worker into an error of that worker.
            if not interrupts:
                raise
    _complain("interrupted; the stream is intact, and the same command goes on with it")
    return _INTERRUPTED


class _UsageError(Exception):
    """The command line cannot be understood."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        number = _NO_INTEGER.fullmatch(message)
        if number is not None:
            message = f"{number[1]} must be an integer, got {number[2]}; write digits only"
        raise _UsageError(f"{message}; see {self.prog} --help")

    def flags(self) -> list[str]:
        """Return every spelling of every option."""
        return [flag for action in self._actions for flag in action.option_strings]


class _ShowVersion(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version(PROGRAM)
        except PackageNotFoundError:
            found = "(not installed)"
        sys.stdout.write(f"{PROGRAM} {found}\n")
        parser.exit()


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Note Ctrl-C, and keep workers from logging what it does to them."""
    noted: list[int] = []

    def note(number: int, _frame: Any) -> NoReturn:
        noted.append(number)
        logging.disable(logging.CRITICAL)
        sys.stderr = _Nowhere()
        raise KeyboardInterrupt

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    usual = usual and threading.current_thread() is threading.main_thread()
    loud = sys.stderr
    if usual:
        signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if noted:
            logging.disable(logging.NOTSET)
            sys.stderr = loud


class _Nowhere(io.TextIOBase):
    """Takes what threads print that are not done yet, and drops it."""

    def write(self, text: str) -> int:
        return len(text)


def _run_or_complain(words: list[str], interrupts: Sequence[int]) -> int:
    from zephon_beam.errors import ZephonBeamError

    try:
        return _run_command(words)
    except _UsageError as error:
        _complain(f"error: {error}")
        return 2
    except ZephonBeamError as error:
        if interrupts or "--traceback" in words:
            raise
        _complain(f"error: {error}")
        return error.exit_status


def _run_command(words: list[str]) -> int:
    parser = _Parser(
        prog=PROGRAM,
        description="Deterministic training data for foundation models, computed by Apache Beam.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)
    for name, text in COMMANDS.items():
        commands.add_parser(
            name, help=text, description=f"{text.capitalize()}.", allow_abbrev=False
        )
    if not words:
        parser.error(f"a command must be given, one of {', '.join(COMMANDS)}")
    command = words[0]
    try:
        if command in COMMANDS:
            return _execute(command, commands.choices[command], words[1:])
        if command.startswith("-"):
            parser.parse_args(words)
    except SystemExit as exit_request:
        return int(exit_request.code or 0)
    hint = get_close_matches(command, COMMANDS, n=1, cutoff=0.5)
    repair = f"did you mean {hint[0]!r}?" if hint else f"see {PROGRAM} --help"
    raise _UsageError(f"command must be one of {', '.join(COMMANDS)}, got {command!r}; {repair}")


def _execute(command: str, parser: Any, words: list[str]) -> int:
    module = import_module(f"pipelines.commands.{command}")
    module.add_arguments(parser)
    parser.add_argument("--traceback", action="store_true", help="show where an error was raised")
    args, rest = parser.parse_known_args(words)
    _check_rest(parser, rest, takes_beam_options=getattr(module, "TAKES_BEAM_OPTIONS", False))
    args.beam_args = rest
    status: int = module.execute(args)
    return status


def _check_rest(parser: _Parser, rest: Sequence[str], *, takes_beam_options: bool) -> None:
    """Refuse what no option takes, and what is a misspelling rather than an option of Beam."""
    takes_value = False
    for word in rest:
        if not word.startswith("-"):
            if not takes_value:
                parser.error(f"unexpected argument {word!r}")
            takes_value = False
            continue
        name = word.partition("=")[0]
        cutoff = 0.8 if takes_beam_options else 0.5
        spelt = name.replace("_", "-")
        hint = get_close_matches(spelt, parser.flags(), n=1, cutoff=cutoff)
        if name in _BEAM_LOOK_ALIKES and takes_beam_options:
            hint = []
        if hint or not takes_beam_options:
            repair = f", did you mean {hint[0]}?" if hint else ""
            parser.error(f"unknown flag {name!r}{repair}")
        takes_value = takes_beam_options and "=" not in word


def _complain(text: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {' '.join(text.split())}\n")


def _leave_working_directory() -> None:
    """Take the working directory off the import path, here and in processes started later.

    A user's folder may hold a `transforms` or `pipelines` of its own; it must not shadow ours. Only
    when the working directory is where this package itself lies does it stay, by its full name.
    """
    own = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    here = os.path.realpath(os.curdir)
    instead = [own] if here == own else []

    def safe(entries: Sequence[str]) -> list[str]:
        kept = [
            instead if os.path.realpath(entry or os.curdir) == here else [entry]
            for entry in entries
        ]
        return [entry for group in kept for entry in group]

    sys.path[:] = safe(sys.path)
    inherited = os.environ.get("PYTHONPATH", "")
    entries = safe(inherited.split(os.pathsep)) if inherited else []
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(instead + entries))
    os.environ["PYTHONSAFEPATH"] = "1"


if __name__ == "__main__":
    console()
