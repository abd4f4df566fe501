"""A stream that the first version of the stored formats began is read, verified and finished.

`tests/golden/version_1` holds what that version wrote of the golden stream when it had made two
advances of it. The folder is never written anew: it is what users have.
"""

import shutil
from pathlib import Path

import numpy as np

from pipelines.run import run_stream
from tests.pipelines.small_streams import tree
from tests.pipelines.test_golden_stream import FINGERPRINT, RECIPE, STREAM, TREE
from zephon_beam.reader import StreamReader
from zephon_beam.verification import verify_stream

VERSION_1 = RECIPE.parent / "version_1"


def test_a_stream_of_version_1_is_read_and_verified() -> None:
    """Without writing to it; its samples are those that this version makes."""
    report = verify_stream(str(VERSION_1))
    assert report.faults == ()
    reader = StreamReader(str(VERSION_1), global_batch_size=4, micro_batch_size=4, timeout=0)
    steps = [next(reader) for _ in range(8)]
    assert reader.state_dict()["fingerprint"] == FINGERPRINT
    ids = np.concatenate([step["sample_ids"] for step in steps])
    assert sorted(ids.tolist()) == list(range(32))


def test_a_run_goes_on_with_a_stream_of_version_1(tmp_path: Path) -> None:
    """From its carries, to the bytes that a stream of this version has."""
    stream = tmp_path / "stream"
    shutil.copytree(VERSION_1, stream)
    facts = run_stream(RECIPE, stream)
    assert facts["finished"]
    assert verify_stream(str(stream)).stream_digest == STREAM
    assert tree(stream) == TREE


def test_a_run_goes_on_from_lane_states_of_version_1(tmp_path: Path) -> None:
    """When its carries and plans are lost."""
    stream = tmp_path / "stream"
    shutil.copytree(VERSION_1, stream)
    shutil.rmtree(stream / "carry")
    shutil.rmtree(stream / "advances")
    assert run_stream(RECIPE, stream)["finished"]
    assert tree(stream) == TREE
