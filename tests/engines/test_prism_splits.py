"""Prism splits bundles that take their time; lanes keep what they have."""

import time
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engine_streams import ENGINE_MARKS, assert_one_tree
from tests.pipelines.small_streams import SmallStream
from transforms import pack_lanes

pytestmark = ENGINE_MARKS


def test_slow_lanes_lose_nothing_to_splits(
    prism_flags: list[str],
    expected: SmallStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two halves of a bundle would run at once, each with the state of before."""
    usual = pack_lanes._PackLane.process

    @wraps(usual)
    def process(self: Any, *args: Any, **others: Any) -> Any:
        time.sleep(0.05)
        yield from usual(self, *args, **others)

    monkeypatch.setattr(pack_lanes._PackLane, "process", process)
    assert_one_tree(expected, tmp_path / "s", prism_flags)
