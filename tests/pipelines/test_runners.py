"""Runners: worker processes are used, start safely, and are missed when they die."""

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker import data_plane, sdk_worker
from apache_beam.runners.worker.bundle_processor import BundleProcessor

from pipelines.options import parse_beam_options
from pipelines.runners import running_pipeline
from zephon_beam.errors import RecipeError, ZephonBeamError

FLAGS = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]


class _NoteProcess(beam.DoFn):
    """Leaves a file named after the process that ran it."""

    def __init__(self, folder: str, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds

    def process(self, element: int) -> Iterator[int]:
        (Path(self._folder) / str(os.getpid())).touch()
        time.sleep(self._seconds)
        yield element


def run(folder: Path, options: object, seconds: float = 0.0) -> set[int]:
    """Run a small pipeline and return the processes that took part."""
    with running_pipeline(options) as pipeline:  # type: ignore[arg-type]
        numbers = pipeline | beam.Create(range(16))
        _ = numbers | beam.ParDo(_NoteProcess(str(folder), seconds))
    return {int(path.name) for path in folder.iterdir()}


def test_every_pipeline_of_a_run_uses_worker_processes(tmp_path: Path) -> None:
    """Options serve several pipelines: the second one must not fall back to this process."""
    options = parse_beam_options(FLAGS)
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        processes = run(folder, options)
        assert processes
        assert os.getpid() not in processes


def _shared_by_threads() -> list[object]:
    """Return what runs change for the whole process."""
    changed = worker_handlers.DATA_BUFFER_TIME_LIMIT_MS, worker_handlers.STATE_CACHE_SIZE_MB
    return [*changed, vars(sdk_worker).get("print"), gc.get_threshold(), BundleProcessor.try_split]


def test_of_two_runs_in_threads_the_first_that_ends_takes_nothing_from_the_other() -> None:
    """What they change for the whole process stays until both have ended, and then goes."""
    before = _shared_by_threads()
    signals = [(threading.Event(), threading.Event()) for _ in range(2)]
    ended: list[bool] = []

    def run_empty(begun: threading.Event, ends: threading.Event) -> None:
        with running_pipeline(parse_beam_options([])) as pipeline:
            _ = pipeline | beam.Create([1])
            begun.set()
            assert ends.wait(60)
        ended.append(True)

    threads = [threading.Thread(target=run_empty, args=pair) for pair in signals]
    for thread, (begun, _) in zip(threads, signals, strict=True):
        thread.start()
        assert begun.wait(60)
    during = _shared_by_threads()
    assert all(now != then for now, then in zip(during, before, strict=True))
    for place, expected in enumerate((during, before)):
        signals[place][1].set()
        threads[place].join(60)
        assert _shared_by_threads() == expected
    assert ended == [True, True]


def test_the_death_of_a_worker_is_an_error_not_a_hang(tmp_path: Path) -> None:
    """The engine itself would wait for ever for a worker that was killed."""

    def kill_one() -> None:
        while not any(tmp_path.iterdir()):
            time.sleep(0.05)
        os.kill(int(next(tmp_path.iterdir()).name), signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(ZephonBeamError, match=r"worker process must stay alive.*run it again"):
        run(tmp_path, parse_beam_options(FLAGS), seconds=1.0)
    killer.join()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--runner=portable"], "must specify a --job_endpoint"),
        (["--runner=prism", "--prism_location=/no/prism"], '"/no/prism"'),
        (["--runner=spark", "--spark_job_server_jar=/no/server.jar"], "/no/server.jar"),
        (["--runner=flink", "--flink_job_server_jar=/no/server.jar"], "/no/server.jar"),
        (["--runner=dataflow"], "Missing required option: project"),
    ],
)
def test_an_engine_that_is_not_there_is_one_line(flags: list[str], said: str) -> None:
    """What Beam says, and what to do; an engine that is missing is no defect of ours."""
    with (
        pytest.raises(ZephonBeamError, match=r"--runner must .*no job was started.*") as caught,
        running_pipeline(parse_beam_options(flags)) as pipeline,
    ):
        _ = pipeline | beam.Create([1])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_graph_that_cannot_be_built_is_no_missing_engine() -> None:
    """A defect keeps its own type, so that its traceback is shown."""
    with (
        pytest.raises(ValueError, match="of a graph"),
        running_pipeline(parse_beam_options(["--runner=portable"])),
    ):
        raise ValueError("of a graph")


def test_unknown_flags_are_refused_with_the_nearest_one() -> None:
    """Beam itself would drop a misspelt flag in silence."""
    with pytest.raises(RecipeError, match="did you mean --direct_num_workers"):
        parse_beam_options(["--direct_num_worker=2"])
    with pytest.raises(RecipeError, match=r"got '--number=2'; it would be ignored; see --help$"):
        parse_beam_options(["--number=2"])
    with pytest.raises(RecipeError, match="Beam option"):
        parse_beam_options(["--direct_num_workers=two"])


def test_the_default_runner_is_the_in_process_engine() -> None:
    """No other runner is tried, nothing is downloaded; `direct` is its name for users."""
    for flags in ([], ["--runner=direct"]):
        assert parse_beam_options(flags).get_all_options()["runner"] == "FnApiRunner"


def test_no_stream_of_the_engine_is_flushed_by_a_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beam's timed flush drops what is written while it runs, so that no stream may have one."""
    made: list[str] = []
    untimed = data_plane.SizeBasedBufferingClosableOutputStream.__init__

    def note(stream: object, *args: object, **options: object) -> None:
        made.append(type(stream).__name__)
        untimed(stream, *args, **options)

    monkeypatch.setattr(data_plane.SizeBasedBufferingClosableOutputStream, "__init__", note)
    threads = ["--direct_running_mode=multi_threading", "--direct_num_workers=2"]
    run(tmp_path, parse_beam_options(threads))
    assert set(made) == {"SizeBasedBufferingClosableOutputStream"}
