"""Options: what is refused, what passes through, and what each runner is given unasked."""

import json
import logging
from typing import Any

import pytest

from pipelines.engine_defaults import JOB_SECS
from pipelines.options import is_parallel, parse_beam_options
from zephon_beam.errors import RecipeError


def parsed(*flags: str) -> dict[str, Any]:
    """Return every option after parsing some flags."""
    return parse_beam_options(flags).get_all_options(retain_unknown_options=True)


@pytest.mark.parametrize(
    ("name", "runner"),
    [
        ("direct", "FnApiRunner"),
        ("prism", "PrismRunner"),
        ("flink", "FlinkRunner"),
        ("FlinkRunner", "FlinkRunner"),
        ("spark", "SparkRunner"),
        ("PortableRunner", "PortableRunner"),
        ("dataflow", "DataflowRunner"),
        ("directrunner", "DirectRunner"),
    ],
)
def test_runners_have_short_names(name: str, runner: str) -> None:
    """As Beam has them, but for `direct`, which is the engine that needs no other program."""
    assert parsed(f"--runner={name}")["runner"] == runner
    assert is_parallel(parse_beam_options([f"--runner={name}"])) == (name != "direct")


def test_a_runner_that_does_not_exist_is_refused() -> None:
    """By the name that was given."""
    with pytest.raises(RecipeError, match=r"--runner must be direct or a runner .* got 'Flonk'"):
        parsed("--runner=Flonk")


@pytest.mark.parametrize("flag", ["--streaming", "--no_wait_until_finish"])
@pytest.mark.parametrize("runner", ["direct", "FlinkRunner", "DataflowRunner"])
def test_what_an_advance_cannot_be_is_refused(flag: str, runner: str) -> None:
    """Engines lose the output of an advance that they take for an endless job."""
    with pytest.raises(RecipeError, match=f"{flag} must not be given to a run.*leave it out"):
        parsed(f"--runner={runner}", flag)


def test_an_advance_is_not_stored_instead_of_run() -> None:
    """The jar would hold one advance, for ever the same."""
    with pytest.raises(RecipeError, match="--output_executable_path must not be given"):
        parsed("--runner=FlinkRunner", "--output_executable_path=/tmp/x.jar")


@pytest.mark.parametrize("runner", ["direct", "PrismRunner", "DataflowRunner", "DirectRunner"])
def test_runners_without_flags_of_their_own_refuse_unknown_ones(runner: str) -> None:
    """Nobody would read them."""
    with pytest.raises(RecipeError, match=r"got '--state_backend=rocksdb'; it would be ignored"):
        parsed(f"--runner={runner}", "--state_backend=rocksdb")
    with pytest.raises(RecipeError, match="it would be ignored"):
        parsed("--runner=PortableRunner", "--job_endpoint=embed", "--state_backend=rocksdb")


@pytest.mark.parametrize("runner", ["FlinkRunner", "SparkRunner", "PortableRunner"])
def test_flags_of_a_job_server_pass_through_and_are_named(
    runner: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A misspelling is seen in the warning, which names what it is like."""
    with caplog.at_level(logging.WARNING):
        found = parsed(f"--runner={runner}", "--state_backend=rocksdb", "--paralelism", "2")
    assert found["state_backend"] == "rocksdb"
    (warning,) = caplog.messages
    assert "--state_backend, --paralelism: no option of zephon-beam" in warning
    with caplog.at_level(logging.WARNING):
        parsed(f"--runner={runner}", "--parallelismm=2")
    assert "(--parallelism is one of Beam)" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        (["--runner=FlinkRunner"], "LOOPBACK"),
        (["--runner=FlinkRunner", "--flink_master=localhost:8081"], "LOOPBACK"),
        (["--runner=FlinkRunner", "--flink_master=http://[::1]:8081"], "LOOPBACK"),
        (["--runner=FlinkRunner", "--flink_master=flink.example:8081"], None),
        (
            ["--runner=flink", "--flink_master=flink.example:1", "--job_endpoint=localhost:2"],
            None,
        ),
        (["--runner=FlinkRunner", "--job_endpoint=127.0.0.1:8099"], "LOOPBACK"),
        (["--runner=PortableRunner", "--job_endpoint=jobs.example:8099"], None),
        (["--runner=PortableRunner", "--job_endpoint=localhost:8099"], "LOOPBACK"),
        (["--runner=PortableRunner", "--job_endpoint=embed"], "LOOPBACK"),
        (["--runner=SparkRunner"], "LOOPBACK"),
        (["--runner=SparkRunner", "--spark_master_url=spark://spark.example:7077"], None),
        (["--runner=PrismRunner"], "LOOPBACK"),
        (["--runner=DataflowRunner"], None),
        (["--runner=PrismRunner", "--environment_type=EXTERNAL"], "EXTERNAL"),
    ],
)
def test_this_process_is_the_worker_of_engines_on_this_machine_only(
    flags: list[str], environment: str | None
) -> None:
    """Workers elsewhere could not reach it."""
    assert parsed(*flags)["environment_type"] == environment


def test_engines_are_given_what_a_run_needs() -> None:
    """State is cached, workers outlive a stage, and a job may take longer than five minutes."""
    for runner in ("FlinkRunner", "SparkRunner", "PortableRunner"):
        found = parsed(f"--runner={runner}")
        assert found["max_cache_memory_usage_mb"] == 256
        assert found["environment_cache_millis"] == 30_000
        assert found["job_server_timeout"] == JOB_SECS
    found = parsed("--runner=PrismRunner")
    assert found["job_server_timeout"] == JOB_SECS
    assert found["prism_log_level"] == "warn"


def test_flags_of_the_user_win() -> None:
    """Also where they say what is Beam's default."""
    found = parsed(
        *("--runner=flink", "--environment_cache_millis=0", "--job_server_timeout", "300"),
        *("--max_cache_memory_usage_mb=0", "--environment_type=DOCKER"),
    )
    assert int(found["environment_cache_millis"]) == 0
    assert found["job_server_timeout"] == 300
    assert found["max_cache_memory_usage_mb"] == 0
    assert found["environment_type"] == "DOCKER"
    found = parsed("--runner=prism", "--prism_location=/x/prism", "--prism_log_level=info")
    assert (found["prism_location"], found["prism_log_level"]) == ("/x/prism", "info")


def test_worker_processes_are_started_by_our_program(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found beside the interpreter, or the error says what to install."""
    flags = ["--runner=flink", "--environment_type=PROCESS"]
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(RecipeError, match="must find the program zephon-beam-worker"):
        parsed(*flags)
    own = '--environment_config={"command": "/x"}'
    assert json.loads(parsed(*flags, own)["environment_config"]) == {"command": "/x"}
    (tmp_path / "zephon-beam-worker").touch()
    found = parsed(*flags)
    assert json.loads(found["environment_config"]) == {
        "command": str(tmp_path / "zephon-beam-worker")
    }


def test_what_worker_processes_do_not_install_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With our program as the worker; another may do as Beam's containers do."""
    (tmp_path / "zephon-beam-worker").touch()
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    flags = ["--runner=flink", "--environment_type=PROCESS"]
    for flag in ("--setup_file=./setup.py", "--requirements_file=r.txt", "--extra_package=a.zip"):
        name, _, value = flag.partition("=")
        with pytest.raises(RecipeError, match=f"{name} must be left out .* got '{value}'.* wheels"):
            parsed(*flags, flag)
        parsed(*flags, flag, '--environment_config={"command": "/x"}')
        parsed("--runner=dataflow", flag)
    assert parsed(*flags, "--extra_package=a.whl")["extra_packages"] == ["a.whl"]
