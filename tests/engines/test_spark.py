"""Spark writes the stream of one process."""

import threading
import time
from pathlib import Path

import pytest

from tests.engines.engine_streams import ENGINE_MARKS, assert_one_tree, damaged_recipe
from tests.pipelines.small_streams import SmallStream, run
from zephon_beam.errors import BadRecordError

pytestmark = ENGINE_MARKS


def test_several_advances_with_shuffled_arrivals(
    spark_flags: list[str], expected: SmallStream, tmp_path: Path
) -> None:
    """On two cores."""
    assert_one_tree(expected, tmp_path / "s", spark_flags, shuffled=4, advance_bytes=1, advances=2)


def test_what_a_worker_met_is_one_line(
    spark_flags: list[str], expected: SmallStream, tmp_path: Path
) -> None:
    """It comes back through Java as text, and is told as if it had been raised here."""
    recipe = damaged_recipe(expected, tmp_path)
    with pytest.raises(BadRecordError, match=r"part-1\.jsonl.*line 5") as caught:
        run(recipe, tmp_path / "s", options=spark_flags)
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(180)
def test_workers_in_this_process_end_with_their_job(
    spark_flags: list[str], expected: SmallStream, tmp_path: Path
) -> None:
    """However long the engine would keep them: when it lets go, Beam does not listen any more."""
    before = set(threading.enumerate())
    options = [*spark_flags, "--environment_cache_millis=3600000"]
    assert_one_tree(expected, tmp_path / "s", options, advance_bytes=1, advances=2)
    while any(
        thread.name.startswith(("run_worker", "write-behind"))
        for thread in set(threading.enumerate()) - before
    ):
        time.sleep(0.1)
