"""Key groups of endless jobs on Flink; what they cost is seen in the test of flat memory."""

import pytest
from apache_beam.options.pipeline_options import FlinkRunnerOptions

from pipelines.engines.flink_state import few_key_groups
from pipelines.options import parse_beam_options

UNSET = -1


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--runner=FlinkRunner", "--parallelism=6"], 6),
        (["--runner=FlinkRunner", "--parallelism=6", "--max_parallelism=64"], 64),
        (["--runner=FlinkRunner"], UNSET),
        (["--runner=PrismRunner", "--parallelism=6"], UNSET),
    ],
)
def test_an_endless_job_has_a_key_group_a_task(flags: list[str], expected: int) -> None:
    """Unless the user says how many, or the number of tasks is the cluster's choice."""
    options = parse_beam_options(flags)
    view = options.view_as(FlinkRunnerOptions)
    before = view.max_parallelism
    with few_key_groups(options):
        assert options.view_as(FlinkRunnerOptions).max_parallelism == expected
        assert options.get_all_options()["max_parallelism"] == expected
    assert view.max_parallelism == before
