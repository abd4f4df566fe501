"""Engines that need no other program write the stream of one worker in one process."""

from pathlib import Path

import pytest

from tests.engines.engine_streams import assert_one_tree
from tests.pipelines.small_streams import SmallStream

TWO_WORKERS = "--direct_num_workers=2"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="one worker"),
        pytest.param(["--direct_runner_bundle_repeat=1"], id="every bundle twice"),
        pytest.param(["--direct_running_mode=multi_threading", TWO_WORKERS], id="two threads"),
        pytest.param(["--direct_running_mode=multi_processing", TWO_WORKERS], id="two processes"),
        pytest.param(["--runner=PortableRunner", "--job_endpoint=embed"], id="embedded"),
    ],
)
def test_shuffled_arrivals_in_several_advances(
    expected: SmallStream, tmp_path: Path, options: list[str]
) -> None:
    """One tree, whatever the kind and number of workers."""
    assert_one_tree(expected, tmp_path / "s", options, shuffled=1, advance_bytes=1, advances=2)


def test_the_stream_leaves_documents_out(expected: SmallStream) -> None:
    """Filters take documents from two data sets, so that engines have to agree on them."""
    kept = {name: facts["tokens"] for name, facts in expected.facts["datasets"].items()}
    assert kept["prose"] > 3 * kept["rows"] > 0
