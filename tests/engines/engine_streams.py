"""The stream that every engine must write: three data sets, two of them filtered."""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from pipelines.selftest import shuffled_arrivals
from tests.pipelines.small_streams import SmallStream, run, tree
from transforms import tokenize_documents

ENGINE_MARKS = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    # Workers in threads of this process outlive a job, and miss the engine when it stops.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
"""Of each module whose tests need an engine that is not in this process."""
SHORTEST = 120
"""Characters of the shortest document of a filtered data set."""
CHANGES = (
    (
        "prose/*.jsonl, weight: 0.3",
        f"prose/*.jsonl, weight: 0.3, transforms: [{{call: filter_length, "
        f"with: {{min_characters: {SHORTEST}}}}}]",
    ),
    (
        "text: body, weight: 0.2",
        f"text: body, weight: 0.2, transforms: [{{call: filter_length, "
        f"with: {{max_characters: {SHORTEST}}}}}]",
    ),
)
"""What makes the recipe of the small corpus that of these tests."""


def assert_one_tree(
    expected: SmallStream,
    stream: Path,
    options: Sequence[str],
    *,
    shuffled: int | None = None,
    advance_bytes: int = 1 << 30,
    advances: int = 1,
) -> None:
    """Run the stream with an engine and compare every object of it with the expected one.

    Args:
        expected: what the engine in this process has written.
        stream: where to write.
        options: what chooses the engine.
        shuffled: seed of an order of arrivals; None: as the engine delivers.
        advance_bytes: source bytes an advance.
        advances: how many there must be at least.
    """
    with shuffled_arrivals(shuffled):
        facts = run(expected.recipe, stream, options=options, advance_bytes=advance_bytes)
    assert facts["finished"]
    assert facts["advances"] >= advances
    assert tree(stream) == expected.tree


def damaged_recipe(expected: SmallStream, folder: Path) -> Path:
    """Return a recipe for a copy of the corpus in which the fifth line of a file is damaged."""
    corpus = folder / "corpus"
    shutil.copytree(expected.recipe.parent, corpus)
    damaged = corpus / "prose" / "part-1.jsonl"
    lines = damaged.read_text().splitlines(keepends=True)
    lines[4] = "{" + lines[4]
    damaged.write_text("".join(lines))
    return corpus / expected.recipe.name


@contextmanager
def slow_tokenizer(monkeypatch: pytest.MonkeyPatch, note: Path, secs: float) -> Iterator[None]:
    """Let the tokenizer, in this process, leave a file and wait at each part."""
    usual = tokenize_documents._TokenizeParts.process

    @wraps(usual)
    def process(self: Any, element: Any) -> Any:
        note.touch()
        time.sleep(secs)
        return usual(self, element)

    with monkeypatch.context() as patch:
        patch.setattr(tokenize_documents._TokenizeParts, "process", process)
        yield
