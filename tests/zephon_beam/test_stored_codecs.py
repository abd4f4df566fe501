"""Plans, carries, parts and manifests: what is stored comes back, and damage is named."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lanes import QUARANTINED, make_config, make_part, make_source
from zephon_beam.carry import CarryHead, WaitingPart, decode_carry, decode_carry_head, encode_carry
from zephon_beam.errors import CorruptObjectError
from zephon_beam.lane import LaneProcess
from zephon_beam.lane_state import decode_state, encode_state, same_state
from zephon_beam.plan import LanePlan, Plan, SupplyEntry, decode_plan, encode_plan
from zephon_beam.sequences import PartKey, SequencePart, decode_part, encode_part

PLAN = Plan(
    advance=3,
    fingerprint="f" * 32,
    lanes=(
        LanePlan(lane=0, head_kind="none", head_number=-1, supply=()),
        LanePlan(
            lane=2,
            head_kind="carry",
            head_number=2,
            supply=(SupplyEntry(dataset=1, number=7, first_part=0, part_count=3),),
        ),
    ),
)


def make_carry() -> tuple[CarryHead, list[bytes]]:
    """Return the carry of a lane that has taken some and has some waiting."""
    source = make_source([[[[9, 9]], [[3]], [[5], [4]], [[6]]]])
    process = LaneProcess(make_config(source), 0)
    for part in (source.parts[0], source.parts[1], source.parts[4]):
        process.offer(part)
    list(process.take_shards())
    payloads = {part.key: encode_part(part) for part in source.parts}
    waiting = [WaitingPart(key=key, last=True, source_bytes=1) for key in process.waiting()]
    head = CarryHead(advance=4, state=process.state(), waiting=waiting)
    return head, [payloads[part.key] for part in waiting]


def test_a_plan_survives_encoding() -> None:
    """Heads and supply are kept, and heads name their objects."""
    again = decode_plan(encode_plan(PLAN), "plan")
    assert again == PLAN
    assert again.lane(0).head_name is None
    assert again.lane(2).head_name == "carry/lane-00002/000002.avro"


def test_a_carry_survives_encoding() -> None:
    """The head can be read alone; the parts follow in order."""
    head, payloads = make_carry()
    data = encode_carry(head, payloads)
    again, parts = decode_carry(data, "carry")
    assert parts == payloads
    assert (again.advance, again.waiting) == (4, head.waiting)
    assert encode_state(again.state) == encode_state(head.state)
    assert encode_state(decode_carry_head(data, "carry").state) == encode_state(head.state)


@given(st.lists(st.integers(0, 9), max_size=5), st.booleans(), st.booleans())
def test_a_part_survives_encoding(lengths: list[int], last: bool, masked: bool) -> None:
    """Every field is kept, also of an empty part and with a loss mask."""
    part = make_part(dataset=1, number=2, part=3, last=last, lengths=lengths, first_token=70_000)
    if masked:
        fields = {name: getattr(part, name) for name in part.__slots__}
        part = type(part)(**{**fields, "loss_mask": np.ones(len(part.tokens), np.uint8)})
    again = decode_part(encode_part(part))
    assert (again.key, again.last) == (PartKey(dataset=1, number=2, part=3), last)
    assert (again.pass_number, again.source_bytes) == (part.pass_number, part.source_bytes)
    for name in ("tokens", "offsets", "files", "locators", "outputs"):
        assert getattr(again, name).tolist() == getattr(part, name).tolist()
    assert (again.loss_mask is None) == (not masked)


def test_truncated_objects_are_named_with_the_repair() -> None:
    """Half a carry, half a plan, half a state or half a part never passes for a whole one."""
    head, payloads = make_carry()
    data = encode_carry(head, payloads)
    with pytest.raises(CorruptObjectError, match=r"carry/x.*(delete it|goes back)"):
        decode_carry(data[: len(data) - 20], "carry/x")
    with pytest.raises(CorruptObjectError, match=r"advances/x is corrupt.*delete it"):
        decode_plan(encode_plan(PLAN)[:-9], "advances/x")
    state = encode_state(head.state)
    for size in range(0, len(state) - 1, 97):
        with pytest.raises(CorruptObjectError, match="state/x"):
            decode_state(state[:size], "state/x")
    with pytest.raises(CorruptObjectError, match="tokenized part is corrupt"):
        decode_part(payloads[0][:-40] if payloads else b"")


def test_another_format_version_is_refused() -> None:
    """The message names both versions and what reads it."""
    with pytest.raises(CorruptObjectError, match="format version must be 1, got 9"):
        decode_plan(encode_plan(PLAN).replace(b'"format_version": 1', b'"format_version": 9'), "p")


def test_states_compare_by_content() -> None:
    """Two encodings of one state are the same; another state is not."""
    head, _ = make_carry()
    state = encode_state(head.state)
    assert same_state(state, state)
    other = LaneProcess(make_config(make_source([[[[1]]]])), 0).state()
    assert not same_state(state, encode_state(other))
    with pytest.raises(CorruptObjectError, match="stored state"):
        same_state(b"", state)


def test_a_part_says_which_documents_were_set_aside_only_if_any_were() -> None:
    """A part without any has the same bytes as before the column existed."""

    def part(lengths: list[int]) -> SequencePart:
        return make_part(dataset=0, number=0, part=0, last=True, lengths=lengths, first_token=1)

    clean, some = part([2, 3]), part([2, QUARANTINED, 3])
    again = decode_part(encode_part(some)).quarantined
    assert again is not None
    assert again.tolist() == [False, True, False]
    assert decode_part(encode_part(clean)).quarantined is None
    assert encode_part(clean) == encode_part(replace(clean, quarantined=None))
