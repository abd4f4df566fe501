"""An engine may take over from another between two advances."""

from pathlib import Path

from tests.engines.engine_streams import ENGINE_MARKS
from tests.pipelines.small_streams import SmallStream, run, tree

pytestmark = ENGINE_MARKS


def test_each_advance_on_another_engine(
    flink_flags: list[str],
    prism_flags: list[str],
    spark_flags: list[str],
    expected: SmallStream,
    tmp_path: Path,
) -> None:
    """In process, Flink, Prism, Spark, and in process again; each goes on from the carry."""
    stream = tmp_path / "s"
    threads = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]
    samples, advances = 0, []
    for options in (threads, flink_flags, prism_flags, spark_flags):
        found = run(
            *(expected.recipe, stream), options=options, advance_bytes=1, until_samples=samples + 1
        )
        samples = found["complete_samples"]
        advances.append(found["advances"])
    assert min(advances) >= 1
    assert not found["finished"]
    assert run(expected.recipe, stream)["finished"]
    assert tree(stream) == expected.tree
