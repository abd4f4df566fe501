"""An endless job on Prism makes the samples of advances, whatever holds it up."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from apache_beam.runners.worker.bundle_processor import BundleProcessor

from pipelines.fork import fork_stream
from pipelines.selftest import shuffled_arrivals
from tests.engines.endless_runs import (
    complete_samples,
    descendants,
    endless_command,
    tell,
    wait_for_samples,
)
from tests.engines.engine_streams import CHANGES, ENGINE_MARKS, damaged_recipe
from tests.pipelines.small_streams import (
    LANES,
    SHARD_SAMPLES,
    SmallStream,
    assert_same_prefix,
    run,
    tree,
    write_json_lines,
    write_recipe,
    write_small_corpus,
)
from tests.processes import is_running
from transforms.supply_endless import _PollLane
from zephon_beam.errors import BadRecordError, SourceError
from zephon_beam.layout import progress_name
from zephon_beam.store.base import open_store
from zephon_beam.verification import verify_stream

pytestmark = ENGINE_MARKS

UNTIL = 900
FAR = 1 << 40
"""More samples ahead of consumers than a test makes."""


def run_endless(recipe: Path, stream: Path, flags: list[str], until: int | None) -> dict[str, Any]:
    """Run one endless job in this process until its stream is so long."""
    return run(
        *(recipe, stream),
        follow=True,
        endless=True,
        lookahead=FAR,
        until_samples=until,
        options=flags,
    )


def test_advances_and_endless_jobs_take_turns(
    prism_flags: list[str], endless_stream: SmallStream, tmp_path: Path
) -> None:
    """From nothing, from the states that a job left, and from the carries of an advance."""
    stream = tmp_path / "s"
    with shuffled_arrivals(5):
        run_endless(endless_stream.recipe, stream, prism_flags, UNTIL // 3)
    run(endless_stream.recipe, stream, until_samples=2 * UNTIL // 3)
    with shuffled_arrivals(6):
        run_endless(endless_stream.recipe, stream, prism_flags, UNTIL)
    assert_same_prefix(tree(stream), endless_stream.tree, UNTIL)
    run(endless_stream.recipe, stream, until_samples=2 * UNTIL)
    assert_same_prefix(tree(stream), endless_stream.tree, 2 * UNTIL)
    plans = [json.loads(path.read_text()) for path in sorted((stream / "advances").iterdir())]
    kinds = [plan.get("endless", False) for plan in plans]
    assert kinds[0]
    assert kinds.count(True) == 2
    heads = next(plan["lanes"] for plan in reversed(plans) if plan.get("endless"))
    assert "carry" in {lane["head"][0] for lane in heads}


def test_polls_ask_for_no_delay_and_stay_together(
    prism_flags: list[str],
    endless_stream: SmallStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prism may never come back from a delay, and runs few bundles at once."""
    usual_rest, usual_wait = BundleProcessor.delayed_bundle_application, _PollLane._hold_up
    delays, polling, most = [], threading.Semaphore(LANES), []

    def rest(self: Any, *args: Any) -> Any:
        given = usual_rest(self, *args)
        delays.append(given.requested_time_delay.ToTimedelta())
        return given

    def hold_up(self: Any, lane: int) -> None:
        with polling:
            most.append(polling._value)
            usual_wait(self, lane)

    monkeypatch.setattr(BundleProcessor, "delayed_bundle_application", rest)
    monkeypatch.setattr(_PollLane, "_hold_up", hold_up)
    run_endless(endless_stream.recipe, tmp_path / "s", prism_flags, UNTIL)
    assert len(delays) > 3 * LANES
    assert not any(delays)
    assert min(most) == LANES - 1


def test_the_sources_end_and_so_does_the_job(
    prism_flags: list[str], expected: SmallStream, tmp_path: Path
) -> None:
    """Lanes that have used up what there is end as those of advances do."""
    facts = run_endless(expected.recipe, tmp_path / "s", prism_flags, None)
    assert facts["finished"]
    assert tree(tmp_path / "s") == expected.tree


@contextmanager
def bad_advice(stream: Path) -> Iterator[None]:
    """Keep replacing what lanes say of themselves by what is damaged, too old or too new.

    Not before it was there for a turn, in which it may be read, or not: who is never heard gets no
    more than a window.
    """
    left = threading.Event()

    def spoil() -> None:
        store, turn = open_store(str(stream)), 0
        old: dict[int, bytes] = {}
        seen: dict[int, bytes] = {}
        while not left.wait(0.4):
            turn += 1
            for lane in range(LANES):
                name = progress_name(lane)
                try:
                    said = store.get(name)
                    raw = json.loads(said)
                except (FileNotFoundError, ValueError):
                    continue
                # An advance names none.
                if "datasets" not in raw or seen.get(lane) != said:
                    seen[lane] = said
                    continue
                old.setdefault(lane, said)
                newer = {**raw, "datasets": [dict(entry) for entry in raw["datasets"]]}
                for entry in newer["datasets"]:
                    entry["next_number"] += 1000
                    entry["slots"] = [[-1, 0] for _ in entry["slots"]]
                bad = (b"{", old[lane], json.dumps(newer).encode(), None)[(turn + lane) % 4]
                if bad is None:
                    store.delete(name)
                else:
                    store.replace(name, bad)

    thread = threading.Thread(target=spoil, daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


def test_bad_advice_a_rare_data_set_and_one_filtered_away_do_not_stop_it(
    prism_flags: list[str], tmp_path: Path
) -> None:
    """Nor do all three at once, with little under way."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_small_corpus(corpus)
    write_json_lines(corpus / "short", ["too short"] * 6000, files=1)
    lines = [f"long enough to be kept, number {number} of them" for number in range(600)]
    write_json_lines(corpus / "short-end", lines, files=1)
    (corpus / "short-end" / "part-0.jsonl").rename(corpus / "short" / "part-1.jsonl")
    recipe = write_recipe(
        corpus / "recipe.yaml",
        changes=(
            ("prose/*.jsonl, weight: 0.3", "prose/*.jsonl, weight: 0.001"),
            (
                "text: body, weight: 0.2}",
                "text: body, weight: 0.2}\n  short: {files: short/*.jsonl, weight: 0.3, "
                "transforms: [{call: filter_length, with: {min_characters: 30}}]}",
            ),
            ("{interleave: 3}", "{interleave: 3, chunks: false}"),
        ),
    )
    stream = tmp_path / "s"
    run(recipe, stream, until_samples=1)
    with bad_advice(stream):
        run_endless(recipe, stream, [*prism_flags], UNTIL // 2)
    run(recipe, tmp_path / "expected", until_samples=UNTIL // 2)
    assert_same_prefix(tree(stream), tree(tmp_path / "expected"), UNTIL // 2)


def test_lanes_wait_for_consumers_and_go_on_with_them(
    prism_flags: list[str], endless_stream: SmallStream, tmp_path: Path
) -> None:
    """No further than was asked for, whatever the time, until it is interrupted: to the end."""
    stream, log = tmp_path / "s", tmp_path / "log"
    lookahead = 4 * LANES * SHARD_SAMPLES
    flags = [*prism_flags, f"--lookahead={lookahead}", "--advance-bytes=16KiB"]
    with endless_command(endless_stream.recipe, stream, log, flags) as command:
        wait_for_samples(stream, lookahead)
        engines = descendants(command.pid)
        assert engines
        time.sleep(3.0)
        waited = complete_samples(stream)
        tell(stream, lookahead)
        assert wait_for_samples(stream, 2 * lookahead) >= 2 * lookahead
        command.send_signal(signal.SIGTERM)
        assert command.wait() == 130, log.read_text()
    assert lookahead <= waited < 2 * lookahead
    told = log.read_text()
    assert "interrupted; the stream is intact" in told
    assert 1 <= told.count("endless job: ") <= 3
    assert "advance " not in told
    assert not [number for number in engines if is_running(number)]
    verify_stream(str(stream))
    assert_same_prefix(tree(stream), endless_stream.tree, 2 * lookahead)
    run(endless_stream.recipe, stream, until_samples=UNTIL)
    assert_same_prefix(tree(stream), endless_stream.tree, UNTIL)


def test_what_a_worker_met_is_one_line(
    prism_flags: list[str], expected: SmallStream, tmp_path: Path
) -> None:
    """As in an advance."""
    recipe = damaged_recipe(expected, tmp_path)
    with pytest.raises(BadRecordError, match=r"part-1\.jsonl.*line 5") as caught:
        run_endless(recipe, tmp_path / "s", prism_flags, None)
    assert "\n" not in str(caught.value)


def test_a_data_set_that_gives_nothing_is_an_error_and_no_endless_search(
    prism_flags: list[str], tmp_path: Path
) -> None:
    """As between two advances."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_small_corpus(corpus)
    each = "[{call: filter_length, with: {min_characters: 10000000}}]"
    changes = [("prose/*.jsonl, weight: 0.3", f"prose/*.jsonl, weight: 0.3, transforms: {each}")]
    recipe = write_recipe(corpus / "recipe.yaml", changes=changes)
    with pytest.raises(SourceError, match=r"datasets\.prose must give at least one token"):
        run_endless(recipe, tmp_path / "s", prism_flags, UNTIL)


def test_an_endless_job_begins_where_a_fork_does(
    prism_flags: list[str], endless_stream: SmallStream, tmp_path: Path
) -> None:
    """From states that are neither of an advance nor of a shard."""
    changes = [*CHANGES, ("weight: 0.5", "weight: 0.1")]
    other = write_recipe(endless_stream.recipe.parent / "other.yaml", changes=changes)
    for name in ("advances", "job"):
        fork_stream(endless_stream.folder, other, tmp_path / name, at_sample=UNTIL // 3)
    run(other, tmp_path / "advances", until_samples=UNTIL // 3)
    run_endless(other, tmp_path / "job", prism_flags, UNTIL // 3)
    assert_same_prefix(tree(tmp_path / "job"), tree(tmp_path / "advances"), UNTIL // 3)
