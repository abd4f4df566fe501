"""A channel: the endless, ordered documents of one data set as one lane reads them.

Chunks are numbered 0, 1, 2, … in this channel. `interleave` of them are open at a time, each in a
slot; a document is taken from each slot in turn, and a slot whose chunk ends opens the next number:

    slots    0   1   2                 documents   c0·d0  c1·d0  c2·d0  c0·d1  c1·d1  c2·d1 …
    chunks  c0  c1  c2   next: c3

Which part is needed next is decided before looking at what has arrived; if it is not there the
channel is blocked until it is. What arrived early waits.

Documents are lined up in runs, as far as no slot has to open a part, in a queue that the lane pops
entries from. How many it popped says where every slot stands; `settle` writes that down.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from zephon_beam.open_part import OpenPart
from zephon_beam.pieces import LENGTH_BITS, Piece, address_of
from zephon_beam.quarantine_budget import QuarantineBudget
from zephon_beam.sequences import PartKey, SequencePart
from zephon_beam.slots import FREE, Slot, line_up
from zephon_beam.views import View, Views


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

    All but `refill` and `take_marked` expect the slots to be settled.

    Determinism: the sequence of pieces depends on the chunks' contents, the interleaving and the
    over-long policy; the order of `offer` calls decides only when `refill` returns False.
    """

    def __init__(
        self,
        *,
        dataset: int,
        chunk_count: int | None,
        interleave: int,
        seq_len: int,
        overlong: str,
        views: Views,
        whole_ids: tuple[int, ...] = (),
        budget: QuarantineBudget | None = None,
    ) -> None:
        """Start at chunk 0.

        Args:
            dataset: place in the recipe.
            chunk_count: chunks that this channel has over all passes; None: endless.
            interleave: open chunks; a restored channel may have more, which end with their chunks.
            seq_len: longest piece, tokens.
            overlong: `split`, `truncate` or `drop` for longer documents.
            views: of the lane, which keep the tokens of open parts.
            whole_ids: see `OpenPart`.
            budget: how many documents may be set aside; None: that is not judged here.
        """
        self.dataset = dataset
        self.next_number = 0
        self.turn = 0
        self.slots = [Slot() for _ in range(interleave)]
        self.queue: list[Piece] = []
        """Entries of the documents that are lined up, the next one last; see `OpenPart`."""
        self._lined_up = 0
        """Entries of the queue when the slots were last settled."""
        self._chunk_count = chunk_count
        self._interleave = interleave
        self._seq_len = seq_len
        self._overlong = overlong
        self._whole_ids = whole_ids
        self._views = views
        self._budget = budget
        self._counters = DatasetCounters()
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

    def refill(self) -> bool:
        """Line up documents in an empty queue; False if the channel is blocked or exhausted.

        Raises:
            QuarantineError: more documents than the budget allows were set aside.
        """
        self.settle()
        while self.slots:
            if self.slots[self.turn].opened is not None:
                self.queue += line_up(self._in_turn())
                self._lined_up = len(self.queue)
                return True
            if not self._open(self.slots[self.turn]):
                return False
        return False

    def take_marked(self, entry: Piece) -> tuple[Piece, int, bool]:
        """Return (the next piece of a marked document, its length, whether it is the first one).

        The rest of the document goes back into the queue; no length: the document has no more.

        Args:
            entry: that was just popped.

        Raises:
            QuarantineError: more documents than the budget allows were set aside.
        """
        rounds, place = divmod(self._lined_up - len(self.queue) - 1, len(self.slots))
        slot = self.slots[(self.turn + place) % len(self.slots)]
        opened, document = slot.open_part, slot.document + rounds
        address = entry >> LENGTH_BITS
        left = max(0, opened.stop_of(document) - address)
        is_first = address == opened.bounds[document]
        if left > self._seq_len:
            self.queue.append((address + self._seq_len) << LENGTH_BITS)
            left = self._seq_len
        elif not self.queue:
            self.settle()
        return entry | left, left, is_first

    def settle(self) -> None:
        """Bring the slots to what was taken from the queue.

        Raises:
            QuarantineError: more documents than the budget allows were set aside.
        """
        queue, slots = self.queue, self._in_turn()
        taken = self._lined_up - len(queue)
        self._lined_up = len(queue)
        if taken:
            rounds, more = divmod(taken, len(slots))
            self.turn = (self.turn + taken) % len(slots)
            slots[0].offset = 0
            for slot in slots[:more]:
                slot.document += 1
            if rounds:
                for slot in slots:
                    slot.document += rounds
        if queue:
            slot = self.slots[self.turn]
            slot.offset = address_of(queue[-1]) - slot.open_part.bounds[slot.document]
        if taken:
            for slot in slots:
                opened = slot.opened
                if opened is not None and slot.document == opened.count:
                    self._finish_part(slot, opened)

    def views(self) -> list[View]:
        """Return the views of the open parts."""
        return [slot.opened.view for slot in self.slots if slot.opened is not None]

    def counters(self) -> DatasetCounters:
        """Return what was consumed up to now."""
        for slot in self.slots:
            if slot.opened is not None:
                self._count(slot, slot.opened)
        return replace(self._counters)

    def judge(self, *, ended: bool) -> None:
        """Stop when too many of the documents that were consumed had been set aside.

        Args:
            ended: whether the lane reads no further.

        Raises:
            QuarantineError: more documents than the budget allows were set aside.
        """
        if self._budget is not None:
            counted = self.counters()
            self._budget.judge(counted.quarantined_documents, counted.documents, ended=ended)

    def restore(
        self, *, next_number: int, turn: int, slots: Iterable[Slot], counters: DatasetCounters
    ) -> None:
        """Continue at a saved place."""
        self.next_number = next_number
        self.turn = turn
        self.slots = list(slots)
        self._counters = replace(counters)

    def _in_turn(self) -> list[Slot]:
        """Return the slots in the order of their turns."""
        return self.slots[self.turn :] + self.slots[: self.turn]

    def _count(self, slot: Slot, opened: OpenPart) -> None:
        """Count what was taken since the slot was last counted."""
        first, last = slot.counted, (slot.document, slot.offset)
        slot.counted = last
        tokens, lost = opened.tokens_between(first, last)
        counters = self._counters
        counters.documents += last[0] - first[0]
        counters.quarantined_documents += opened.quarantined_between(first[0], last[0])
        counters.read_tokens += tokens
        if self._overlong == "truncate":
            counters.truncated_tokens += lost
        else:
            counters.dropped_tokens += lost

    def _finish_part(self, slot: Slot, opened: OpenPart) -> None:
        """Leave a part that is used up, at once, so that it need not be supplied again."""
        self._count(slot, opened)
        del self._arrived[slot.number, slot.part]
        slot.opened = None
        slot.document = slot.offset = 0
        self._next_part(slot)
        if opened.holds_quarantined:
            self.judge(ended=False)

    def _next_part(self, slot: Slot) -> None:
        if slot.last:
            slot.number, slot.part = FREE, 0
        else:
            slot.part += 1

    def _open(self, slot: Slot) -> bool:
        """Make progress towards an open part in this slot; False if it has not arrived."""
        if slot.number == FREE:
            is_spare = len(self.slots) > self._interleave
            if is_spare or (
                self._chunk_count is not None and self.next_number >= self._chunk_count
            ):
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
            self._counters.opened_bytes += part.source_bytes
            self._counters.opened_tokens += len(part.tokens)
        slot.last = part.last
        if len(part) == 0:
            del self._arrived[slot.number, slot.part]
            self._next_part(slot)
            return True
        slot.opened = OpenPart(
            part,
            self._views,
            seq_len=self._seq_len,
            overlong=self._overlong,
            whole_ids=self._whole_ids,
        )
        slot.counted = slot.document, slot.offset
        return True
