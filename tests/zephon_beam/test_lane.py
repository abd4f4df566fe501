"""The lane process: order, accounting and resumption, whatever arrives when."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import (
    QUARANTINED,
    Source,
    draft_bytes,
    make_config,
    make_source,
    restarted,
    run_in_order,
    run_shuffled,
)
from tests.strategies import lane_options, sources
from zephon_beam.lane import LaneProcess
from zephon_beam.lane_state import decode_state, encode_state
from zephon_beam.sequences import encode_part


@given(data=st.data(), source=sources(), seed=st.integers(0, 2**32))
def test_arrival_repetition_cuts_and_restarts_change_no_byte(
    data: st.DataObject, source: Source, seed: int
) -> None:
    """Shards and states equal those of one run in order, for every choice of policies."""
    config = make_config(source, **data.draw(lane_options(source)))
    expected = [draft_bytes(draft) for draft in run_in_order(config, source)]
    assert [draft_bytes(draft) for draft in run_shuffled(config, source, seed)] == expected


@given(data=st.data(), source=sources())
def test_every_lane_state_resumes_to_the_same_rest(data: st.DataObject, source: Source) -> None:
    """From the state after any shard, with everything supplied anew, the rest is the same."""
    config = make_config(source, **data.draw(lane_options(source)))
    drafts = run_in_order(config, source)
    stored = [draft_bytes(draft) for draft in drafts]
    for place, (_, state) in enumerate(stored):
        process = LaneProcess(config, 0, decode_state(state, "state"))
        for part in source.parts:
            process.offer(part)
        assert [draft_bytes(draft) for draft in process.take_shards()] == stored[place + 1 :]


@given(data=st.data(), source=sources())
def test_every_token_is_accounted_for(data: st.DataObject, source: Source) -> None:
    """Read tokens are those in packs, truncated ones and dropped ones, exactly, per data set."""
    options = data.draw(lane_options(source))
    config = make_config(source, **{**options, "stop_when_exhausted": False})
    process = LaneProcess(config, 0)
    for part in source.parts:
        process.offer(part)
    packed = np.zeros(config.dataset_count, np.int64)
    for draft in process.take_shards():
        segments = draft.samples.segments
        np.add.at(packed, segments["source_dataset"], segments["segment_lengths"])
    assert process.ended
    for dataset, saved in enumerate(process.state().datasets):
        counters = saved.counters
        lost = counters.truncated_tokens + counters.dropped_tokens
        assert counters.read_tokens == packed[dataset] + lost
        if all(phase.weights[dataset] for phase in config.phases):
            assert counters.read_tokens == source.tokens(dataset)


@given(data=st.data(), source=sources())
def test_split_documents_are_delivered_whole_and_once(data: st.DataObject, source: Source) -> None:
    """With `split` the segments of all packs hold every token once, in place, cuts linked."""
    options = data.draw(lane_options(source))
    options |= {"overlong": ("split",) * len(source.chunk_counts), "stop_when_exhausted": False}
    del options["phases"]
    seen: dict[int, int] = {}
    for draft in run_in_order(make_config(source, **options), source):
        samples = draft.samples
        for row in range(len(samples)):
            first, last = samples.segment_offsets[row : row + 2]
            for place in range(first, last):
                start = samples.segments["segment_starts"][place]
                length = samples.segments["segment_lengths"][place]
                tokens = samples.tokens[row, start : start + length]
                following = samples.segments["segment_next"][place]
                assert (np.diff(tokens.astype(np.int64)) == 1).all()
                for token in tokens.tolist():
                    assert token not in seen
                    seen[token] = token
                if following >= 0:
                    assert following == tokens[-1] + 1
    assert len(seen) == sum(len(part.tokens) for part in source.parts)


@given(seed=st.integers(0, 2**32), weights=st.lists(st.integers(1, 9), min_size=2, max_size=4))
def test_shares_stay_within_a_few_rows_of_the_weights_at_every_prefix(
    seed: int, weights: list[int]
) -> None:
    """Every prefix of pulls keeps each share, with documents a thousand rows long."""
    seq_len, rng = 8, random.Random(seed)
    documents = [
        [[[rng.choice([1, 3, 7, 9, 500, 1000 * seq_len]) for _ in range(4)]] for _ in range(6)]
        for _ in weights
    ]
    source = make_source(documents)
    config = make_config(
        source,
        weights=weights,
        seq_len=seq_len,
        packing="concat",
        samples_per_shard=1 << 30,
        stop_when_exhausted=True,
    )
    (draft,) = run_in_order(config, source)
    segments = draft.samples.segments
    given = segments["source_dataset"][:, None] == np.arange(len(weights))
    taken = np.cumsum(given * segments["segment_lengths"][:, None], axis=0, dtype=np.int64)
    ideal = taken.sum(axis=1, keepdims=True) * np.array(weights) / sum(weights)
    assert np.abs(taken - ideal).max() <= (len(weights) + 1) * seq_len


@given(data=st.data(), source=sources())
def test_state_is_bounded_whatever_the_progress(data: st.DataObject, source: Source) -> None:
    """A state holds the places of open chunks and at most the tokens of open bins and packs."""
    options = data.draw(lane_options(source))
    config = make_config(source, **options)
    for draft in run_in_order(config, source):
        state = draft.state
        assert all(len(dataset.slots) <= config.interleave for dataset in state.datasets)
        if state.flushed:
            continue
        assert len(state.bins) <= config.group_count * config.open_bins
        assert len(state.packs) <= 2
        bound = (len(state.bins) + len(state.packs)) * config.seq_len
        assert len(state.pieces.tokens) <= bound


def test_a_blocked_lane_names_the_part_it_waits_for_and_takes_nothing_else() -> None:
    """The choice is made before looking at what arrived: other data sets do not step in."""
    source = make_source([[[[4, 4]], [[4, 4]]], [[[4, 4]], [[4, 4]]]])
    config = make_config(source, interleave=1, packing="concat", samples_per_shard=1, seq_len=4)
    process = LaneProcess(config, 0)
    for part in source.parts:
        if part.key.dataset == 1:
            process.offer(part)
    assert list(process.take_shards()) == []
    wanted = process.wanted()
    assert (wanted.dataset, wanted.number, wanted.part) == (0, 0, 0)
    assert len(process.waiting()) == 2


def test_used_up_and_repeated_parts_are_refused() -> None:
    """A part is accepted once while it is needed, and never after it was used up."""
    source = make_source([[[[4]], [[4]]]])
    config = make_config(source, interleave=1, samples_per_shard=1, seq_len=4)
    process = LaneProcess(config, 0)
    assert process.offer(source.parts[0])
    assert not process.offer(source.parts[0])
    list(process.take_shards())
    assert not process.offer(source.parts[0])
    process = restarted(config, process, [encode_part(source.parts[0])])
    assert process.waiting() == []


def test_state_survives_encoding() -> None:
    """Decoding and encoding again gives the same bytes."""
    source = make_source([[[[5, 30, 2]]], [[[7]]]])
    for draft in run_in_order(make_config(source, samples_per_shard=1), source):
        encoded = encode_state(draft.state)
        assert encode_state(decode_state(encoded, "state")) == encoded


def test_a_quarantined_document_keeps_its_place_and_is_counted_where_it_is_passed() -> None:
    """It yields no piece, and the count survives arrivals, restarts and codecs."""
    source = make_source([[[[4, QUARANTINED, 4], [QUARANTINED]], [[4]], [[QUARANTINED, 4]]]])
    config = make_config(source, interleave=1, samples_per_shard=1, seq_len=4)
    drafts = run_in_order(config, source)
    counters = [draft.state.datasets[0].counters for draft in drafts]
    assert [count.documents for count in counters] == [1, 3, 5, 7]
    assert [count.quarantined_documents for count in counters] == [0, 1, 2, 3]
    assert [draft_bytes(draft) for draft in run_shuffled(config, source, 1)] == [
        draft_bytes(draft) for draft in drafts
    ]
