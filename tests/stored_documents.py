"""The documents that a stream holds, put together again from its rows."""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from zephon_beam.lane_state import read_counters
from zephon_beam.shard import decode_shard


class Place(NamedTuple):
    """Where a stored document is from."""

    dataset: int
    file: int
    locator: int
    output: int
    pass_number: int


_COLUMNS = ("source_dataset", "source_file", "source_document", "source_output", "source_pass")


def stored_documents(stream: Path) -> dict[Place, list[int]]:
    """Return the tokens of every document of a stream whose lanes have ended, by place."""
    pieces: dict[Place, list[tuple[int, list[int]]]] = defaultdict(list)
    for path in sorted((stream / "shards").rglob("*.arrow")):
        _, samples = decode_shard(path.read_bytes(), path.name)
        segments = {name: column.tolist() for name, column in samples.segments.items()}
        offsets = samples.segment_offsets.tolist()
        for row, tokens in enumerate(samples.tokens.tolist()):
            for segment in range(offsets[row], offsets[row + 1]):
                place = Place(*(segments[name][segment] for name in _COLUMNS))
                start = segments["segment_starts"][segment]
                piece = tokens[start : start + segments["segment_lengths"][segment]]
                pieces[place].append((segments["source_offset"][segment], piece))
    found = {}
    for place, some in pieces.items():
        joined: list[int] = []
        for offset, piece in sorted(some):
            assert offset == len(joined), place
            joined += piece
        found[place] = joined
    return found


def stored_texts(stream: Path, tokenizer: Path, *, dataset: int = 0) -> list[str]:
    """Return the texts of a data set's documents, sorted, without the token that ends each."""
    backend = Tokenizer.from_file(str(tokenizer))
    return sorted(
        backend.decode(tokens[:-1], skip_special_tokens=False)
        for place, tokens in stored_documents(stream).items()
        if place.dataset == dataset
    )


def quarantined_counts(stream: Path, dataset: int = 0) -> int:
    """Return how many documents of a data set the last lane states count as set aside."""
    total = 0
    for lane in sorted((stream / "state").iterdir()):
        last = max(lane.iterdir())
        counters = read_counters(last.read_bytes(), last.name)
        total += counters[dataset].quarantined_documents
    return total
