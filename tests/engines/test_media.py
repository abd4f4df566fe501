"""Engines with processes of their own write the pixels of one process."""

from pathlib import Path

import pytest

from pipelines.run import run_stream
from tests.engines.engine_streams import ENGINE_MARKS
from tests.media_sources import write_mixed
from tests.pipelines.small_streams import tree

pytestmark = ENGINE_MARKS


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the recipe of content and conversations with images and videos."""
    return write_mixed(tmp_path_factory.mktemp("engines_media"))


@pytest.fixture(scope="module")
def media_tree(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the digests of what one worker in this process writes in one advance."""
    folder = tmp_path_factory.mktemp("engines_media_expected") / "stream"
    assert run_stream(recipe, folder)["finished"]
    return tree(folder)


def test_prism_decodes_the_same_pixels(
    prism_flags: list[str], recipe: Path, media_tree: dict[str, str], tmp_path: Path
) -> None:
    """In several advances, with shards spread over workers before they are decoded."""
    facts = run_stream(recipe, tmp_path / "s", options=prism_flags, advance_bytes=1)
    assert facts["finished"]
    assert facts["advances"] > 1
    assert tree(tmp_path / "s") == media_tree
