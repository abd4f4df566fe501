"""A flex template of Dataflow: its parameters become the command line of `run`.

Google's launcher stores what is built here and submits it, once, after this program has ended. So a
launch is one advance of the stream, and the next launch goes on after it.
"""

import argparse
from collections.abc import Sequence

from pipelines.commands.run import add_arguments
from pipelines.main import main

RECIPE = "recipe"
"""The parameter that is the command's argument."""


def launch(flags: Sequence[str]) -> int:
    """Run the command that a template's parameters stand for, and return its exit status.

    Args:
        flags: `--name=value` for each parameter and each option that the launcher adds, among them
            `--template_location`.
    """
    return main(command_line(flags))


def command_line(flags: Sequence[str]) -> list[str]:
    """Return the words of the command: the recipe first, our options with hyphens.

    Names of parameters cannot have hyphens, while options of `run` do; those of Beam do not.
    """
    own = run_parameters()
    recipe: list[str] = []
    rest: list[str] = []
    for flag in flags:
        name, equals, value = flag.removeprefix("--").partition("=")
        if name == RECIPE:
            recipe = [value]
        else:
            rest.append(f"{own.get(name, '--' + name)}{equals}{value}")
    return ["run", *recipe, *rest]


def run_parameters() -> dict[str, str]:
    """Return the options of `run` by the names that parameters have: {until_samples: --until-…}."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    return {
        action.dest: action.option_strings[0] for action in parser._actions if action.option_strings
    }
