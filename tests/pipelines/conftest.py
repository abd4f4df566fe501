"""A small corpus and three streams of it that ran without interruption, made once a session."""

from pathlib import Path

import pytest

from tests.pipelines.small_streams import (
    SmallStream,
    run,
    tree,
    write_recipe,
    write_small_corpus,
)

_REFERENCE_SAMPLES = 900


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the small corpus; tests must not write into it."""
    folder = tmp_path_factory.mktemp("small_corpus")
    write_small_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def endless(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallStream:
    """Return the stream of the recipe that repeats its data sets, computed in one advance."""
    recipe = write_recipe(corpus / "endless.yaml")
    folder = tmp_path_factory.mktemp("endless") / "stream"
    facts = run(recipe, folder, until_samples=_REFERENCE_SAMPLES)
    return SmallStream(recipe=recipe, folder=folder, tree=tree(folder), facts=facts)


@pytest.fixture(scope="session")
def finite(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallStream:
    """Return the whole stream of the recipe that reads each data set once, in one advance."""
    recipe = write_recipe(corpus / "finite.yaml", finite=True)
    folder = tmp_path_factory.mktemp("finite") / "stream"
    facts = run(recipe, folder)
    return SmallStream(recipe=recipe, folder=folder, tree=tree(folder), facts=facts)


@pytest.fixture(scope="session")
def narrow(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallStream:
    """Return a finite stream that takes many advances if they are small; here it took one."""
    changes = [("interleave: 3", "interleave: 1"), ("16KiB", "4KiB")]
    recipe = write_recipe(corpus / "narrow.yaml", finite=True, changes=changes)
    folder = tmp_path_factory.mktemp("narrow") / "stream"
    facts = run(recipe, folder)
    assert facts["advances"] == 1
    return SmallStream(recipe=recipe, folder=folder, tree=tree(folder), facts=facts)
