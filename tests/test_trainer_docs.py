"""docs/trainers.md stays true: its example runs and what it names exists."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.streams import random_lanes, write_stream
from zephon_beam.formats import FORMATS
from zephon_beam.reader import StreamReader

ROOT = Path(__file__).parents[1]
TRAINERS = (ROOT / "docs" / "trainers.md").read_text()


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


_JAX = """
    import sys
    from itertools import islice
    import numpy as np
    code, uri, count = sys.argv[1:]
    import jax
    assert jax.device_count() == 4, jax.devices()
    kept = []

    def train_step(arrays):
        kept.append(arrays)
        assert all(len(array.addressable_shards) == 4 for array in arrays.values())

    exec(compile(code, "trainers.md", "exec"))
    from zephon_beam.reader import StreamReader

    expected = list(StreamReader(uri, global_batch_size=64, micro_batch_size=32))
    assert len(kept) == len(expected) == int(count), (len(kept), len(expected))
    for arrays, batch in zip(kept, expected, strict=True):
        assert sorted(arrays) == ["input_ids", "labels", "position_ids", "segment_ids"]
        for key, array in arrays.items():
            np.testing.assert_array_equal(np.asarray(array), batch[key], err_msg=key)
"""


def test_the_jax_example_keeps_what_it_was_given(tmp_path: Path) -> None:
    """On four devices of this host, in a process of its own, with every batch kept to the end."""
    pytest.importorskip("jax", reason="jax is not installed")
    lanes = random_lanes([700, 500], seed=2, seq_len=128)
    stream = write_stream(tmp_path, lanes, seq_len=128, samples_per_shard=64)
    (code,) = re.findall(r"```py\n(import jax\n.*?)```", TRAINERS, re.DOTALL)
    code = code.replace("/data/streams/web-code", stream.uri)
    code = code.replace("global_batch_size=512", "global_batch_size=64")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_JAX), code, stream.uri, str(2 * -(-1200 // 64))],
        check=True,
        cwd=ROOT,
        env={**os.environ, **flags},
        timeout=300,
    )
