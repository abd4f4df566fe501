"""`selftest`: one small stream, computed by several engines in several ways, must be one stream.

The corpus is a part of the demo's, with a filter. Each engine computes it with arrivals in the
engine's own order and shuffled on purpose, in one advance and in several.
"""

import json
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import apache_beam
import grpc

from pipelines.demo_corpus import TOKENIZER_FILE, docstrings
from pipelines.engines.local import ready_engine
from pipelines.engines.software import NotAvailableError
from pipelines.recipe_file import load_recipe
from pipelines.run import run_stream
from transforms.shuffle_arrivals import ShuffleArrivals
from transforms.tokenize_documents import TokenizeDocuments
from zephon_beam.errors import ZephonBeamError
from zephon_beam.recipe import Recipe
from zephon_beam.verification import verify_stream

_MISSING_ENGINES = (
    "apache_beam.runners.worker.data_plane",
    "apache_beam.runners.worker.sdk_worker",
)
"""Who logs that an engine does not answer any more."""
ARRIVALS: tuple[int | None, ...] = (None, 1, 2)
"""Seeds of arrival orders; None: as the engine delivers."""
WHOLE_ADVANCE = 1 << 30
SMALL_ADVANCE = 1
"""Source bytes an advance: an advance supplies no less than what every lane needs to go on."""
RECIPE = """\
name: selftest
lanes: 3
seq_len: 128
samples_per_shard: 16
chunk_bytes: 8KiB
tokenizer: {{path: {tokenizer}, pad: "<|pad|>"}}
datasets:
  code: {{files: code/*.py, format: text, weight: 0.7, passes: 1}}
  prose:
    files: prose.jsonl
    weight: 0.3
    passes: 1
    transforms: [{{call: filter_length, with: {{min_characters: 40}}}}]
shuffle: {{interleave: 1}}
packing: {{open_bins: 8}}
"""
_CODE_FOLDER = "utils"
_PROSE_FOLDERS = ("io/aws", "metrics", "options")
"""Folders of apache-beam: of the modules that are the code, and of those that hold the prose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One way to compute the stream, and what came of it."""

    engine: str
    arrivals: int | None
    advances: int = 0
    digest: str = ""
    tokens: int = 0
    seconds: float = 0.0
    error: str = ""
    """Why there is no stream."""
    unavailable: str = ""
    """What to install, where the engine could not be started."""


def run_selftest(
    engines: Sequence[str],
    *,
    folder: str | None = None,
    short: bool = False,
    install: bool = False,
    options: Sequence[str] = (),
    tell: Callable[[Cell], None] | None = None,
) -> list[Cell]:
    """Compute the stream of the self-test in every way and return what came of each.

    Args:
        engines: names of `pipelines.engines.local.ENGINES`.
        folder: for corpus and streams, where all workers see it; None: a temporary one.
        short: arrivals in the engine's order in one advance, and shuffled in several; nothing else.
        install: fetch the software of engines that is not here.
        options: Beam options for engines other than the in-process ones.
        tell: called with each cell when it is done.

    Determinism: the digest depends on the release of apache-beam alone.
    """
    cells = []
    with _folder(folder) as base:
        recipe = load_recipe(_write_corpus(base / "corpus"))
        for engine in engines:
            for cell in _run_engine(engine, recipe, base, short, install, options):
                cells.append(cell)
                if tell is not None:
                    tell(cell)
    return cells


def differing(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that have no stream, or another one than the first that has one."""
    tried = [cell for cell in cells if not cell.unavailable]
    first = next((cell.digest for cell in tried if cell.digest), "")
    return [cell for cell in tried if cell.error or cell.digest != first]


def _write_corpus(folder: Path) -> Path:
    """Write some modules of apache-beam, docstrings of some others, and the recipe."""
    (folder / "code").mkdir(parents=True)
    package = Path(str(apache_beam.__file__)).parent
    for module in sorted((package / _CODE_FOLDER).glob("*.py")):
        shutil.copyfile(module, folder / "code" / module.name)
    texts = [
        text
        for name in _PROSE_FOLDERS
        for module in sorted((package / name).glob("*.py"))
        for _, text in docstrings(module.read_text(encoding="utf-8"))
    ]
    (folder / "prose.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    recipe = folder / "selftest.yaml"
    recipe.write_text(RECIPE.format(tokenizer=TOKENIZER_FILE))
    return recipe


def _run_engine(
    engine: str,
    recipe: Recipe,
    base: Path,
    short: bool,
    install: bool,
    options: Sequence[str],
) -> Iterator[Cell]:
    ways = [(seed, size) for seed in ARRIVALS for size in (WHOLE_ADVANCE, SMALL_ADVANCE)]
    if short:
        ways = [(None, WHOLE_ADVANCE), (1, SMALL_ADVANCE)]
    try:
        with (
            _quiet_workers(),
            ready_engine(engine, options, base / f"engine-{engine}", install=install) as flags,
        ):
            for seed, advance_bytes in ways:
                yield _run_cell(engine, recipe, base / "stream", seed, advance_bytes, flags)
    except NotAvailableError as error:
        yield Cell(engine=engine, arrivals=None, unavailable=str(error))


def _run_cell(
    engine: str,
    recipe: Recipe,
    stream: Path,
    seed: int | None,
    advance_bytes: int,
    flags: Sequence[str],
) -> Cell:
    shutil.rmtree(stream, ignore_errors=True)
    started = time.monotonic()
    try:
        with shuffled_arrivals(seed):
            facts = run_stream(recipe, stream, advance_bytes=advance_bytes, options=flags)
        seconds = time.monotonic() - started
        report = verify_stream(str(stream))
        if not report.ok:
            raise ZephonBeamError(str(report.faults[0]))
    except (ZephonBeamError, RuntimeError, OSError) as error:
        # Engines raise what they like; the cell says so and the others still run.
        words = " ".join(str(error).split())
        return Cell(engine=engine, arrivals=seed, error=words or type(error).__name__)
    return Cell(
        engine=engine,
        arrivals=seed,
        advances=facts["advances"],
        digest=str(report.stream_digest),
        tokens=facts["tokens"],
        seconds=seconds,
    )


@contextmanager
def shuffled_arrivals(seed: int | None) -> Iterator[None]:
    """Let the graphs that are built in the block shuffle what goes to the lanes."""

    class TokenizeAndShuffle(TokenizeDocuments):
        def expand(self, documents: Any) -> Any:
            return super().expand(documents) | "ShuffleArrivals" >> ShuffleArrivals(int(seed or 0))

    if seed is None:
        yield
        return
    with mock.patch("pipelines.advance.TokenizeDocuments", TokenizeAndShuffle):
        yield


@contextmanager
def _quiet_workers() -> Iterator[None]:
    """Keep workers in threads of this process from telling at length that an engine was stopped."""
    loggers = [logging.getLogger(name) for name in _MISSING_ENGINES]
    previous = threading.excepthook

    def notice(failure: threading.ExceptHookArgs) -> None:
        if not isinstance(failure.exc_value, grpc.RpcError):
            previous(failure)

    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    threading.excepthook = notice
    try:
        yield
    finally:
        threading.excepthook = previous
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _folder(chosen: str | None) -> Iterator[Path]:
    """Yield a new folder below the chosen one, and delete it."""
    if chosen is not None:
        Path(chosen).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="zephon-beam-selftest-", dir=chosen) as temporary:
        yield Path(temporary).absolute()
