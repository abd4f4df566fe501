"""A channel: the endless, ordered documents of one data set as one lane reads them.

Chunks are numbered 0, 1, 2, … in this channel. `interleave` of them are open at a time, each in a
slot; a document is taken from each slot in turn, and a slot whose chunk ends opens the next number:

    slots    0   1   2                 documents   c0·d0  c1·d0  c2·d0  c0·d1  c1·d1  c2·d1 …
    chunks  c0  c1  c2   next: c3

Which part is needed next is decided before looking at what has arrived; if it is not there the
channel is blocked until it is. What arrived early waits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from zephon_beam.fragments import Fragments
from zephon_beam.pieces import Piece
from zephon_beam.quarantine_budget import QuarantineBudget
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
    """Where to begin in the part when it is opened: document, tokens of it taken before."""
    fragments: Fragments | None = field(default=None, compare=False)
    step: int = 0
    """Next step of the fragments."""
    settled: int = 0
    """Step up to which the counters have been brought."""
    last: bool = False

    def place(self) -> tuple[int, int]:
        """Return (document, tokens of it that were taken) of the next step."""
        if self.fragments is None:
            return self.document, self.offset
        return self.fragments.place_of(self.step)


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
        token_dtype: str,
        budget: QuarantineBudget | None = None,
    ) -> None:
        """Start at chunk 0.

        Args:
            dataset: place in the recipe.
            chunk_count: chunks that this channel has over all passes; None: endless.
            interleave: open chunks.
            seq_len: longest piece, tokens.
            overlong: `split`, `truncate` or `drop` for longer documents.
            token_dtype: name of the type of the stream's tokens.
            budget: how many documents may be set aside; None: that is not judged here.
        """
        self.dataset = dataset
        self.next_number = 0
        self.turn = 0
        self.slots = [Slot() for _ in range(interleave)]
        self._chunk_count = chunk_count
        self._seq_len = seq_len
        self._overlong = overlong
        self._token_dtype = token_dtype
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

    def pull(self) -> Piece | None:
        """Take the next piece; None if the channel is blocked or exhausted.

        Raises:
            QuarantineError: more documents than the budget allows were set aside.
        """
        slots = self.slots
        while slots:
            slot = slots[self.turn]
            fragments = slot.fragments
            if fragments is None:
                if not self._open(slot):
                    return None
                continue
            step = slot.step
            slot.step = step + 1
            if fragments.ends[step]:
                turn = self.turn + 1
                self.turn = turn if turn < len(slots) else 0
                if step + 1 == fragments.count:
                    self._finish_part(slot, fragments)
            length = fragments.lengths[step]
            if length:
                return length, fragments.view, fragments.starts[step], fragments.sources[step]
        return None

    def counters(self) -> DatasetCounters:
        """Return what was consumed up to now."""
        for slot in self.slots:
            if slot.fragments is not None:
                self._settle(slot, slot.fragments)
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

    def _settle(self, slot: Slot, fragments: Fragments) -> None:
        """Count the steps that were taken since the slot was last counted."""
        first, last = slot.settled, slot.step
        slot.settled = last
        documents = fragments.documents_before(first), fragments.documents_before(last)
        tokens, lost = fragments.tokens_between(first, last)
        counters = self._counters
        counters.documents += documents[1] - documents[0]
        counters.quarantined_documents += fragments.quarantined_between(*documents)
        counters.read_tokens += tokens
        if self._overlong == "truncate":
            counters.truncated_tokens += lost
        else:
            counters.dropped_tokens += lost

    def _finish_part(self, slot: Slot, fragments: Fragments) -> None:
        """Leave a part that is used up, at once, so that it need not be supplied again."""
        self._settle(slot, fragments)
        del self._arrived[slot.number, slot.part]
        slot.fragments = None
        slot.document = slot.offset = 0
        self._next_part(slot)
        if fragments.holds_quarantined:
            self.judge(ended=False)

    def _next_part(self, slot: Slot) -> None:
        if slot.last:
            slot.number, slot.part = FREE, 0
        else:
            slot.part += 1

    def _open(self, slot: Slot) -> bool:
        """Make progress towards open fragments in this slot; False if the part has not arrived."""
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
            self._counters.opened_bytes += part.source_bytes
            self._counters.opened_tokens += len(part.tokens)
        slot.last = part.last
        if len(part) == 0:
            del self._arrived[slot.number, slot.part]
            self._next_part(slot)
            return True
        slot.fragments = fragments = Fragments(
            part, seq_len=self._seq_len, overlong=self._overlong, dtype=self._token_dtype
        )
        slot.step = slot.settled = fragments.step_at(slot.document, slot.offset, self._seq_len)
        return True
