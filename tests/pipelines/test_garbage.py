"""How often Python looks for cycles while a graph runs."""

import gc
from collections.abc import Iterator

import pytest

from pipelines.garbage import rare_collections


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("thresholds", [(700, 10, 10), (500_000, 5, 3), (0, 10, 10)])
def test_the_caller_gets_its_thresholds_back(thresholds: tuple[int, int, int]) -> None:
    """Also when the block fails."""
    gc.set_threshold(*thresholds)
    with pytest.raises(KeyError), rare_collections():
        raise KeyError
    assert gc.get_threshold() == thresholds


def test_collections_become_rarer_and_never_more_frequent() -> None:
    """What the caller set higher, or switched off, stays so."""
    gc.set_threshold(700)
    with rare_collections():
        assert gc.get_threshold()[0] > 50_000
    gc.set_threshold(10**9)
    with rare_collections():
        assert gc.get_threshold()[0] == 10**9
    gc.set_threshold(0)
    with rare_collections():
        assert gc.get_threshold()[0] == 0
