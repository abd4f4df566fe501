"""How often Python looks for cycles while a graph runs, and what is given back at once."""

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pipelines.garbage import rare_collections

_BLOCKS = """
import ctypes
from pipelines.garbage import return_large_blocks

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "free", "fast", "blocks", *"abcdef")]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
return_large_blocks()
bytearray(16 << 20)  # freed at once
before = library.mallinfo2().blocks
block = bytearray(8 << 20)
print(library.mallinfo2().blocks - before)
"""
"""Prints how many blocks of their own the system gives for 8 MiB, once 16 MiB were freed."""


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


@pytest.mark.skipif(
    getattr(ctypes.CDLL(None), "mallinfo2", None) is None, reason="not this C library"
)
def test_large_blocks_are_the_systems_also_after_one_was_freed() -> None:
    """Else they lie between others in an arena, which cannot be given back."""
    found = subprocess.run([sys.executable, "-c", _BLOCKS], capture_output=True, text=True)
    assert found.stdout == "1\n", found.stderr
