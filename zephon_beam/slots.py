"""Slots: the open chunks of a channel, and the documents that they give in turn.

slots   0: a b    1: c d e    2: f     in turn   a c f b d
then slot 2 must open a part
"""

from dataclasses import dataclass, field
from itertools import chain

from zephon_beam.open_part import OpenPart
from zephon_beam.pieces import Piece, address_of, make_piece

FREE = -1
"""Chunk number of a slot that has not opened a chunk yet."""
SKIP_REST = 2**31 - 1
"""Offset behind the end of every document: what is left of it gives no piece and no count."""


@dataclass(kw_only=True, slots=True)
class Slot:
    """One open chunk and the place in it."""

    number: int = FREE
    part: int = 0
    document: int = 0
    offset: int = 0
    """Place in the part: next document, tokens of it that were taken."""
    opened: OpenPart | None = field(default=None, compare=False)
    counted: tuple[int, int] = (0, 0)
    """Document and offset up to which the counters have been brought."""
    last: bool = False

    @property
    def open_part(self) -> OpenPart:
        """The part of a slot that is known to have one open."""
        if self.opened is None:
            raise RuntimeError(f"slot must have an open part, got {self!r}; this is a bug")
        return self.opened


def line_up(slots: list[Slot]) -> list[Piece]:
    """Return the entries of documents up to where a slot has to open a part, the first one last.

    A part that holds documents set aside ends the list when it ends, by a marked entry: then its
    channel judges the budget, before anything else is taken.

    Args:
        slots: in the order of their turns; the first one has a part open.
    """
    count = len(slots)
    ends = []
    for place, slot in enumerate(slots):
        opened = slot.opened
        if opened is None:
            ends.append(place)
            break
        end = (opened.count - slot.document) * count + place
        ends.append(end - count + 1 if opened.holds_quarantined else end)
    rounds, more = divmod(min(ends), count)
    entries: list[Piece] = []
    if rounds:
        runs = [slot.open_part.entries[slot.document : slot.document + rounds] for slot in slots]
        entries += chain.from_iterable(zip(*runs, strict=True))
    entries += [slot.open_part.entries[slot.document + rounds] for slot in slots[:more]]
    first = slots[0]
    if first.offset:
        entries[0] = make_piece(first.open_part.bounds[first.document] + first.offset, 0)
    if slots[more - 1].open_part.holds_quarantined:
        entries[-1] = make_piece(address_of(entries[-1]), 0)
    entries.reverse()
    return entries
