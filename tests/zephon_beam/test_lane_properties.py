"""What must hold for every lane, over all choices at once: 200 cases, 10,000 with `-m long`.

Each case is a whole stream of one to five lanes (see `tests.lane_cases`); its lanes are fed in
random order, with repetitions, cuts and restarts from encoded states, and compared with a run in
order and with a naive lane that shares no code with ours.
"""

import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lane_cases import SUPPLIED_PASSES, LaneCase, make_case, mask_of_tokens
from tests.lanes import draft_bytes, make_config, make_source
from tests.naive_lane import NaiveLane
from zephon_beam.lane import LaneProcess, ShardDraft
from zephon_beam.lane_state import decode_state, encode_state
from zephon_beam.mixing import MixingPhase
from zephon_beam.sequences import PartKey, SequencePart, decode_part, encode_part

SEEDS = st.integers(0, 2**48)


@given(seed=SEEDS)
def test_lanes_hold_what_a_naive_reading_says_whatever_arrives_when(seed: int) -> None:
    """Bytes, rows, labels, counts and bounds of all lanes of a case."""
    check_case(seed)


@pytest.mark.long
@settings(max_examples=10_000)
@given(seed=SEEDS)
def test_ten_thousand_cases_hold_what_a_naive_reading_says(seed: int) -> None:
    """The same, fifty times as often."""
    check_case(seed)


def check_case(seed: int) -> None:
    """Check all lanes of a case."""
    case = make_case(seed)
    naive_lanes = []
    for lane in range(case.config.lanes):
        process, drafts = run_in_order(case, lane)
        expected = [draft_bytes(draft) for draft in drafts]
        assert run_scattered(case, lane, seed + lane) == expected
        naive = NaiveLane(case, lane)
        naive_lanes.append(naive)
        check_rows(case, drafts, process, naive)
        check_counts(process, naive)
        for draft in drafts:
            check_bounds(case, draft)
    check_passes(case, naive_lanes)


def run_in_order(case: LaneCase, lane: int) -> tuple[LaneProcess, list[ShardDraft]]:
    """Offer everything at once."""
    process = LaneProcess(case.config, lane)
    for part in case.parts(lane):
        assert process.offer(part)
    return process, list(process.take_shards())


def run_scattered(case: LaneCase, lane: int, seed: int) -> list[tuple[bytes, bytes]]:
    """Offer parts in any order, some twice, taking shards and starting again now and then."""
    rng = random.Random(seed)
    parts = [encode_part(part) for part in case.parts(lane)]
    arrivals = parts + rng.sample(parts, len(parts) // 3)
    rng.shuffle(arrivals)
    restart = rng.choice([1, 6]) / max(1, len(arrivals))
    process = LaneProcess(case.config, lane)
    waiting: dict[PartKey, SequencePart] = {}
    found = []
    for payload in arrivals:
        part = decode_part(payload)
        if process.offer(part):
            waiting[part.key] = part
        if rng.random() < 0.5:
            for draft in process.take_shards():
                found.append(draft_bytes(draft))
                if rng.random() < 0.2:
                    # Stop in the middle of a drain, with full shards still to come.
                    break
        if rng.random() < restart:
            still = [waiting[key] for key in process.waiting()]
            rng.shuffle(still)
            state = decode_state(encode_state(process.state()), "state")
            process = LaneProcess(case.config, lane, state)
            assert all(process.offer(part) for part in still)
    found += [draft_bytes(draft) for draft in process.take_shards()]
    return found


def check_rows(
    case: LaneCase, drafts: list[ShardDraft], process: LaneProcess, naive: NaiveLane
) -> None:
    """Compare every column of every row with the naive lane's."""
    config = case.config
    rows = iter(naive.rows)
    for draft in drafts:
        samples = draft.samples
        bounds = samples.segment_offsets.tolist()
        for row in range(len(samples)):
            pieces = next(rows)
            mine = slice(bounds[row], bounds[row + 1])
            columns = {name: values[mine].tolist() for name, values in samples.segments.items()}
            assert columns == {
                "segment_starts": naive.starts(pieces),
                "segment_lengths": [len(piece.tokens) for piece in pieces],
                "source_dataset": [piece.document[0] for piece in pieces],
                "source_file": [piece.document[1] for piece in pieces],
                "source_document": [piece.document[2] for piece in pieces],
                "source_output": [0] * len(pieces),
                "source_offset": [piece.offset for piece in pieces],
                "source_pass": [piece.pass_number for piece in pieces],
                "segment_next": [piece.following for piece in pieces],
            }
            tokens = np.full(config.seq_len, config.pad_id, config.token_dtype)
            labels = np.zeros(config.seq_len, np.int64)
            for start, piece in zip(columns["segment_starts"], pieces, strict=True):
                assert start % config.segment_multiple == 0
                end = start + len(piece.tokens)
                tokens[start:end] = piece.tokens
                labels[start:end] = [*piece.tokens[1:], max(piece.following, 0)]
            assert samples.tokens[row].tolist() == tokens.tolist()
            learned = labels > 0
            if config.has_loss_mask:
                learned &= mask_of_tokens(tokens) == 1
                assert samples.loss_mask is not None
                assert samples.loss_mask[row].tolist() == learned.astype(np.uint8).tolist()
            assert samples.valid_tokens[row] == learned.sum()
    left = list(rows)
    if process.ended:
        assert not left
    else:
        assert len(left) == len(process.state().packs) < config.samples_per_shard
    assert process.ended == naive.ended


def check_counts(process: LaneProcess, naive: NaiveLane) -> None:
    """Compare the counters, and that every token read is in a piece, truncated or dropped."""
    taken: Counter[int] = Counter()
    for piece in naive.order:
        taken[piece.document[0]] += len(piece.tokens)
    for dataset, saved in enumerate(process.state().datasets):
        found, expected = saved.counters, naive.counts[dataset]
        assert found.documents == expected.documents
        assert found.quarantined_documents == expected.quarantined
        assert found.truncated_tokens == expected.truncated
        assert found.dropped_tokens == expected.dropped
        lost = expected.truncated + expected.dropped
        assert found.read_tokens == expected.read == taken[dataset] + lost


def check_bounds(case: LaneCase, draft: ShardDraft) -> None:
    """Check that a state is no larger than open chunks, open bins and few packs can be."""
    config, state = case.config, draft.state
    assert all(len(dataset.slots) <= config.interleave for dataset in state.datasets)
    if state.flushed:
        return
    open_bins = 1 if config.packing == "concat" else config.open_bins
    assert len(state.bins) <= config.group_count * open_bins
    assert len(state.packs) <= 2
    rows = len(state.bins) + len(state.packs)
    assert len(state.pieces.tokens) <= rows * config.seq_len
    assert len(state.pieces.lengths) <= rows * config.seq_len


def check_passes(case: LaneCase, lanes: list[NaiveLane]) -> None:
    """Check that lanes that ended gave each pass of each document once, labels included.

    Data sets whose weight is 0 in some phase may never be read to their end, and with `stop` none.
    """
    config = case.config
    if config.stop_when_exhausted or not all(lane.ended for lane in lanes):
        return
    labels: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for lane in lanes:
        for row in lane.rows:
            for piece in row:
                following = [piece.following] if piece.following >= 0 else []
                labels[(*piece.document, piece.pass_number)] += piece.tokens[1:] + following
    for dataset, chunk_list in enumerate(case.chunks):
        if not all(phase.weights[dataset] for phase in config.phases):
            continue
        documents = sum(len(part) for chunk in chunk_list for part in chunk)
        passes = case.passes[dataset]
        assert passes is not None or not chunk_list
        assert sum(lane.counts[dataset].documents for lane in lanes) == documents * (passes or 0)
        for chunk, parts in enumerate(chunk_list):
            for place, length in enumerate(length for part in parts for length in part):
                kept = kept_tokens(case, dataset, length)
                expected = case.tokens_of((dataset, chunk, place), kept)[1:]
                for number in range(passes or SUPPLIED_PASSES):
                    assert sorted(labels[dataset, chunk, place, number]) == expected


def kept_tokens(case: LaneCase, dataset: int, length: int) -> int:
    """Return how many tokens of a document are delivered."""
    if length <= case.config.seq_len or case.config.overlong[dataset] == "split":
        return length
    return case.config.seq_len if case.config.overlong[dataset] == "truncate" else 0


def test_shares_hold_at_every_prefix_beside_documents_of_a_million_tokens() -> None:
    """Weights of twelve digits, a tiny one and none at all: exact to a few rows, in integers."""
    weights = [700_000_000_001, 299_999_999_998, 1, 0]
    seq_len, million = 512, 10**6
    source = make_source(
        [
            [[[million, 3, 700]], [[50] * 400], [[million + 1]]],
            [[[900] * 60], [[10**5, 1]], [[million]]],
            [[[400, 5 * million]], [[7]], [[1]]],
            [[[9, 9]], [[9]], [[9]]],
        ]
    )
    config = make_config(
        source,
        phases=(MixingPhase(start=0, weights=tuple(weights)),),
        seq_len=seq_len,
        packing="concat",
        samples_per_shard=1 << 30,
        stop_when_exhausted=True,
    )
    process = LaneProcess(config, 0)
    for part in source.parts:
        process.offer(part)
    (draft,) = process.take_shards()
    segments = draft.samples.segments
    taken, whole = [0] * len(weights), sum(weights)
    for dataset, length in zip(
        segments["source_dataset"].tolist(), segments["segment_lengths"].tolist(), strict=True
    ):
        taken[dataset] += length
        for mine, weight in zip(taken, weights, strict=True):
            off = abs(mine * whole - sum(taken) * weight)
            assert off <= (len(weights) + 1) * seq_len * whole
    assert sum(taken) > 2 * million
    assert taken[2] == 400
    assert taken[3] == 0
