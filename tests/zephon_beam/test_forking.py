"""What must hold of a fork, over all choices of two recipes: 200 cases, more with `-m long`.

A case is a whole stream in memory (see `tests.lane_cases`), which is cut at some sample and goes on
under another recipe: other weights, rows, packing, policies, data sets and tokens.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lane_cases import SUPPLIED_PASSES, Document, LaneCase, make_case
from tests.lanes import make_config, make_source
from zephon_beam.chunk_order import ChunkOrder
from zephon_beam.errors import RecipeError
from zephon_beam.forking import Losses, Standing, count_losses, fork_lane, standing
from zephon_beam.kept_datasets import DatasetFork
from zephon_beam.lane import LaneProcess, ShardDraft
from zephon_beam.lane_config import LaneConfig
from zephon_beam.lane_state import LaneState, decode_state, encode_state
from zephon_beam.mixing import MixingPhase
from zephon_beam.origin import states_digest
from zephon_beam.sample_order import SampleOrder
from zephon_beam.samples import Samples

SEEDS = st.integers(0, 2**48)
Pieces = dict[tuple[int, int, int, int], list[tuple[int, list[int], int]]]
"""(offset, tokens, next) of every piece by (data set, file, document, pass)."""


@given(seed=SEEDS)
def test_a_fork_repeats_and_misses_no_document_of_a_pass(seed: int) -> None:
    """Old rows up to the sample, and the fork's, hold each document of each pass exactly once."""
    check_case(seed)


@pytest.mark.long
@settings(max_examples=5_000)
@given(seed=SEEDS)
def test_five_thousand_forks_repeat_and_miss_no_document(seed: int) -> None:
    """The same, many times as often."""
    check_case(seed)


@dataclass(frozen=True)
class Fork:
    """A stream that was cut, and the one that goes on."""

    older: LaneCase
    newer: LaneCase
    forks: list[DatasetFork]
    before: Pieces
    """In rows of the older stream before the sample."""
    after: Pieces
    """In rows of the fork."""
    starts: list[LaneState]
    standings: list[Standing]
    ends: list[LaneState]


def check_case(seed: int) -> None:
    """Fork one stream and look at every token of both."""
    rng = random.Random(seed)
    older = finite_passes(make_case(seed), seed, rng)
    forks = draw_forks(older, rng)
    newer = draw_newer(older, forks, seed, rng)
    fork = run_fork(older, newer, forks, rng)
    losses = count_losses(fork.standings, forks, older.config.dataset_count)
    for dataset, choice in enumerate(forks):
        if choice.older is None:
            check_anew(fork, dataset)
        elif choice.dropped:
            check_other_tokens(fork, dataset, choice.older, losses)
        else:
            check_kept(fork, dataset, choice.older)
    check_account(fork)


def finite_passes(case: LaneCase, seed: int, rng: random.Random) -> LaneCase:
    """Draw the passes anew, none without end; every data set is read to its end."""
    passes = [rng.randint(1, SUPPLIED_PASSES) for _ in case.passes]
    return with_passes(case, passes, seed)


def with_passes(case: LaneCase, passes: list[int], seed: int, **changes: Any) -> LaneCase:
    """Return a case whose data sets are read so often, with the same order of chunks."""
    orders = [
        None
        if order is None
        else ChunkOrder(
            seed=seed,
            dataset=order._dataset,
            chunk_count=order._chunk_count,
            lanes=case.config.lanes,
            shuffle=order._shuffle,
            passes=number,
        )
        for order, number in zip(case.orders, passes, strict=True)
    ]
    totals = tuple(len(chunks) * number for chunks, number in zip(case.chunks, passes, strict=True))
    count = len(totals)
    weights = tuple(weight or 1 for weight in case.config.phases[0].weights)
    phases = [replace(phase, weights=weights) for phase in case.config.phases]
    config = replace(
        case.config,
        chunk_totals=totals,
        phases=tuple(phases),
        stop_when_exhausted=False,
        fingerprint=f"{count:032x}",
        **changes,
    )
    return replace(case, config=config, passes=list(passes), orders=orders)


def draw_forks(older: LaneCase, rng: random.Random) -> list[DatasetFork]:
    """Choose data sets of the older stream in any order, and new ones among them."""
    count = older.config.dataset_count
    kept = rng.sample(range(count), rng.randint(1, count))
    has_new_tokens = rng.random() < 0.3
    forks = [
        DatasetFork(name=str(place), older=place, dropped="other" if has_new_tokens else "")
        for place in kept
    ]
    for number in range(rng.choice([0, 0, 1, 2])):
        forks.insert(rng.randint(0, len(forks)), DatasetFork(name=f"n{number}", older=None))
    return forks


def draw_newer(
    older: LaneCase, forks: list[DatasetFork], seed: int, rng: random.Random
) -> LaneCase:
    """Draw a recipe that goes on with the data sets of an older one."""
    other = make_case(seed + 1)
    place = 0
    chunks, first_tokens, orders, passes = [], {}, [], []
    for dataset, fork in enumerate(forks):
        source = older if fork.older is not None else other
        if fork.older is None:
            place = rng.randrange(other.config.dataset_count)
        origin = place if fork.older is None else fork.older
        own = source.chunks[origin]
        if fork.dropped:
            own = [[[other_length(n) for n in part] for part in chunk] for chunk in own]
        chunks.append(own)
        first_tokens |= renumbered(source, origin, dataset, shift=1 if fork.dropped else 0)
        orders.append(
            ChunkOrder(
                seed=seed,
                dataset=fork.name,
                chunk_count=len(own),
                lanes=older.config.lanes,
                shuffle=True,
                passes=1,
            )
            if fork.older is None and own
            else source.orders[origin]
            if fork.older is not None
            else None
        )
        least = older.passes[fork.older] if fork.older is not None else 1
        passes.append(rng.randint(least or 1, SUPPLIED_PASSES))
    count = len(forks)
    config = other.config
    kept = {
        "lanes": older.config.lanes,
        "token_dtype": older.config.token_dtype,
        "has_loss_mask": older.config.has_loss_mask,
        "chunk_totals": (1,) * count,
        "phases": tuple(
            MixingPhase(start=phase.start, weights=tuple(rng.randint(1, 5) for _ in forks))
            for phase in config.phases
        ),
        "overlong": tuple(rng.choice(["split", "split", "truncate", "drop"]) for _ in forks),
        "group_of_dataset": rng.choice([(0,) * count, tuple(range(count))]),
    }
    case = LaneCase(
        config=replace(config, **kept),
        chunks=chunks,
        passes=[None] * count,
        first_tokens=first_tokens,
        orders=orders,
    )
    return with_passes(case, passes, seed)


def other_length(length: int) -> int:
    """Return how many tokens another tokenizer makes of a document."""
    return length if length <= 0 else (2 * length) // 3 + 1


def renumbered(case: LaneCase, old: int, new: int, *, shift: int) -> dict[Document, int]:
    """Return the first tokens of a data set's documents under another number."""
    return {
        (new, chunk, document): first + shift
        for (dataset, chunk, document), first in case.first_tokens.items()
        if dataset == old
    }


def run_fork(
    older: LaneCase, newer: LaneCase, forks: list[DatasetFork], rng: random.Random
) -> Fork:
    """Run the older stream to its end, cut it at a sample, and run the fork to its end."""
    runs = [run_lane(older, lane, None) for lane in range(older.config.lanes)]
    lengths = [sum(len(draft.samples) for draft in drafts) for _, drafts in runs]
    order = SampleOrder(older.config.lanes, lengths)
    at_sample = rng.randint(0, order.total or 0)
    before, after = Pieces(), Pieces()
    standings, starts, ends = [], [], []
    for lane, count in enumerate(order.counts_before(at_sample)):
        _, drafts = runs[lane]
        standings.append(stand(older.config, drafts, count, before))
        starts.append(fork_lane(newer.config, lane, standings[-1], forks))
        state = decode_state(encode_state(starts[-1]), "state")
        process, found = run_lane(newer, lane, state)
        assert process.ended
        ends.append(process.state())
        for draft in found:
            gather(draft.samples, 0, len(draft.samples), after)
    return Fork(older, newer, forks, before, after, starts, standings, ends)


def run_lane(
    case: LaneCase, lane: int, state: LaneState | None
) -> tuple[LaneProcess, list[ShardDraft]]:
    """Offer a lane everything, in any case more than it still needs."""
    process = LaneProcess(case.config, lane, state)
    for part in case.parts(lane):
        process.offer(part)
    return process, list(process.take_shards())


def stand(config: LaneConfig, drafts: list[ShardDraft], count: int, before: Pieces) -> Standing:
    """Return where a lane stands after its first samples, and gather these."""
    size = config.samples_per_shard
    for draft in drafts:
        rows = min(len(draft.samples), count - draft.first_index)
        if rows > 0:
            gather(draft.samples, 0, rows, before)
    if count == 0:
        return Standing(state=None)
    draft = drafts[(count - 1) // size]
    state = decode_state(encode_state(draft.state), "state")
    whole = state.samples == count
    return standing(state, None if whole else draft.samples, count - draft.first_index)


def gather(samples: Samples, first: int, last: int, found: Pieces) -> None:
    """Sort the pieces of rows by the document that they are of."""
    bounds = samples.segment_offsets.tolist()
    columns = {name: values.tolist() for name, values in samples.segments.items()}
    for row in range(first, last):
        for place in range(bounds[row], bounds[row + 1]):
            start = columns["segment_starts"][place]
            tokens = samples.tokens[row, start : start + columns["segment_lengths"][place]]
            key = tuple(
                columns[f"source_{name}"][place] for name in ("dataset", "file", "document", "pass")
            )
            piece = (columns["source_offset"][place], tokens.tolist())
            found.setdefault(key, []).append((*piece, columns["segment_next"][place]))


def documents_of(case: LaneCase, dataset: int, passes: int) -> dict[tuple[int, int, int], int]:
    """Return the length of every document of every pass, by (file, document, pass)."""
    return {
        (chunk, place, number): max(0, length)
        for chunk, parts in enumerate(case.chunks[dataset])
        for place, length in enumerate(length for part in parts for length in part)
        for number in range(passes)
    }


def check_kept(fork: Fork, dataset: int, older: int) -> None:
    """Check a data set that goes on: together the rows hold each document once, labels included."""
    policies = {fork.older.config.overlong[older], fork.newer.config.overlong[dataset]}
    passes = fork.newer.passes[dataset]
    assert passes is not None
    for (chunk, place, number), length in documents_of(fork.newer, dataset, passes).items():
        pieces = fork.before.get((older, chunk, place, number), [])
        pieces = sorted(pieces + fork.after.get((dataset, chunk, place, number), []))
        expected = fork.newer.tokens_of((dataset, chunk, place), length)
        end = 0
        for offset, tokens, following in pieces:
            assert offset >= end
            assert tokens == expected[offset : offset + len(tokens)]
            end = offset + len(tokens)
            whole = [*expected, -1]
            assert following in ({whole[end]} if policies == {"split"} else {whole[end], -1})
        if policies == {"split"}:
            assert sum(len(tokens) for _, tokens, _ in pieces) == length


def check_anew(fork: Fork, dataset: int) -> None:
    """Check a data set that begins with the fork: each document once in each pass."""
    passes = fork.newer.passes[dataset]
    assert passes is not None
    if fork.newer.config.overlong[dataset] != "split":
        return
    for (chunk, place, number), length in documents_of(fork.newer, dataset, passes).items():
        pieces = sorted(fork.after.get((dataset, chunk, place, number), []))
        joined = [token for _, tokens, _ in pieces for token in tokens]
        assert joined == fork.newer.tokens_of((dataset, chunk, place), length)


def check_other_tokens(fork: Fork, dataset: int, older: int, losses: Losses) -> None:
    """Check a data set with another tokenizer: no document twice; those missing are counted."""
    passes = fork.newer.passes[dataset]
    assert passes is not None
    lost: dict[tuple[int, int, int], int] = defaultdict(int)
    for stands in fork.standings:
        if stands.pieces is None:
            continue
        columns = stands.pieces.columns
        for place in np.flatnonzero(columns.datasets == older).tolist():
            key = (columns.files[place], columns.documents[place], columns.passes[place])
            lost[tuple(int(value) for value in key)] += int(stands.pieces.lengths[place])
    assert sum(lost.values()) == losses.tokens[older]
    if {fork.older.config.overlong[older], fork.newer.config.overlong[dataset]} != {"split"}:
        return
    cut = 0
    for (chunk, place, number), length in documents_of(fork.newer, dataset, passes).items():
        before = fork.before.get((older, chunk, place, number), [])
        pieces = sorted(fork.after.get((dataset, chunk, place, number), []))
        used = lost[chunk, place, number] + sum(len(tokens) for _, tokens, _ in before)
        if not used:
            joined = [token for _, tokens, _ in pieces for token in tokens]
            assert joined == fork.newer.tokens_of((dataset, chunk, place), length)
            continue
        assert pieces == []
        lengths = [length for part in fork.older.chunks[older][chunk] for length in part]
        cut += used < lengths[place]
    assert cut == losses.documents[older]


def check_account(fork: Fork) -> None:
    """Check that each token of a data set is in rows, truncated or dropped, in both streams."""
    for dataset, choice in enumerate(fork.forks):
        counters = [state.datasets[dataset].counters for state in fork.ends]
        held = sum(
            len(tokens)
            for key, pieces in fork.after.items()
            for _, tokens, _ in pieces
            if key[0] == dataset
        )
        lost = sum(one.truncated_tokens + one.dropped_tokens for one in counters)
        assert all(one.truncated_tokens >= 0 and one.dropped_tokens >= 0 for one in counters)
        assert all(one.read_tokens >= 0 for one in counters)
        assert sum(one.read_tokens for one in counters) == held + lost
        passes = fork.newer.passes[dataset]
        assert passes is not None
        documents = documents_of(fork.newer, dataset, passes)
        counted = sum(one.documents for one in counters)
        if choice.older is None:
            assert counted == len(documents)
            continue
        olds = [
            stands.state.datasets[choice.older].counters
            for stands in fork.standings
            if stands.state is not None
        ]
        assert counted + sum(one.documents for one in olds) == len(documents)
        if not choice.dropped:
            held += sum(
                len(tokens)
                for key, pieces in fork.before.items()
                for _, tokens, _ in pieces
                if key[0] == choice.older
            )
            lost += sum(one.truncated_tokens + one.dropped_tokens for one in olds)
            assert held + lost == sum(documents.values())


def test_a_fork_opens_as_many_chunks_at_once_as_its_recipe_says() -> None:
    """More are opened at once; of too many, those that end are not followed by others."""
    source = make_source([[[[5, 9, 2, 7]] for _ in range(40)]])
    older = make_config(source, interleave=4, samples_per_shard=1)
    process = LaneProcess(older, 0)
    for part in source.parts:
        process.offer(part)
    state = next(process.take_shards()).state
    assert len(state.datasets[0].slots) == 4
    for interleave in (1, 2, 4, 6):
        config = replace(older, interleave=interleave)
        start = fork_lane(config, 0, standing(state, None, 0), [DatasetFork(name="a", older=0)])
        process = LaneProcess(config, 0, start)
        for part in source.parts:
            process.offer(part)
        drafts = list(process.take_shards())
        assert len(drafts[20].state.datasets[0].slots) == interleave
        assert process.ended


def test_a_fork_with_fewer_passes_than_are_begun_is_refused() -> None:
    """The second pass is being read, and the recipe would end before it."""
    source = make_source([[[[5, 9]], [[4]]] * 2])
    config = make_config(source, samples_per_shard=1, seq_len=4)
    process = LaneProcess(config, 0)
    for part in source.parts:
        process.offer(part)
    drafts = list(process.take_shards())
    fewer = replace(config, chunk_totals=(2,))
    choice = [DatasetFork(name="a", older=0)]
    open_now = [any(slot.number >= 2 for slot in d.state.datasets[0].slots) for d in drafts]
    assert any(open_now)
    assert not all(open_now)
    for draft, is_open in zip(drafts, open_now, strict=True):
        if is_open:
            with pytest.raises(
                RecipeError, match=r"datasets\.number 0\.passes must count the pass"
            ):
                fork_lane(fewer, 0, standing(draft.state, None, 0), choice)
        else:
            fork_lane(fewer, 0, standing(draft.state, None, 0), choice)


def test_states_digest_covers_what_states_hold_and_not_whose_they_are() -> None:
    """A fork's fingerprint follows from the digest, so it cannot be in it."""
    source = make_source([[[[5, 9, 7, 7]]]])
    config = make_config(source, samples_per_shard=1, packing="concat")
    process = LaneProcess(config, 0)
    process.offer(source.parts[0])
    state = next(process.take_shards()).state
    digest = states_digest([state])
    assert digest == states_digest([replace(state, fingerprint="other")])
    assert digest != states_digest([replace(state, next_bin=state.next_bin + 1)])
    assert digest != states_digest([replace(state, lane=1)])
    assert digest != states_digest([state, state])
    assert state.pieces.tokens.size
    other = replace(state.pieces, tokens=state.pieces.tokens + 1)
    assert digest != states_digest([replace(state, pieces=other)])
