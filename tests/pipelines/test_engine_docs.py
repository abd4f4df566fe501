"""docs/engines.md stays true: its commands can be read, and what it says is set is set."""

import re
import shlex
from argparse import ArgumentParser
from typing import Any

import pytest
from apache_beam.options.pipeline_options import DirectOptions

from pipelines.advance_size import (
    LEAST_BYTES,
    MEMORY_ELSEWHERE,
    MEMORY_SHARE,
    MIB,
    MOST_BYTES_A_WORKER,
)
from pipelines.commands import drain, run, selftest
from pipelines.engine_defaults import STATE_CACHE_MB
from pipelines.engines.local import ENGINES
from pipelines.options import parse_beam_options
from tests.pipelines.small_streams import ROOT
from transforms.pack_lanes import DEFAULT_DRAIN_BYTES
from zephon_beam.recipe_mapping import parse_byte_size

PAGE = (ROOT / "docs" / "engines.md").read_text()
COMMANDS: dict[str, Any] = {"run": run, "selftest": selftest, "drain": drain}


def commands() -> list[list[str]]:
    """Return the words of every command of ours on the page."""
    found = []
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL):
        text = block.replace("docker run --entrypoint zephon-beam IMAGE", "zephon-beam")
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["zephon-beam"]:
                found.append(words[1:])
    return found


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_is_understood(words: list[str]) -> None:
    """By our parser, and what is left by Beam's."""
    parser = ArgumentParser(exit_on_error=False)
    command = COMMANDS[words[0]]
    command.add_arguments(parser)
    args, rest = parser.parse_known_args(words[1:])
    parse_beam_options([word for word in rest if word != "--environment_type=PROCESS"])
    if words[0] == "selftest":
        assert set(args.engines.split(",")) <= set(ENGINES)


def test_sizes_are_as_stated() -> None:
    """The table of defaults, and the rule below it."""
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    share, least, most = re.findall(r"1/(\d+) of .* at least (.*), at most (.*) for", PAGE)[0]
    assert int(share) == MEMORY_SHARE
    assert parse_byte_size("least", least) == LEAST_BYTES
    assert parse_byte_size("most", most) == MOST_BYTES_A_WORKER
    assert f"{MEMORY_ELSEWHERE // (1024 * MIB)} GiB" in PAGE
    assert parse_byte_size("drain", rows["--drain-bytes"].strip()) == DEFAULT_DRAIN_BYTES
    assert int(rows["--max_cache_memory_usage_mb"]) == STATE_CACHE_MB
    workers = parse_beam_options([]).view_as(DirectOptions).direct_num_workers
    assert int(rows["--direct_num_workers"]) == workers


def test_the_self_test_covers_what_is_said() -> None:
    """Engines, and the ways of each."""
    count = len(selftest._DEFAULT_ENGINES.split(","))
    assert f"# {count} engines, on this machine" in PAGE
    assert count >= 6
