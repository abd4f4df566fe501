"""A job that is dead is told from one that waits, takes its time, or is not heard."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.draining import Leftover
from pipelines.follow import Follower
from pipelines.liveness import (
    _MOST_RESTARTS,
    SILENT_SECS,
    STILL_SECS,
    Death,
    Liveness,
    Restarts,
)
from pipelines.open_stream import OpenStream, open_or_create
from pipelines.watch_endless import EndlessWatch
from pipelines.watching import read_reports, standing_after
from tests.pipelines.small_streams import (
    LANES,
    SHARD_SAMPLES,
    SMALL_ADVANCE,
    SmallStream,
    load,
    run,
    write_recipe,
    write_small_corpus,
)
from zephon_beam.consumers import Consumer, encode_consumer
from zephon_beam.draining import ask_to_drain
from zephon_beam.errors import ZephonBeamError
from zephon_beam.heads import Heads
from zephon_beam.lane_progress import encode_progress, make_progress
from zephon_beam.layout import POLLED, consumer_name, progress_name
from zephon_beam.plan import LanePlan, Plan
from zephon_beam.poll_trace import encode_trace
from zephon_beam.position import Position, read_position

MADE = 2 * LANES * SHARD_SAMPLES
JOB = 7
MORE = 1 << 40
"""Samples that are wanted beyond those of a test."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an endless recipe over a small corpus."""
    corpus = tmp_path_factory.mktemp("corpus")
    write_small_corpus(corpus)
    return write_recipe(corpus / "recipe.yaml")


@pytest.fixture
def opened(recipe: Path, tmp_path: Path) -> OpenStream:
    """Return a stream with two shards of each lane at least, whose lanes say nothing."""
    make_unheard(recipe, tmp_path / "s", MADE)
    return reopen(recipe, tmp_path / "s")


def make_unheard(recipe: Path, stream: Path, until: int) -> int:
    """Make samples without a trace of it in `progress/`; return how many are complete."""
    facts = run(recipe, stream, until_samples=until, advance_bytes=SMALL_ADVANCE)
    for left in (stream / "progress").iterdir():
        left.unlink()
    return int(facts["complete_samples"])


def reopen(recipe: Path, stream: Path) -> OpenStream:
    """Open the stream of a recipe."""
    return open_or_create(load(recipe), str(stream), PipelineOptions([]), folder=str(recipe.parent))


@dataclass
class Job:
    """What is seen of a job by one who looks every second."""

    opened: OpenStream
    lookahead: int = MORE
    patience: int = 1
    now: float = 1000.0
    beat: int = 0
    position: Position = field(init=False)

    def __post_init__(self) -> None:
        """Begin."""
        self.position = read_position(self.opened.store, self.opened.manifest)
        self.liveness = Liveness(
            store=self.opened.store,
            manifest=self.opened.manifest,
            recipe=self.opened.recipe,
            job=JOB,
            lookahead=self.lookahead,
            until_samples=None,
            patience=self.patience,
            clock=lambda: self.now,
        )

    def poll(self) -> None:
        """Leave the trace of a poll."""
        self.beat += 1
        self.opened.store.replace(POLLED, encode_trace(JOB, self.beat))

    def speak(self, lane: int, shard: int) -> None:
        """Let a lane say that it stands behind a shard."""
        store, manifest = self.opened.store, self.opened.manifest
        state = Heads(store, manifest).state(lane, shard)
        assert state is not None
        said = make_progress(JOB, state, ended=False)
        store.replace(progress_name(lane), encode_progress(said))

    def look(self, secs: float = 1.0) -> Death | None:
        """Look once, some time later."""
        self.now += secs
        store, manifest = self.opened.store, self.opened.manifest
        said = read_reports(store, range(LANES), JOB)
        return self.liveness.look(standing_after(self.position, said, manifest.fingerprint), said)

    def die(self, most: float) -> tuple[float, Death]:
        """Look until it counts as dead; return how long that took, and why."""
        begun = self.now
        while (death := self.look()) is None:
            assert self.now - begun <= most
        return self.now - begun, death


def test_silence_is_death_where_samples_are_wanted(opened: OpenStream) -> None:
    """And it names who lacks what; a job after one that died is given more time."""
    for patience in (1, 2):
        secs, death = Job(opened, patience=patience).die(2.1 * SILENT_SECS)
        assert patience * SILENT_SECS <= secs <= patience * SILENT_SECS + 2
        assert "its source was not polled for" in death.reason
        assert re.fullmatch(
            r"lane 0 has \d+ of the \d+ samples that are wanted of it, and 2 lanes more",
            death.lanes,
        )


def test_lanes_that_have_all_that_is_wanted_may_say_nothing(opened: OpenStream) -> None:
    """Whatever the time, until a consumer goes on; then they have as long as at first."""
    made = read_position(opened.store, opened.manifest).complete_samples
    job = Job(opened, lookahead=made)
    for _ in range(int(2.6 * SILENT_SECS)):
        assert job.look() is None
    consumer = Consumer(
        name="run", fingerprint=opened.manifest.fingerprint, position=made, pins={}, beat=0
    )
    opened.store.replace(consumer_name("run"), encode_consumer(consumer))
    secs, _ = job.die(SILENT_SECS + 2)
    assert secs >= SILENT_SECS - 31


def test_a_job_that_is_polled_and_stands_is_given_far_more_time(opened: OpenStream) -> None:
    """One bundle may hold what all lanes wait for, and take as long."""
    job = Job(opened)
    begun = job.now
    death = None
    while death is None:
        if int(job.now) % 30 == 0:
            job.poll()
        death = job.look()
        assert job.now - begun <= STILL_SECS + 40
    assert job.now - begun >= STILL_SECS
    assert "no lane has moved" in death.reason


def test_traces_of_other_jobs_and_damaged_ones_are_none(opened: OpenStream) -> None:
    """A job that died may go on somewhere, and says nothing of the one after it."""
    job = Job(opened)
    traces = (
        encode_trace(JOB - 1, 1),
        b"{",
        b"[]",
        b'{"advance": 7}',
        b'{"advance": 7, "beat": []}',
    )
    for place in range(int(SILENT_SECS) - 1):
        opened.store.replace(POLLED, traces[place % len(traces)])
        assert job.look() is None
    job.die(3)


def test_any_lane_that_moves_is_life(opened: OpenStream) -> None:
    """However seldom."""
    job = Job(opened)
    for turn in range(6):
        for _ in range(int(SILENT_SECS * 0.9)):
            assert job.look() is None
        job.speak(turn % LANES, turn // LANES)


def test_what_counts_as_silence_is_listening(opened: OpenStream) -> None:
    """A driver that was stopped itself, or waited for its store, has heard nothing meanwhile."""
    job = Job(opened)
    for _ in range(3):
        assert job.look(100 * SILENT_SECS) is None


def test_shards_that_appear_are_life_though_nothing_is_said(
    recipe: Path, opened: OpenStream, tmp_path: Path
) -> None:
    """What lanes say of themselves may be lost; the states cannot."""
    job = Job(opened)
    make_unheard(recipe, tmp_path / "s", 2 * MADE)
    for _ in range(int(1.9 * SILENT_SECS)):
        assert job.look() is None
    job.die(SILENT_SECS)


def test_lanes_that_have_enough_are_not_dead_though_their_words_are_lost(
    recipe: Path, opened: OpenStream, tmp_path: Path
) -> None:
    """The states say so."""
    job = Job(opened, lookahead=2 * MADE)
    made = make_unheard(recipe, tmp_path / "s", 2 * MADE)
    assert made >= job.lookahead > job.position.complete_samples
    for _ in range(int(5 * SILENT_SECS)):
        assert job.look() is None


def test_a_stream_that_has_ended_lacks_nothing(finite: SmallStream) -> None:
    """Whatever its consumers want."""
    job = Job(reopen(finite.recipe, finite.folder))
    for _ in range(int(3 * SILENT_SECS)):
        assert job.look() is None


def test_too_many_deaths_in_a_row_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """Each one before is one line, and the next job is given more time; samples begin anew."""
    restarts = Restarts(runner="PrismRunner", stream="file:///s")
    death = Death(reason="its source was not polled for 120 s", lanes="lane 1 has 16 of the 32")
    for place in range(_MOST_RESTARTS):
        restarts.add(death, made=0)
        assert restarts.patience == 2 << place
    restarts.add(death, made=16)
    assert restarts.patience == 1
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == _MOST_RESTARTS + 1
    assert all("\n" not in line for line in lines)
    assert "PrismRunner counts as dead: its source was not polled for 120 s, and lane 1" in lines[0]
    assert "(16 new samples); the stream is intact" in lines[-1]
    for _ in range(_MOST_RESTARTS):
        restarts.add(death, made=0)
    with pytest.raises(
        ZephonBeamError, match=r"4 jobs on PrismRunner .*file:///s: .*lane 1.*intact: run it again"
    ):
        restarts.add(death, made=0)


def test_a_dead_job_that_was_asked_to_end_is_not_begun_anew(
    opened: OpenStream, caplog: pytest.LogCaptureFixture
) -> None:
    """Who asked would wait for the end of a job that no wish is for."""
    job = Job(opened)
    lanes = tuple(
        LanePlan(lane=lane, head_kind="none", head_number=-1, supply=()) for lane in range(LANES)
    )
    plan = Plan(advance=JOB, fingerprint=opened.manifest.fingerprint, lanes=lanes, endless=True)
    watch = EndlessWatch(
        opened=opened,
        position=job.position,
        plan=plan,
        follower=Follower(
            store=opened.store, manifest=opened.manifest, lookahead=MORE, deletes=False
        ),
        until_samples=None,
        report=None,
        patience=1,
    )
    leftover = Leftover(store=opened.store, manifest=opened.manifest, plan=plan)
    ask_to_drain(opened.store, JOB)
    while not watch._is_left_over:
        job.now += 1.0
        assert job.now - 1000.0 <= SILENT_SECS + 2
        watch._look(job.liveness, leftover)
    assert watch.death is None
    assert "was asked to end, and counts as dead" in caplog.text
