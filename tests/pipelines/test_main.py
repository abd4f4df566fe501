"""The command line: statuses, one-line errors, and nothing loaded before it is needed."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import pipelines
from pipelines.main import COMMANDS, main
from tests.verified_streams import write_whole_stream
from zephon_beam.errors import DriftError
from zephon_beam.layout import shard_name, state_name

ROOT = Path(__file__).parents[2]
FACTS = {
    "samples": 1024,
    "complete_samples": 1000,
    "tokens": 2_000_000,
    "tokens_per_second": 1234.5,
    "advances": 2,
    "finished": False,
    "datasets": {
        "web": {
            "tokens": 1_500_000,
            "share": 0.75,
            "truncated_tokens": 7,
            "dropped_tokens": 0,
            "quarantined": 1234,
        },
        "code": {
            "tokens": 5,
            "share": 0.25,
            "truncated_tokens": 0,
            "dropped_tokens": 8000,
            "quarantined": 0,
        },
    },
}
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """Return the path of an endless recipe."""
    path = tmp_path / "recipe.yaml"
    path.write_text("name: x\ntokenizer: {path: t.json}\ndatasets: {web: {files: '*.jsonl'}}\n")
    return str(path)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace what runs a stream by something that notes its arguments."""
    noted: list[Any] = []

    def run_stream(*args: Any, progress: Callable[[Any], None], **options: Any) -> dict[str, Any]:
        noted.append((args, options))
        for done, supplied in ((10, None), (500, 0.25), (1000, None)):
            progress(
                SimpleNamespace(
                    advance=3,
                    complete_samples=done,
                    until_samples=2000,
                    seconds=1.5,
                    samples=done + 5,
                    supplied=supplied,
                    endless=False,
                    running=supplied is not None,
                )
            )
        return FACTS

    module = ModuleType("pipelines.run")
    module.run_stream = run_stream  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pipelines.run", module)
    return noted


def complaint(capsys: Capture, words: list[str], status: int = 2) -> str:
    """Return the one line that a failing command writes."""
    assert main(words) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("zephon-beam: error: ")
    return captured.err.removeprefix("zephon-beam: error: ").rstrip()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            [],
            f"a command must be given, one of {', '.join(COMMANDS)}; see zephon-beam --help",
        ),
        (["ispect", "s"], "got 'ispect'; did you mean 'inspect'?"),
        (
            ["xyz"],
            f"command must be one of {', '.join(COMMANDS)}, got 'xyz'; see zephon-beam",
        ),
        (["--vershun"], "unrecognized arguments: --vershun"),
        (
            ["inspect"],
            "the following arguments are required: STREAM; see zephon-beam inspect --help",
        ),
        (["inspect", "s", "--jsn"], "unknown flag '--jsn', did you mean --json?"),
        (["inspect", "s", "--js"], "unknown flag '--js', did you mean --json?"),
        (["verify", "s", "--runner", "X"], "unknown flag '--runner'"),
        (["verify", "s", "t"], "unexpected argument 't'"),
        (
            ["verify", "s", "--until-samples", "1e6"],
            "--until-samples must be an integer, got '1e6'; write digits only; see zephon-beam ver",
        ),
        (["verify", "s", "--until-samples", "0"], "--until-samples must be at least 1, got 0"),
        (["inspect", "/no/such/place"], "stream must hold stream.json, found none in '/no/such/pl"),
        (["verify", "/no/such/place"], "stream must hold stream.json, found none in '/no/such/pla"),
        (
            ["inspect", "s3x://bucket/s"],
            "stream must be a local path or an address that begins with one of file://, gs",
        ),
        (["run", "r.yaml"], "the following arguments are required: --stream"),
        (
            ["run", "/no/r.yaml", "--stream", "s"],
            "recipe must be a file that can be read, got '/no/r",
        ),
    ],
)
def test_a_wrong_command_is_one_line_and_status_2(
    capsys: Capture, words: list[str], text: str
) -> None:
    """No usage text, no traceback: what is wrong and what to do."""
    assert text in complaint(capsys, words)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "give --until-samples N, --until-tokens N or --follow, or set passes"),
        (["--until-samples", "0"], "--until-samples must be an integer of at least 1, got 0"),
        (["--until-tokens", "-5"], "--until-tokens must be an integer of at least 1, got -5"),
        (["--until-samples", "1", "--until-tokens", "1"], "must not both be given"),
        (["--until-sample", "5"], "unknown flag '--until-sample', did you mean --until-samples?"),
        (["--until_samples=5"], "unknown flag '--until_samples', did you mean --until-samples?"),
        (["--advance-byte=5"], "unknown flag '--advance-byte', did you mean --advance-bytes?"),
        (["--advance-bytes", "5K"], "--advance-bytes must be a number of bytes above 0, got '5K'"),
        (["--drain-bytes=0"], "--drain-bytes must be a number of bytes above 0, got '0'"),
        (["--follow", "--lookahead", "0"], "--lookahead must be an integer of at least 1, got 0"),
        (["--follow", "--retain", "pin"], "--retain must be one of all, pins, got 'pin'; did you"),
        (["--lookahead", "9"], "--lookahead must be given together with --follow, got it alone"),
        (["--retain", "pins"], "--retain pins must be given together with --follow, got it alone"),
        (["other.yaml"], "unexpected argument 'other.yaml'"),
    ],
)
def test_run_refuses_before_anything_starts(
    capsys: Capture, calls: list[Any], recipe: str, words: list[str], text: str
) -> None:
    """Limits, sizes and misspelt flags are judged before Beam is loaded."""
    assert text in complaint(capsys, ["run", recipe, "--stream", "s", *words])
    assert calls == []


def test_recipe_errors_name_the_file_and_line(
    capsys: Capture, calls: list[Any], recipe: str
) -> None:
    """The recipe is checked before Beam is loaded."""
    Path(recipe).write_text(Path(recipe).read_text() + "lane: 4\n")
    text = complaint(capsys, ["run", recipe, "--stream", "s", "--until-samples", "4"])
    assert text == f"{recipe}:4: unknown key 'lane'; did you mean 'lanes'?"
    assert calls == []


def test_a_recipe_behind_beam_options_is_explained(capsys: Capture, recipe: str) -> None:
    """The value of an unknown option cannot be told from the recipe."""
    words = ["run", "--runner", "FlinkRunner", recipe, "--stream", "s", "--until-samples", "4"]
    assert complaint(capsys, words).endswith("options of Beam must come after it")


def test_run_hands_over_limits_sizes_and_beam_options(
    capsys: Capture, calls: list[Any], recipe: str
) -> None:
    """Sizes become bytes; options of Beam stay as they are written, in order."""
    beam = ["--runner", "FlinkRunner", "--streaming", "--flink_master=x", "--experiments", "a"]
    words = ["run", recipe, "--stream", "s", "--until-samples", "5", "--advance-bytes", "1MiB"]
    assert main([*words, *beam]) == 0
    [((given, stream), options)] = calls
    assert given == recipe
    assert stream == "s"
    assert options == {
        "until_samples": 5,
        "until_tokens": None,
        "advance_bytes": 1 << 20,
        "backend": "auto",
        "follow": False,
        "endless": False,
        "lookahead": None,
        "retain": "all",
        "options": beam,
    }
    captured = capsys.readouterr()
    assert captured.err == (
        "advance 3: 10 samples complete, 2,000 wanted, after 1.5 s\n"
        "advance 3: 1,000 samples complete, 2,000 wanted, after 1.5 s\n"
    )
    assert captured.out == (
        "samples   1,024, complete: 1,000\n"
        "tokens    2,000,000\n"
        "tokens/s  1,234\n"
        "advances  2\n"
        "\n"
        "data set    share     tokens  truncated  dropped\n"
        "web       75.00 %  1,500,000          7        0\n"
        "code      25.00 %          5          0    8,000\n"
        "documents set aside: 1,234 of web; see s/quarantine\n"
    )


def test_run_prints_one_json_object(capsys: Capture, calls: list[Any], recipe: str) -> None:
    """Standard output is for programs alone; progress goes to standard error."""
    assert main(["run", recipe, "--stream", "s", "--until-tokens", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == FACTS
    assert calls[0][1]["until_tokens"] == 5


def test_a_finite_recipe_runs_without_a_limit(calls: list[Any], recipe: str) -> None:
    """It ends by itself."""
    text = Path(recipe).read_text().replace("'*.jsonl'", "'*.jsonl', passes: 1")
    Path(recipe).write_text(text)
    assert main(["run", recipe, "--stream", "s"]) == 0
    assert len(calls) == 1


def test_progress_on_a_terminal_is_a_bar(
    capsys: Capture, calls: list[Any], recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows samples and leaves its line at the end."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["run", recipe, "--stream", "s", "--until-samples", "2000"]) == 0
    shown = capsys.readouterr().err
    assert "1005/2000" in shown
    assert "advance 3: 25 % read" in shown
    assert shown.endswith("\n")
    assert len(calls) == 1


def test_python_runs_a_stream_as_the_command_line_does(calls: list[Any]) -> None:
    """`pipelines.run_stream` is the same with the same names."""
    facts = pipelines.run_stream("r.yaml", "s", until_samples=3, options=["--x"], progress=len_of)
    assert facts == FACTS
    assert calls == [(("r.yaml", "s"), {"until_samples": 3, "options": ["--x"]})]


def len_of(_done: Any) -> None:
    """Take a progress report."""


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (DriftError("recipe differs:\n seed"), 1, "zephon-beam: error: recipe differs: seed\n"),
        (
            KeyboardInterrupt(),
            130,
            "zephon-beam: interrupted; the stream is intact, and the same command goes on with "
            "it\n",
        ),
    ],
)
def test_status_tells_whose_fault_it_is(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, text: str
) -> None:
    """1: stream or data; 130: interrupted. Each is one line."""

    def fail(_uri: str) -> None:
        raise error

    monkeypatch.setattr("zephon_beam.inspection.inspect_stream", fail)
    assert main(["inspect", "s"]) == status
    assert capsys.readouterr().err == text


@pytest.mark.parametrize("error", [RuntimeError, DriftError])
def test_an_interrupt_that_a_worker_turns_into_an_error_is_still_an_interrupt(
    capsys: Capture,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    """Beam re-raises Ctrl-C in a worker as an error of the step that ran, and logs it."""

    def work(_uri: str) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as interrupt:
            logging.getLogger("worker").error("KeyboardInterrupt [while running 'Step']")
            raise error("KeyboardInterrupt [while running 'Step']") from interrupt

    monkeypatch.setattr("zephon_beam.inspection.inspect_stream", work)
    assert main(["inspect", "s"]) == 130
    assert capsys.readouterr().err.startswith("zephon-beam: interrupted; the stream is intact")
    assert caplog.records == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    logging.getLogger("worker").error("heard again")
    assert len(caplog.records) == 1


def test_traceback_flag_and_defects_keep_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect is never reduced to a line, and an error need not be."""

    def fail(_uri: str) -> None:
        raise DriftError("mine") if wanted else RuntimeError("defect")

    monkeypatch.setattr("zephon_beam.inspection.inspect_stream", fail)
    wanted = False
    with pytest.raises(RuntimeError, match="defect"):
        main(["inspect", "s"])
    wanted = True
    with pytest.raises(DriftError, match="mine"):
        main(["inspect", "s", "--traceback"])


def test_inspect_prints_the_same_facts_for_people_and_programs(
    capsys: Capture, tmp_path: Path
) -> None:
    """Text is aligned; JSON has the documented keys."""
    write_whole_stream(tmp_path, [9, 8])
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["inspect", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert f"fingerprint  {found['fingerprint']}\n" in text
    assert "samples      17, complete: 17\n" in text
    assert "lanes        2, of 8 to 9 samples\n" in text
    assert "finished     yes\n" in text
    web = found["datasets"]["web"]
    row = next(line for line in text.splitlines() if line.startswith("web "))
    assert row.split() == [
        "web",
        "0.25",
        f"{100 * web['share']:.2f}",
        "%",
        *(str(web[key]) for key in ("tokens", "documents", "truncated_tokens", "dropped_tokens")),
        "0",
    ]


def test_verify_prints_faults_then_the_digest(capsys: Capture, tmp_path: Path) -> None:
    """Status 0 and the digest if all is well; 1 and every fault otherwise."""
    write_whole_stream(tmp_path, [9, 8])
    assert main(["verify", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0 faults in 5 shards; samples: 17, complete: 17"
    assert lines[1].startswith("stream digest: ")
    assert len(lines[1].removeprefix("stream digest: ")) == 32
    (tmp_path / state_name(0, 0)).unlink()
    assert main(["verify", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("1 fault in 5 shards; ")
    (tmp_path / shard_name(0, 1)).write_bytes(b"")
    assert main(["verify", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines[:2]] == ["fault", "fault"]
    assert lines[-3].startswith(f"{len(lines) - 3} faults in 5 shards; ")
    assert lines[-2].startswith("to mend: delete the shards and lane states that are named")
    assert lines[-1] == "stream digest: none"
    assert main(["verify", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [f"fault: {fault}" for fault in found["faults"]] == lines[:-3]
    assert found["stream_digest"] is None


def test_verify_of_more_samples_than_exist_is_status_1(capsys: Capture, tmp_path: Path) -> None:
    """And its prefix has a digest of its own."""
    write_whole_stream(tmp_path, [9, 8])
    assert main(["verify", str(tmp_path), "--until-samples", "18"]) == 1
    assert "fault: samples: expected at least 18 complete ones, found 17" in capsys.readouterr().out
    assert main(["verify", str(tmp_path), "--until-samples", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 5


@pytest.mark.parametrize("word", ["--help", "--version", *(f"{name} --help" for name in COMMANDS)])
def test_help_and_version_are_status_0(capsys: Capture, word: str) -> None:
    """They are answers, not errors."""
    assert main(word.split()) == 0
    captured = capsys.readouterr()
    assert "zephon-beam" in captured.out
    assert captured.err == ""


def python(code: str, *args: str, folder: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_looking_and_refusing_load_no_beam(tmp_path: Path, recipe: str) -> None:
    """Help, inspection, verification and every usage error answer at once."""
    write_whole_stream(tmp_path / "s", [5, 4])
    stream = str(tmp_path / "s")
    commands = [
        (0, ["--help"]),
        (0, ["--version"]),
        (0, ["run", "--help"]),
        (0, ["demo", "--help"]),
        (0, ["inspect", stream]),
        (0, ["verify", stream]),
        (2, ["nonsense"]),
        (2, ["run", recipe, "--stream", stream]),
        (2, ["run", recipe, "--stream", stream, "--until-sample", "3"]),
        (2, ["run", recipe, "--stream", stream, "--lookahead", "9", "--runner", "PrismRunner"]),
        (0, ["gc", stream, "--dry-run"]),
        (2, ["run", "none.yaml", "--stream", stream, "--until-samples", "3"]),
    ]
    code = (
        "import json, sys; from pipelines.main import main\n"
        "for status, words in json.loads(sys.argv[1]):\n"
        "    assert main(words) == status, words\n"
        "    heavy = {'apache_beam', 'tokenizers', 'torch'} & set(sys.modules)\n"
        "    assert not heavy, (words, heavy)\n"
    )
    done = python(code, json.dumps(commands), folder=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr


def test_beam_options_are_never_taken_for_misspelt_flags() -> None:
    """Every option that Beam has today passes the check for look-alikes."""
    from apache_beam.options.pipeline_options import PipelineOptions

    from pipelines.commands import run
    from pipelines.main import _check_rest, _Parser

    found: list[Any] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=found.append)
    flags = [flag for action in found[0]._actions for flag in action.option_strings]
    parser = _Parser(prog="run")
    run.add_arguments(parser)
    own = {"-h", "--help"}
    _check_rest(parser, [flag for flag in flags if flag not in own], takes_beam_options=True)
    assert len(flags) > 100


SHADOWED = """
import os, sys
sys.path.insert(0, {root!r})
import pipelines.main
sys.path.remove({root!r})
sys.path.append({root!r})
sys.argv = ["zephon-beam", *sys.argv[1:]]
pipelines.main.console()
"""


def test_folders_of_the_same_name_do_not_shadow_ours(tmp_path: Path) -> None:
    """The working directory is the user's; its `transforms` is not ours."""
    for name in ("zephon_beam", "transforms", "pipelines"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('shadowed')\n")
    code = SHADOWED.format(root=str(ROOT))
    for inherited in ("", ".", str(tmp_path)):
        done = python(code, "inspect", "nothing", folder=tmp_path, PYTHONPATH=inherited)
        assert done.returncode == 2, done.stderr
        assert "stream must hold stream.json, found none" in done.stderr


def test_child_processes_inherit_the_safe_path(tmp_path: Path) -> None:
    """Local workers are interpreters of their own."""
    code = SHADOWED.format(root=str(ROOT)).replace(
        "pipelines.main.console()",
        "pipelines.main.main = lambda: print(os.environ['PYTHONSAFEPATH'], "
        "os.environ['PYTHONPATH'], [p for p in sys.path if not p or p == os.getcwd()]) or 0\n"
        "pipelines.main.console()",
    )
    inherited = os.pathsep.join(["/elsewhere", str(tmp_path), ""])
    done = python(code, folder=tmp_path, PYTHONPATH=inherited)
    assert done.stdout == "1 /elsewhere []\n", done.stderr


def test_a_checkout_stays_importable_from_within(tmp_path: Path) -> None:
    """Its folder is on the path because the package lies there, not because of the shell."""
    code = (
        "import sys; sys.argv = ['zephon-beam', 'inspect', sys.argv[1]]\n"
        "from pipelines.main import console\n"
        "console()\n"
    )
    done = python(code, str(tmp_path), folder=ROOT, PYTHONPATH="")
    assert "stream must hold stream.json, found none" in done.stderr


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    """`zephon-beam inspect … | head` ends quietly."""
    write_whole_stream(tmp_path / "s", [5, 4])
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.main", "inspect", str(tmp_path / "s")],
            cwd=ROOT,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "")
