"""Documents at every edge of a row, through every packer and every policy for long ones."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.lanes import draft_bytes, make_config, make_source, run_in_order, run_shuffled
from zephon_beam.lane import LaneProcess

METHODS = ["concat", "best_fit", "first_fit", "best_fit_split"]
POLICIES = ["split", "truncate", "drop"]
SEQ_LENS = [1, 3, 64, 65]


def shapes(size: int) -> dict[str, list[int]]:
    """Return lengths of documents around a row of `size` tokens."""
    return {
        "nothing": [],
        "one_empty": [0],
        "one_token": [1],
        "only_end_of_document": [1, 1, 1],
        "all_empty": [0] * 50,
        "one_less": [max(0, size - 1)],
        "exact": [size],
        "one_more": [size + 1],
        "two_rows": [2 * size],
        "two_rows_and_one": [2 * size + 1],
        "thousand_rows": [1000 * size],
        "one_document": [size // 2 + 1],
        "many_just_over_half": [size // 2 + 1] * 40,
        "one_long_among_short": [1] * 30 + [100 * size + 1] + [1] * 30,
        "mixed_with_empty": [0, size, 0, 0, 1, 2 * size + 1, 0],
        "every_length": list(range(2 * size + 2))[:140],
    }


@pytest.mark.parametrize("overlong", POLICIES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", SEQ_LENS)
def test_edge_documents_are_delivered_once_in_place(method: str, overlong: str, size: int) -> None:
    """Every shape gives whole rows that hold exactly what the policy keeps, each token once."""
    for shape, lengths in shapes(size).items():
        check_shape(shape, lengths, method, overlong, size)


def check_shape(shape: str, lengths: Sequence[int], method: str, overlong: str, size: int) -> None:
    """Run the documents as three parts of a chunk and one more, alone and beside another set."""
    source = make_source([[[lengths[0::3], lengths[1::3], lengths[2::3]]], [[[size, 1]]]])
    config = make_config(
        source,
        seq_len=size,
        packing=method,
        overlong=(overlong,) * 2,
        open_bins=3,
        samples_per_shard=7,
        interleave=2,
    )
    drafts = run_in_order(config, source)
    found: list[int] = []
    for draft in drafts:
        samples = draft.samples
        counts = np.diff(samples.segment_offsets)
        assert (counts > 0).all(), shape
        rows = np.repeat(np.arange(len(samples)), counts)
        places = zip(
            rows.tolist(),
            samples.segments["segment_starts"].tolist(),
            samples.segments["segment_lengths"].tolist(),
            strict=True,
        )
        for row, start, length in places:
            assert 0 < length <= size - start, shape
            found += samples.tokens[row, start : start + length].tolist()
        assert samples.tokens.shape == (len(samples), size)
    expected = []
    for part in source.parts:
        for first, last in zip(part.offsets[:-1], part.offsets[1:], strict=True):
            tokens = part.tokens[first:last].tolist()
            if len(tokens) > size and overlong != "split":
                tokens = tokens[:size] if overlong == "truncate" else []
            expected += tokens
    assert sorted(found) == expected, shape
    assert [draft_bytes(draft) for draft in run_shuffled(config, source, 1)] == [
        draft_bytes(draft) for draft in drafts
    ], shape


@pytest.mark.parametrize("method", METHODS)
def test_a_lane_without_a_token_ends_without_a_shard(method: str) -> None:
    """Whatever was read is counted; no row of padding is made."""
    for datasets in ([[]], [[[[]]]], [[[[0, 0]], [[0]]]], [[], [[[0]]]]):
        source = make_source(datasets)
        process = LaneProcess(make_config(source, packing=method), 0)
        for part in source.parts:
            process.offer(part)
        assert list(process.take_shards()) == []
        assert process.ended
        assert process.samples == 0
        documents = sum(saved.counters.documents for saved in process.state().datasets)
        assert documents == sum(len(part) for part in source.parts)
