"""The budget for bad documents: exact, judged in the lane, and the same whatever arrives when."""

import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lanes import (
    QUARANTINED,
    Source,
    draft_bytes,
    make_config,
    make_source,
    restarted,
)
from zephon_beam.errors import QuarantineError
from zephon_beam.lane import LaneProcess
from zephon_beam.lane_config import LaneConfig
from zephon_beam.quarantine_budget import MINIMUM_DOCUMENTS, QuarantineBudget
from zephon_beam.sequences import PartKey, encode_part


@pytest.mark.parametrize(
    ("limit", "quarantined", "documents", "ended", "fails"),
    [
        # Exact at the limit, one document and a whole thousand.
        ((1, 1000), 1, 1000, False, False),
        ((1, 1000), 2, 1000, False, True),
        ((1, 1000), 2, 2000, False, False),
        ((1, 10**12), 1, 10**12, False, False),
        ((1, 10**12), 2, 2 * 10**12 - 1, False, True),
        # Nothing is judged on few documents until the lane ends.
        ((1, 1000), 999, 999, False, False),
        ((1, 1000), 999, 999, True, True),
        ((1, 1000), 0, 0, True, False),
        # One bad document is never too many, unless there is no good one or none is allowed.
        ((1, 1000), 1, 2, True, False),
        ((1, 1000), 1, 1, True, True),
        ((1, 1000), 2, 3, True, True),
        ((1, 10**6), 1, 1000, False, False),
        ((0, 1), 1, 1000, False, True),
        ((0, 1), 1, 5, True, True),
        ((0, 1), 0, 5000, True, False),
        # A limit of 1 lets everything through.
        ((1, 1), 7, 7, True, False),
    ],
)
def test_the_budget_is_exact_and_lenient_with_few_documents(
    limit: tuple[int, int], quarantined: int, documents: int, *, ended: bool, fails: bool
) -> None:
    """More than the fraction fails, from the minimum count or the lane's end on."""
    budget = QuarantineBudget(dataset="web", limit=limit)
    if fails:
        with pytest.raises(QuarantineError, match=r"max_fraction.*set web in one lane are bad"):
            budget.judge(quarantined, documents, ended=ended)
    else:
        budget.judge(quarantined, documents, ended=ended)


def test_the_error_keeps_its_numbers_between_processes() -> None:
    """Worker processes send errors to their parent."""
    with pytest.raises(QuarantineError) as caught:
        QuarantineBudget(dataset="web", limit=(1, 8)).judge(3, 4, ended=True)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert str(again) == str(caught.value)
    assert (again.dataset, again.quarantined, again.documents) == ("web", 3, 4)


def run_until_error(
    config: LaneConfig, source: Source, seed: int | None = None
) -> tuple[list[tuple[bytes, bytes]], str | None]:
    """Return the shards before the error and its message, fed in order or scattered."""
    rng = random.Random(seed)
    arrivals = list(source.parts)
    if seed is not None:
        arrivals += rng.sample(arrivals, len(arrivals) // 3)
        rng.shuffle(arrivals)
    process = LaneProcess(config, 0)
    waiting: dict[PartKey, bytes] = {}
    found = []
    try:
        for part in arrivals:
            if process.offer(part):
                waiting[part.key] = encode_part(part)
            if seed is not None and rng.random() < 0.05:
                for draft in process.take_shards():
                    found.append(draft_bytes(draft))  # noqa: PERF401 - an error keeps them
                still = [waiting[key] for key in process.waiting()]
                process = restarted(config, process, still)
        for draft in process.take_shards():
            found.append(draft_bytes(draft))  # noqa: PERF401 - an error keeps them
    except QuarantineError as error:
        return found, str(error)
    return found, None


def noisy_source(seed: int, bad: float) -> Source:
    """Make two data sets of about 2,000 short documents, some bad."""
    rng = random.Random(seed)

    def length() -> int:
        return QUARANTINED if rng.random() < bad else rng.randrange(4)

    return make_source(
        [
            [[[length() for _ in range(rng.randrange(60))] for _ in range(2)] for _ in range(35)]
            for _ in range(2)
        ]
    )


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), bad=st.sampled_from([0.0005, 0.01, 0.012, 0.05]))
def test_a_lane_fails_at_the_same_place_whatever_arrives_when(seed: int, bad: float) -> None:
    """The shards before the error and the error itself are those of a run in order."""
    source = noisy_source(seed, bad)
    config = make_config(
        source,
        quarantine_limit=(1, 100),
        dataset_names=("web", "code"),
        interleave=3,
        samples_per_shard=7,
    )
    assert run_until_error(config, source, seed) == run_until_error(config, source)


def lane_of(lengths: list[int], **changes: object) -> tuple[LaneConfig, Source]:
    """Make a lane over one data set whose chunks have ten documents each."""
    chunks = [[lengths[first : first + 10]] for first in range(0, len(lengths), 10)]
    source = make_source([chunks])
    return make_config(source, seq_len=4, quarantine_limit=(1, 100), **changes), source


def test_a_lane_of_few_documents_passes_with_one_bad_one_and_fails_when_all_are_bad() -> None:
    """Judged at the lane's end, when nothing more can come."""
    assert run_until_error(*lane_of([2] * 11 + [QUARANTINED] + [2] * 8))[1] is None
    shards, message = run_until_error(*lane_of([QUARANTINED] * 5))
    assert shards == []
    assert message is not None
    assert "5 of 5 documents of data set number 0" in message


def test_an_endless_data_set_of_bad_documents_only_fails_without_a_shard() -> None:
    """It completes no shard and never ends, so parts that are used up are judged, too."""
    config, source = lane_of([QUARANTINED] * MINIMUM_DOCUMENTS, chunk_totals=(None,))
    _, message = run_until_error(config, source)
    assert message is not None
    assert f"{MINIMUM_DOCUMENTS} of {MINIMUM_DOCUMENTS}" in message


def test_a_shard_is_not_given_out_when_its_lane_is_over_the_budget() -> None:
    """The first shard behind the thousandth document fails, although its part goes on."""
    lengths = [4] * 980 + [QUARANTINED] * 20 + [4] * 500
    source = make_source([[[lengths]]])
    config = make_config(source, seq_len=4, samples_per_shard=100, quarantine_limit=(1, 100))
    shards, message = run_until_error(config, source)
    assert len(shards) == 9
    assert message is not None
    assert "20 of 1020" in message


def test_without_a_budget_nothing_is_judged() -> None:
    """The lane counts and goes on."""
    config, source = lane_of([QUARANTINED] * 1500)
    unlimited = make_config(source, seq_len=4)
    assert run_until_error(unlimited, source)[1] is None
    assert run_until_error(config, source)[1] is not None


def test_a_part_is_judged_at_its_last_document_and_not_a_document_later() -> None:
    """2 of 1,999 are more than one in a thousand, 2 of 2,000 are not."""
    ending = [2] * 998 + [QUARANTINED] * 2
    source = make_source([[[ending], [[2] * 1500]]])
    config = make_config(source, quarantine_limit=(1, 1000), interleave=2, samples_per_shard=10_000)
    _, message = run_until_error(config, source)
    assert message is not None
    assert "2 of 1999 documents" in message


def test_a_part_is_judged_before_another_data_set_gives_a_document() -> None:
    """Both parts are bad; the first one ends with four tokens, and the other is behind."""
    bad = [QUARANTINED] * 2
    source = make_source([[[bad + [1] * 997 + [4]]], [[bad + [1] * 998]]])
    config = make_config(
        source,
        quarantine_limit=(1, 1000),
        dataset_names=("web", "code"),
        interleave=1,
        samples_per_shard=10_000,
    )
    _, message = run_until_error(config, source)
    assert message is not None
    assert "2 of 1000 documents of data set web" in message
