"""docs/trainers.md stays true: its example runs and what it names exists."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.streams import random_lanes, write_stream
from zephon_beam.formats import FORMATS
from zephon_beam.reader import StreamReader

TRAINERS = (Path(__file__).parents[1] / "docs" / "trainers.md").read_text()


def test_every_format_is_listed_and_no_other() -> None:
    """In the table of trainers."""
    table = TRAINERS[: TRAINERS.index("Each format builds")]
    named = set(re.findall(r"(?:format=\"|or `)(\w+)[\"`]", table))
    assert named == set(FORMATS)


def test_the_numpy_example_gives_the_mean_loss_on_any_number_of_ranks(tmp_path: Path) -> None:
    """As it stands: ranks' sums add up to the mean over the labels of a step."""
    stream = write_stream(tmp_path, random_lanes([40, 60], seed=2))
    (code,) = re.findall(r"```python\n(.*?)```", TRAINERS, re.DOTALL)
    code = code.replace("/data/streams/web-code", stream.uri).replace("range(100)", "range(4)")
    code = code.replace("global_batch_size=512", "global_batch_size=21")

    def model(_: Any, labels: Any) -> Any:
        return np.where(labels == -100, 0, labels % 1000)

    means = []
    for world in (1, 2, 5):
        sums = np.zeros(4)
        for rank in range(world):
            losses: list[float] = []
            names = {
                "rank": rank,
                "world": world,
                "model": model,
                "all_reduce_and_update": losses.append,
            }
            exec(compile(code, "trainers.md", "exec"), names)
            sums += losses
        means.append(sums)
    labels = [
        b["labels"] for b in StreamReader(stream.uri, global_batch_size=21, micro_batch_size=21)
    ]
    for step in range(4):
        counted = labels[step][labels[step] != -100]
        for sums in means:
            np.testing.assert_allclose(sums[step], np.mean(counted % 1000))
