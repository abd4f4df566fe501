"""A channel: the endless, ordered documents of one data set as one lane reads them.

Chunks are numbered 0, 1, 2, … in this channel. `interleave` of them are open at a time, each in a
slot; a document is taken from each slot in turn, and a slot whose chunk ends opens the next number:

    slots    0   1   2                 documents   c0·d0  c1·d0  c2·d0  c0·d1  c1·d1  c2·d1 …
    chunks  c0  c1  c2   next: c3

Which part is needed next is decided before looking at what has arrived; if it is not there the
channel is blocked until it is. What arrived early waits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from zephon_beam.pieces import Piece, View
from zephon_beam.sequences import PartKey, SequencePart

FREE = -1
"""Chunk number of a slot that has not opened a chunk yet."""


@dataclass(kw_only=True, slots=True)
class Slot:
    """One open chunk and the place in it."""

    number: int = FREE
    part: int = 0
    document: int = 0
    offset: int = 0
    """Tokens of the current document that were already taken."""
    view: View | None = None
    last: bool = False


@dataclass(kw_only=True, slots=True)
class DatasetCounters:
    """What was consumed of a data set, exact; tokens are counted piece by piece."""

    documents: int = 0
    read_tokens: int = 0
    """Tokens in packs and open bins, plus truncated, plus dropped."""
    truncated_tokens: int = 0
    dropped_tokens: int = 0
    quarantined_documents: int = 0
    """Documents set aside as unusable; counted in `documents` too, their tokens are unknown."""
    opened_bytes: int = 0
    """Source bytes of the parts that were opened; with `opened_tokens`, for planning the supply."""
    opened_tokens: int = 0
    """Tokens of the parts that were opened."""


class Channel:
    """Delivers the pieces of one data set in order, as far as the parts have arrived.

    Determinism: the sequence of pieces depends on the chunks' contents, the interleaving and the
    over-long policy; the order of `offer` calls decides only when `pull` returns None.
    """

    def __init__(
        self,
        *,
        dataset: int,
        chunk_count: int | None,
        interleave: int,
        seq_len: int,
        overlong: str,
    ) -> None:
        """Start at chunk 0.

        Args:
            dataset: place in the recipe.
            chunk_count: chunks that this channel has over all passes; None: endless.
            interleave: open chunks.
            seq_len: longest piece, tokens.
            overlong: `split`, `truncate` or `drop` for longer documents.
        """
        self.dataset = dataset
        self.counters = DatasetCounters()
        self.next_number = 0
        self.turn = 0
        self.slots = [Slot() for _ in range(interleave)]
        self._chunk_count = chunk_count
        self._seq_len = seq_len
        self._overlong = overlong
        self._arrived: dict[tuple[int, int], SequencePart] = {}

    @property
    def exhausted(self) -> bool:
        """Whether every document was delivered."""
        return not self.slots

    def offer(self, part: SequencePart) -> bool:
        """Accept a part in any order; False if it is a repetition or was used up already."""
        key = part.key
        place = (key.number, key.part)
        if place in self._arrived or not self.needs(key.number, key.part):
            return False
        self._arrived[place] = part
        return True

    def needs(self, number: int, part: int) -> bool:
        """Say whether a part is still to be used, now or later."""
        if number >= self.next_number:
            return True
        return any(slot.number == number and slot.part <= part for slot in self.slots)

    def waiting(self) -> Iterator[PartKey]:
        """Yield the parts that arrived and are not used up."""
        for number, part in sorted(self._arrived):
            yield PartKey(dataset=self.dataset, number=number, part=part)

    def wanted(self) -> PartKey | None:
        """Return the part that a blocked channel waits for."""
        if not self.slots:
            return None
        slot = self.slots[self.turn]
        number = self.next_number if slot.number == FREE else slot.number
        return PartKey(dataset=self.dataset, number=number, part=slot.part)

    def pull(self) -> Piece | None:
        """Take the next piece; None if the channel is blocked or exhausted."""
        slots = self.slots
        while slots:
            slot = slots[self.turn]
            view = slot.view
            if view is None:
                if not self._open(slot):
                    return None
                continue
            document, offset = slot.document, slot.offset
            length = view.lengths[document] - offset
            if length > self._seq_len:
                if self._overlong == "split":
                    return self._cut(slot, view)
                if not self._shorten(slot, view, length):
                    continue
                length = self._seq_len
            counters = self.counters
            counters.read_tokens += length
            self._finish_document(slot, view)
            if length:
                return view, document, offset, length
        return None

    def restore(
        self, *, next_number: int, turn: int, slots: Iterable[Slot], counters: DatasetCounters
    ) -> None:
        """Continue at a saved place."""
        self.next_number = next_number
        self.turn = turn
        self.slots = list(slots)
        self.counters = counters

    def _cut(self, slot: Slot, view: View) -> Piece:
        """Take the first `seq_len` of the tokens that are left of a longer document."""
        piece = (view, slot.document, slot.offset, self._seq_len)
        slot.offset += self._seq_len
        self.counters.read_tokens += self._seq_len
        return piece

    def _shorten(self, slot: Slot, view: View, length: int) -> bool:
        """Apply `truncate` (True: the document goes on, shorter) or `drop` (False: it is over)."""
        if self._overlong == "truncate":
            excess = length - self._seq_len
            view.lengths[slot.document] = self._seq_len
            self.counters.read_tokens += excess
            self.counters.truncated_tokens += excess
            return True
        self.counters.read_tokens += length
        self.counters.dropped_tokens += length
        self._finish_document(slot, view)
        return False

    def _finish_document(self, slot: Slot, view: View) -> None:
        self.counters.documents += 1
        if view.quarantined is not None and view.quarantined[slot.document]:
            self.counters.quarantined_documents += 1
        slot.document += 1
        slot.offset = 0
        if slot.document == view.count:
            self._finish_part(slot)
        self.turn = (self.turn + 1) % len(self.slots)

    def _finish_part(self, slot: Slot) -> None:
        """Leave a part that is used up, at once, so that it need not be supplied again."""
        del self._arrived[slot.number, slot.part]
        slot.view = None
        slot.document = 0
        if slot.last:
            slot.number, slot.part = FREE, 0
        else:
            slot.part += 1

    def _open(self, slot: Slot) -> bool:
        """Make progress towards a view in this slot; False if the part has not arrived."""
        if slot.number == FREE:
            if self._chunk_count is not None and self.next_number >= self._chunk_count:
                del self.slots[self.turn]
                if self.turn >= len(self.slots):
                    self.turn = 0
                return True
            if (self.next_number, 0) not in self._arrived:
                return False
            slot.number, slot.part = self.next_number, 0
            self.next_number += 1
        part = self._arrived.get((slot.number, slot.part))
        if part is None:
            return False
        if slot.document == 0 and slot.offset == 0:
            self.counters.opened_bytes += part.source_bytes
            self.counters.opened_tokens += len(part.tokens)
        slot.last = part.last
        if len(part) == 0:
            self._finish_part(slot)
        else:
            slot.view = View.of_part(part)
        return True
