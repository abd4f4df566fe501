"""A number that is read as another one is told."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_beam.consumers import Consumer, decode_consumer, encode_consumer
from zephon_beam.errors import CorruptObjectError
from zephon_beam.plan import LanePlan, Plan, SupplyEntry, decode_plan, encode_plan
from zephon_beam.retained import read_first_shards, write_first_shards
from zephon_beam.sealed import seal, unseal
from zephon_beam.store.local import LocalStore

PLAN = Plan(
    advance=3,
    fingerprint="f" * 32,
    lanes=(
        LanePlan(
            lane=2,
            head_kind="carry",
            head_number=2,
            supply=(SupplyEntry(dataset=1, number=7, first_part=0, part_count=3),),
        ),
    ),
)
CONSUMER = Consumer(name="run", fingerprint="f" * 32, position=70, pins={"acknowledged": 40})


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.integers())))
def test_what_was_sealed_comes_back_however_it_is_laid_out(content: dict[str, object]) -> None:
    """Also what was written before there were digests."""
    content.pop("digest", None)
    assert unseal(json.loads(json.dumps(seal(content), indent=3))) == content
    assert unseal(content) == content


def flips(data: bytes) -> list[bytes]:
    """Return data with each of its bits flipped, one at a time."""
    found = []
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        found.append(bytes(changed))
    return found


def test_every_flipped_bit_of_a_plan_or_a_consumer_is_told_or_changes_nothing() -> None:
    """One in a pin would delete what is needed, one in a head would start elsewhere."""
    told = 0
    for data in flips(encode_plan(PLAN)):
        try:
            assert decode_plan(data, "p") == PLAN
        except CorruptObjectError:
            told += 1
    assert told > 4 * len(encode_plan(PLAN))
    told = 0
    for data in flips(encode_consumer(CONSUMER)):
        try:
            assert decode_consumer(data, "run") == CONSUMER
        except CorruptObjectError:
            told += 1
    assert told > 4 * len(encode_consumer(CONSUMER))


def test_a_beginning_is_known_by_its_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One that moved ahead by a flipped bit would hide samples that are there."""
    folder = tmp_path_factory.mktemp("base")
    store = LocalStore(folder)
    write_first_shards(store, [2, 3])
    (path,) = (folder / "base").iterdir()
    path.write_bytes(path.read_bytes().replace(b"[2, 3]", b"[6, 3]"))
    with pytest.raises(CorruptObjectError, match=r"is corrupt: its content belongs to base/0000"):
        read_first_shards(store, 2)
