"""How much of the rows is padding, on document lengths as they are: log-normal."""

import numpy as np
import pytest

from tests.lanes import make_config, make_source
from zephon_beam.lane import LaneProcess
from zephon_beam.samples import Samples

SEQ_LEN = 2048


def pack(method: str, lengths: list[int], **changes: object) -> list[Samples]:
    """Pack documents in one lane and return its shards."""
    chunks = [[lengths[first : first + 500]] for first in range(0, len(lengths), 500)]
    source = make_source([chunks])
    config = make_config(
        source, seq_len=SEQ_LEN, packing=method, samples_per_shard=64, interleave=1, **changes
    )
    process = LaneProcess(config, 0)
    for part in source.parts:
        process.offer(part)
    return [draft.samples for draft in process.take_shards()]


def log_normal(count: int) -> list[int]:
    """Return lengths of median 400 and sigma 1.2."""
    drawn = np.random.default_rng(7).lognormal(np.log(400), 1.2, size=count)
    return [max(1, int(length)) for length in drawn]


def padded(samples: Samples) -> np.ndarray:
    """Return the padding of each row, tokens."""
    sums = np.concatenate(([0], np.cumsum(samples.segments["segment_lengths"])))
    return SEQ_LEN - (sums[samples.segment_offsets[1:]] - sums[samples.segment_offsets[:-1]])


@pytest.mark.parametrize(("open_bins", "documents"), [(64, 30_000), (2048, 60_000)])
def test_best_fit_pads_at_most_35_in_ten_thousand_and_drops_nothing(
    open_bins: int, documents: int
) -> None:
    """Rows that were closed before the lane's end, with 64 and 2,048 open bins."""
    lengths = log_normal(documents)
    shards = pack("best_fit", lengths, open_bins=open_bins)
    padding = np.concatenate([padded(samples) for samples in shards])
    assert int((SEQ_LEN - padding).sum()) == sum(lengths)
    # What the last bins lack is the end of the data, not of the method.
    full = padding[:-open_bins]
    assert len(full) > 8 * open_bins
    assert full.sum() <= 0.0035 * SEQ_LEN * len(full)


@pytest.mark.parametrize(("method", "open_at_end"), [("concat", 1), ("best_fit_split", 64)])
def test_cutting_methods_pad_only_the_last_rows_of_a_finite_stream(
    method: str, open_at_end: int
) -> None:
    """Every row but those that were open at the end is full, and no token is lost."""
    lengths = log_normal(5_000)
    padding = np.concatenate([padded(s) for s in pack(method, lengths, open_bins=64)])
    assert int((SEQ_LEN - padding).sum()) == sum(lengths)
    assert not padding[:-open_at_end].any()


@pytest.mark.parametrize("method", ["concat", "best_fit_split"])
@pytest.mark.parametrize("multiple", [16, 128])
def test_segments_apart_cost_cutting_methods_less_than_a_multiple_a_document(
    method: str, multiple: int
) -> None:
    """A cut falls on a multiple, so only the last piece of a document is followed by padding."""
    lengths = log_normal(2_000)
    shards = pack(method, lengths, open_bins=64, segment_multiple=multiple)
    padding = np.concatenate([padded(samples) for samples in shards])
    open_at_end = 1 if method == "concat" else 64
    bound = (multiple - 1) * len(lengths) + open_at_end * SEQ_LEN
    assert sum(lengths) == int((SEQ_LEN - padding).sum())
    assert padding.sum() <= bound
    for samples in shards:
        assert not (samples.segments["segment_starts"] % multiple).any()
        cut = samples.segments["segment_next"] >= 0
        assert not (samples.segments["segment_lengths"][cut] % multiple).any()
