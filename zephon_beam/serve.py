"""A pipeline beside a trainer: `zephon-beam run --follow` as a child process that dies with it.

    with serve("recipe.yaml", "/data/stream") as stream:
        for batch in StreamReader(stream, global_batch_size=64, micro_batch_size=8):
            train(batch)

For notebooks and trainers of one host. Nothing of Beam is imported here. The child watches a pipe
whose other end only this process holds, and the number of its parent, so that no end of this
process, not even SIGKILL, leaves it behind. What goes wrong in it is raised here: by a reader that
waits for samples, and at the end of the block.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from zephon_beam.checks import require
from zephon_beam.errors import PipelineError
from zephon_beam.layout import MANIFEST
from zephon_beam.limits import check_following
from zephon_beam.reader.waiting import Waiting
from zephon_beam.store.base import open_store

STOP_SECS = 10.0
"""Time that an interrupted pipeline has to end by itself; the stream is intact without it."""
_INTERRUPTED = "130"
_STATUS = "status"
_LOG = "log"
# The working directory may hold packages of the same names, so it is taken off the path.
_START = """
import sys
sys.path[:] = [sys.argv.pop(1), *(entry for entry in sys.path if entry)]
from pipelines.served import main
main()
"""


class ServedStream(os.PathLike[str]):
    """The place of a stream that a child process computes; pass it to `StreamReader`.

    Copies in other processes, such as workers of a data loader, know of the child's end too.
    """

    def __init__(self, uri: str, pid: int, folder: str) -> None:
        self._uri = uri
        self._folder = folder
        self.pid = pid
        """Of the child process."""

    def __fspath__(self) -> str:
        return self._uri

    def __str__(self) -> str:
        return self._uri

    def check(self) -> None:
        """Look whether the pipeline is well: it runs, or has nothing left to do.

        Raises:
            PipelineError: it has ended otherwise; the message is its own.
        """
        if not _is_running(self.pid):
            self._judge()

    def _judge(self) -> None:
        status = _read(self._folder, _STATUS)
        if status == "0":
            return
        said = _read(self._folder, _LOG).strip().splitlines()
        told = [line for line in said if ": error: " in line] or said[-1:]
        reason = told[-1].partition("error: ")[2] or told[-1] if told else "it said nothing"
        how = f"with status {status}" if status else "without a word, so it was killed"
        raise PipelineError(
            f"the pipeline of {self._uri!r} must run while the stream is read, ended {how}: "
            f"{reason}; the stream is intact; start again when the cause is mended"
        )


@contextmanager
def serve(
    recipe: str | os.PathLike[str],
    stream: str | os.PathLike[str],
    *,
    lookahead: int | None = None,
    retain: str = "all",
    options: Sequence[str] = (),
    timeout: float | None = None,
) -> Iterator[ServedStream]:
    """Compute a stream in a child process for as long as the block lasts.

    Of several ranks on one host one serves; two would do the work twice, and no harm.

    Args:
        recipe: path of a recipe file.
        stream: path or URI of the stream; it goes on if it exists.
        lookahead: samples to keep ahead of the slowest named reader, as `--lookahead`.
        retain: `all` or `pins`, as `--retain`.
        options: more words for the command line, for example of Beam.
        timeout: seconds to wait until the stream can be opened; None waits for ever.

    Yields:
        The stream's place, once it can be opened.

    Raises:
        RecipeError: an argument is wrong.
        PipelineError: the pipeline has failed.
        StreamTimeoutError: the stream could not be opened within `timeout`.

    Determinism: the stream depends on the recipe and its sources, never on the child's life.
    """
    require(
        isinstance(recipe, (str, os.PathLike)),
        "recipe",
        "the path of a recipe file",
        recipe,
        "write the recipe to a file",
    )
    check_following(follow=True, lookahead=lookahead, retain=retain)
    uri = os.fspath(stream)
    words = ["run", os.fspath(recipe), "--stream", uri, "--follow", "--retain", retain]
    if lookahead is not None:
        words += ["--lookahead", str(lookahead)]
    with tempfile.TemporaryDirectory(prefix="zephon-beam-serve-") as folder:
        child = _start([*words, *options], folder)
        served = ServedStream(uri, child.pid, folder)
        try:
            _wait_for_manifest(served, timeout)
            yield served
        except BaseException:
            _stop(child)
            raise
        has_ended = child.poll() is not None
        _stop(child)
        # It may have been about to end by itself when it was interrupted.
        if has_ended or _read(folder, _STATUS) not in ("", "0", _INTERRUPTED):
            served.check()


def _start(words: Sequence[str], folder: str) -> "subprocess.Popen[bytes]":
    root = str(Path(__file__).parents[1])
    # The kernel watches the thread that starts a process; only the main one lasts as long as we do.
    is_main = threading.current_thread() is threading.main_thread()
    about = [str(os.getpid()), os.path.join(folder, _STATUS), "kernel" if is_main else "pipe"]
    with open(os.path.join(folder, _LOG), "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", _START, root, *about, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )


def _stop(child: "subprocess.Popen[bytes]") -> None:
    """Interrupt the pipeline, and end it with all its processes if it takes too long."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(STOP_SECS)
        except subprocess.TimeoutExpired:
            child.kill()
    with suppress(ProcessLookupError):  # it had no processes of its own, or they have ended
        os.killpg(child.pid, signal.SIGKILL)
    if child.stdin is not None:
        child.stdin.close()
    child.wait()


def _wait_for_manifest(served: ServedStream, timeout: float | None) -> None:
    store = open_store(os.fspath(served))
    waiting = Waiting(
        f"serving {served}",
        timeout=timeout,
        clock=time.monotonic,
        sleep=time.sleep,
        on_pause=served.check,
    )
    try:
        while not store.exists(MANIFEST):
            if waiting.expired:
                waiting.give_up(MANIFEST)
            waiting.pause(MANIFEST)
    finally:
        waiting.close()


def _is_running(pid: int) -> bool:
    """Say whether a process exists and has not ended, also where another process waits for it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return True
    return after_name.split()[0] != "Z"


def _read(folder: str, name: str) -> str:
    try:
        return Path(folder, name).read_text(errors="replace")
    except OSError:
        return ""
