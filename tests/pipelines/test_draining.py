"""Asking an endless job to end: the command, and what the driver makes of a drained job."""

import json
from pathlib import Path

import pytest

from pipelines import draining, endless
from pipelines.draining import Leftover
from pipelines.main import main
from tests.pipelines.small_streams import LANES, SmallStream, run, tree
from zephon_beam.draining import ask_to_drain
from zephon_beam.layout import carry_name, plan_name
from zephon_beam.manifest import read_manifest
from zephon_beam.plan import decode_plan
from zephon_beam.store.base import open_store

EMBEDDED = ["--runner=PortableRunner", "--job_endpoint=embed"]
ALL_JOBS = 1 << 30


@pytest.fixture
def drained(finite: SmallStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a stream that an advance began, and of which two endless jobs were drained."""
    monkeypatch.setattr(endless, "_LASTING", ("PortableRunner",))
    stream = tmp_path / "s"
    run(finite.recipe, stream, until_samples=LANES, advance_bytes=1)
    # So the jobs end at their first poll; this engine runs nothing before a source has ended.
    ask_to_drain(open_store(str(stream)), ALL_JOBS)
    for _ in range(2):
        facts = run(
            *(finite.recipe, stream),
            follow=True,
            endless=True,
            lookahead=1 << 30,
            options=EMBEDDED,
        )
        assert not facts["finished"]
    return stream


def test_a_drained_job_hands_over_what_waits_and_drops_what_it_replaced(
    drained: Path, finite: SmallStream
) -> None:
    """Carries would fill the disk if jobs that are drained followed one another."""
    store = open_store(str(drained))
    plans = [decode_plan(store.get(plan_name(n)), plan_name(n)) for n in range(3)]
    assert [plan.endless for plan in plans] == [False, True, True]
    for plan, number in zip(plans[1:], (0, 1), strict=True):
        assert {entry.head_name for entry in plan.lanes} == {
            carry_name(lane, number) for lane in range(LANES)
        }
    assert sorted(store.list("carry/")) == [
        carry_name(lane, number) for lane in range(LANES) for number in (1, 2)
    ]
    run(finite.recipe, drained)
    assert tree(drained) == finite.tree


def test_the_command_tells_whether_the_job_is_drained(
    drained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be asked as often as one likes."""
    assert main(["drain", str(drained)]) == 0
    assert capsys.readouterr().out == (
        "job 2 is drained: all that it was supplied with is committed\n"
    )
    store = open_store(str(drained))
    store.delete(carry_name(1, 2))
    assert main(["drain", str(drained)]) == 0
    assert capsys.readouterr().out == (
        "job 2 is asked to end; its run ends when all is committed; if run and engine are gone, "
        "nothing more comes of it: run the recipe again to go on\n"
    )
    assert main(["drain", str(drained), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"job": 2, "drained": False}


def test_a_stream_that_is_made_by_advances_is_refused(
    tmp_path: Path, finite: SmallStream, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run would go on, and its user wait."""
    stream = tmp_path / "s"
    run(finite.recipe, stream, until_samples=1)
    before = sorted(stream.rglob("*"))
    assert main(["drain", str(stream)]) == 2
    error = capsys.readouterr().err
    assert "STREAM must be written by an endless job to be drained, got" in error
    assert "Ctrl-C ends its run" in error
    assert sorted(stream.rglob("*")) == before


def test_an_engine_has_time_to_end_a_drained_job_by_itself(drained: Path) -> None:
    """Then it is cancelled; a job that was not drained never is."""
    store = open_store(str(drained))
    plan = decode_plan(store.get(plan_name(2)), plan_name(2))
    now = [0.0]
    leftover = Leftover(store=store, manifest=read_manifest(store), plan=plan, clock=lambda: now[0])
    kept = store.get(carry_name(1, 2))
    store.delete(carry_name(1, 2))
    for now[0] in (0.0, 1e6):
        assert not leftover.look()
    store.put_if_absent(carry_name(1, 2), kept)
    assert not leftover.look()
    now[0] += draining._ENDS_BY_ITSELF_SECS - 1
    assert not leftover.look()
    now[0] += 1
    assert leftover.look()
