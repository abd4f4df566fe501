"""A lane as one would write it down first: lists, fractions, one document at a time.

It shares no code with `zephon_beam.lane`, restores nothing and knows neither parts nor shards. The
lane process must give the same rows, whatever arrives when.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from tests.lane_cases import Document, LaneCase
from tests.lanes import QUARANTINED


@dataclass(frozen=True, kw_only=True)
class NaivePiece:
    """A stretch of a document in one pass."""

    document: Document
    pass_number: int
    offset: int
    tokens: list[int]
    following: int


@dataclass(kw_only=True)
class NaiveBin:
    """An open row."""

    created: int
    pieces: list[NaivePiece] = field(default_factory=list)
    space: int


@dataclass(kw_only=True)
class NaiveCounts:
    """What a data set gave."""

    documents: int = 0
    read: int = 0
    truncated: int = 0
    dropped: int = 0
    quarantined: int = 0


class NaiveLane:
    """Reads one lane of a case from its beginning, as far as the supply reaches."""

    def __init__(self, case: LaneCase, lane: int) -> None:
        """Read it."""
        self.case, self.lane, self.config = case, lane, case.config
        count = self.config.dataset_count
        self.counts = [NaiveCounts() for _ in range(count)]
        self.order: list[NaivePiece] = []
        """Pieces in the order in which they were taken."""
        self.rows: list[list[NaivePiece]] = []
        self.ended = False
        self._groups: list[list[NaiveBin]] = [[] for _ in range(self.config.group_count)]
        self._created = 0
        self._run([self._pieces(dataset) for dataset in range(count)])

    def starts(self, row: list[NaivePiece]) -> list[int]:
        """Return where the segments of a row begin."""
        starts, place = [], 0
        for piece in row:
            starts.append(place)
            place += self._size(piece)
        return starts

    def _run(self, channels: list[Iterator[NaivePiece | None]]) -> None:
        live = set(range(len(channels)))
        phase, taken = 0, [0] * len(channels)
        while True:
            phases = self.config.phases
            while phase + 1 < len(phases) and phases[phase + 1].start <= len(self.rows):
                phase, taken = phase + 1, [0] * len(channels)
            weights = phases[phase].weights
            ready = [dataset for dataset in sorted(live) if weights[dataset]]
            if not ready:
                break
            chosen = min(ready, key=lambda d: (Fraction(taken[d], weights[d]), d))
            piece = next(channels[chosen], False)
            if piece is None:
                return
            if piece is False:
                if self.config.stop_when_exhausted:
                    break
                live.discard(chosen)
                continue
            assert isinstance(piece, NaivePiece)
            by_tokens = self.config.unit == "tokens"
            taken[chosen] += len(piece.tokens) if by_tokens else int(piece.offset == 0)
            self.order.append(piece)
            self._pack(self._groups[self.config.group_of_dataset[chosen]], piece)
        rest = sorted((row for group in self._groups for row in group), key=lambda row: row.created)
        self.rows += [row.pieces for row in rest]
        self.ended = True

    def _pieces(self, dataset: int) -> Iterator[NaivePiece | None]:
        """Yield the pieces of a data set; None where the supply ends before the data set does."""
        counts, policy, size = (
            self.counts[dataset],
            self.config.overlong[dataset],
            self.config.seq_len,
        )
        for read in self._documents(dataset):
            if read is None:
                yield None
                return
            document, pass_number, length = read
            tokens = self.case.tokens_of(document, length)
            kept = tokens
            if len(tokens) > size and policy != "split":
                kept = tokens[:size] if policy == "truncate" else []
            lost = len(tokens) - len(kept)
            if not kept:
                counts.read += lost
            for offset in range(0, len(kept), size):
                piece = kept[offset : offset + size]
                counts.read += len(piece) + lost * (offset == 0)
                following = kept[offset + size] if offset + size < len(kept) else -1
                is_last = following < 0
                if is_last:
                    self._count(counts, length, lost, policy)
                yield NaivePiece(
                    document=document,
                    pass_number=pass_number,
                    offset=offset,
                    tokens=piece,
                    following=following,
                )
            if not kept:
                self._count(counts, length, lost, policy)

    @staticmethod
    def _count(counts: NaiveCounts, length: int, lost: int, policy: str) -> None:
        counts.documents += 1
        counts.quarantined += length == QUARANTINED
        counts.truncated += lost * (policy == "truncate")
        counts.dropped += lost * (policy == "drop")

    def _documents(self, dataset: int) -> Iterator[tuple[Document, int, int] | None]:
        """Yield (document, pass, length), one from each open chunk in turn."""
        slots: list[list[tuple[Document, int, int]]] = [[] for _ in range(self.config.interleave)]
        is_endless = self.config.chunk_totals[dataset] is None
        number = turn = 0
        while slots:
            if not slots[turn]:
                position = self.case.chunk_of(dataset, self.lane, number)
                if position is None and is_endless:
                    yield None
                    return
                if position is None:
                    del slots[turn]
                    turn = turn if turn < len(slots) else 0
                    continue
                pass_number, chunk = position
                lengths = [n for part in self.case.chunks[dataset][chunk] for n in part]
                slots[turn] = [
                    ((dataset, chunk, place), pass_number, length)
                    for place, length in enumerate(lengths)
                ]
                number += 1
                continue
            yield slots[turn].pop(0)
            turn = (turn + 1) % len(slots)

    # ------------------------------------------------------------------------------- packing

    def _size(self, piece: NaivePiece) -> int:
        """Return the room that a piece takes up."""
        multiple = self.config.segment_multiple
        return -(-len(piece.tokens) // multiple) * multiple

    def _pack(self, bins: list[NaiveBin], piece: NaivePiece) -> None:
        method, size = self.config.packing, self._size(piece)
        if method == "concat":
            if bins and bins[0].space < size:
                piece = self._fill(bins, bins[0], piece)
                self._pack(bins, piece)
                return
            fitting = bins
        else:
            fitting = [row for row in bins if row.space >= size]
        if fitting:
            # Bins are kept in the order in which they reached their space.
            row = fitting[0]
            if method in ("best_fit", "best_fit_split"):
                row = min(fitting, key=lambda candidate: candidate.space)
            if method == "first_fit":
                row = min(fitting, key=lambda candidate: candidate.created)
        else:
            if method != "concat" and len(bins) == self.config.open_bins:
                by_age = (
                    sorted(bins, key=lambda row: row.created) if method == "first_fit" else bins
                )
                fullest = min(by_age, key=lambda row: row.space)
                if method == "best_fit_split":
                    piece = self._fill(bins, fullest, piece)
                    self._pack(bins, piece)
                    return
                self._close(bins, fullest)
            row = NaiveBin(created=self._created, space=self.config.seq_len)
            self._created += 1
            bins.append(row)
        self._put(bins, row, piece)

    def _fill(self, bins: list[NaiveBin], row: NaiveBin, piece: NaivePiece) -> NaivePiece:
        """Put as much of a piece as fits into a bin, which closes it; return the rest."""
        cut = row.space
        head = NaivePiece(
            document=piece.document,
            pass_number=piece.pass_number,
            offset=piece.offset,
            tokens=piece.tokens[:cut],
            following=piece.tokens[cut],
        )
        row.pieces.append(head)
        self._close(bins, row)
        return NaivePiece(
            document=piece.document,
            pass_number=piece.pass_number,
            offset=piece.offset + cut,
            tokens=piece.tokens[cut:],
            following=piece.following,
        )

    def _put(self, bins: list[NaiveBin], row: NaiveBin, piece: NaivePiece) -> None:
        row.pieces.append(piece)
        row.space -= self._size(piece)
        bins.remove(row)
        bins.append(row)
        if row.space == 0 or len(row.pieces) == self.config.max_segments:
            self._close(bins, row)

    def _close(self, bins: list[NaiveBin], row: NaiveBin) -> None:
        bins.remove(row)
        self.rows.append(row.pieces)
