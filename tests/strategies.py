"""Hypothesis strategies, all in one place."""

import random
from typing import Any

from hypothesis import strategies as st

from tests.lanes import Source, make_source
from zephon_beam.mixing import MixingPhase

SEQ_LEN = 8


EDGES = [0, 1, 2, SEQ_LEN // 2 + 1, SEQ_LEN - 1, SEQ_LEN, SEQ_LEN + 1]
EDGES += [2 * SEQ_LEN, 2 * SEQ_LEN + 1, 10 * SEQ_LEN]
"""Document lengths around every edge of a row of `SEQ_LEN` tokens."""


def sources(max_datasets: int = 3) -> st.SearchStrategy[Source]:
    """Sources of a few data sets with small chunks in parts, some of them empty."""
    return st.builds(_source, st.integers(1, max_datasets), st.integers(0, 2**32))


def _source(datasets: int, seed: int) -> Source:
    """Make a source from a seed, which draws a hundred times faster than nested lists."""
    rng = random.Random(seed)

    def length() -> int:
        return rng.choice(EDGES) if rng.random() < 0.5 else rng.randrange(3 * SEQ_LEN)

    return make_source(
        [
            [
                [[length() for _ in range(rng.randrange(6))] for _ in range(rng.randint(1, 2))]
                for _ in range(rng.randrange(5))
            ]
            for _ in range(datasets)
        ]
    )


@st.composite
def lane_options(draw: st.DrawFn, source: Source) -> dict[str, Any]:
    """Draw every choice that a lane's configuration offers for a source."""
    count = len(source.chunk_counts)
    weights = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count).filter(any))
    phases = [MixingPhase(start=0, weights=tuple(weights))]
    if draw(st.booleans()):
        phases.append(MixingPhase(start=draw(st.integers(1, 12)), weights=tuple(weights[::-1])))
    return {
        "seq_len": SEQ_LEN,
        "phases": tuple(phases),
        "interleave": draw(st.integers(1, 4)),
        "samples_per_shard": draw(st.integers(1, 5)),
        "packing": draw(st.sampled_from(["concat", "best_fit", "first_fit", "best_fit_split"])),
        "open_bins": draw(st.integers(1, 6)),
        "overlong": draw(st.tuples(*[st.sampled_from(["split", "truncate", "drop"])] * count)),
        "unit": draw(st.sampled_from(["tokens", "documents"])),
        "stop_when_exhausted": draw(st.booleans()),
        "max_segments": draw(st.sampled_from([None, 1, 3])),
        "group_of_dataset": draw(st.sampled_from([(0,) * count, tuple(range(count))])),
    }
