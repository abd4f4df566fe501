"""The wish to drain: which jobs it is for, and what the source counts for it."""

from pathlib import Path

import pytest

from zephon_beam.draining import ask_to_drain, is_drain_asked
from zephon_beam.layout import DRAIN
from zephon_beam.plan import SupplyEntry
from zephon_beam.store.local import LocalStore
from zephon_beam.supplied import ChannelSupply, Supplied, decode_supplied, encode_supplied


def test_a_wish_is_for_jobs_that_were_there(tmp_path: Path) -> None:
    """It stays in the stream, and must not end a job that begins later."""
    store = LocalStore(str(tmp_path))
    assert not is_drain_asked(store, 0)
    ask_to_drain(store, 3)
    assert [is_drain_asked(store, job) for job in range(5)] == [True, True, True, True, False]


def test_an_older_wish_takes_none_back(tmp_path: Path) -> None:
    """Of two who ask at once the slower one may have seen less."""
    store = LocalStore(str(tmp_path))
    ask_to_drain(store, 3)
    ask_to_drain(store, 1)
    assert is_drain_asked(store, 3)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b'{"advance": null}'])
def test_a_damaged_wish_is_none(tmp_path: Path, content: bytes) -> None:
    """A job that ends unasked stops a training; one that goes on can be asked again."""
    store = LocalStore(str(tmp_path))
    store.replace(DRAIN, content)
    assert not is_drain_asked(store, 0)
    ask_to_drain(store, 0)
    assert is_drain_asked(store, 0)


def test_the_source_knows_how_many_parts_it_has_supplied() -> None:
    """Also behind a checkpoint, which holds its bytes."""
    supplied = Supplied(channels=(ChannelSupply(0, ()), ChannelSupply(2, ((1, 3),))))
    assert supplied.parts == 0
    entries = [
        SupplyEntry(dataset=0, number=0, first_part=0, part_count=2),
        SupplyEntry(dataset=1, number=1, first_part=3, part_count=1),
    ]
    for expected in (3, 3 + 2):
        supplied = decode_supplied(encode_supplied(supplied.add(entries, lambda *_chunk: 9)))
        assert supplied.parts == expected
        entries = [SupplyEntry(dataset=0, number=0, first_part=2, part_count=2)]
