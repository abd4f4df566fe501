"""A slow reader of sources and shards that shares no code with what it checks.

Sources are opened with plain Python (`open`, `json`, `pyarrow.parquet.read_table`), documents are
tokenized one at a time, shards are read with PyArrow alone. What a stream must hold follows from
its `source_*` columns: each segment names a document and a place in it.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from glob import glob
from itertools import pairwise
from os.path import relpath
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from tokenizers import Tokenizer

Document = tuple[int, int, int]
"""(data set, file, locator)."""
Found = tuple[Document, int]
"""(document, pass)."""

_BOM = "\ufeff"


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One segment of one row, as its shard says."""

    lane: int
    index: int
    """Of its row in the lane."""
    document: Document
    pass_number: int
    offset: int
    following: int
    tokens: list[int]

    @property
    def place(self) -> str:
        """Say where it is, for failures."""
        return f"lane {self.lane}, row {self.index}, document {self.document}, at {self.offset}"


@dataclass(kw_only=True)
class Account:
    """What a whole stream holds of each data set."""

    rows: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Rows of each lane."""
    spans: dict[Found, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Token spans [first, last) of each document in each pass, sorted."""
    taken: dict[int, list[list[int]]] = field(default_factory=lambda: defaultdict(list))
    """For each lane and row, the tokens of each data set in it."""
    segments_of_rows: list[list[Segment]] = field(default_factory=list)
    padding: int = 0

    def packed_tokens(self, dataset: int) -> int:
        """Tokens of a data set in all rows."""
        return sum(row[dataset] for rows in self.taken.values() for row in rows)


class Oracle:
    """Everything that the sources of a recipe hold, by plain means."""

    def __init__(self, recipe: Path) -> None:
        """Read a recipe's sources and tokenize every document."""
        raw = yaml.safe_load(recipe.read_text())
        folder = recipe.parent
        self.recipe: dict[str, Any] = raw
        self.names = list(raw["datasets"])
        self.seq_len: int = raw["seq_len"]
        self.lanes: int = raw["lanes"]
        self.pad: int = raw["tokenizer"].get("pad", 0)
        self.multiple: int = raw.get("packing", {}).get("segment_multiple", 1)
        self.files: list[list[str]] = []
        self.tokens: dict[Document, list[int]] = {}
        tokenizer = str((folder / raw["tokenizer"]["path"]).resolve())
        for dataset, entry in enumerate(raw["datasets"].values()):
            paths = glob(str(folder / entry["files"]), recursive=True)
            root = folder / entry["files"].split("*")[0].rsplit("/", 1)[0]
            named = sorted((relpath(path, root), path) for path in paths)
            self.files.append([name for name, _ in named])
            for file, (_, path) in enumerate(named):
                for locator, text in _documents(path, entry):
                    self.tokens[dataset, file, locator] = _tokenize(tokenizer, text)

    def account(self, stream: Path) -> Account:
        """Check every row and every segment of a stream and gather what it holds."""
        self._check_files(stream)
        account = Account()
        for lane in range(self.lanes):
            for shard in sorted((stream / f"shards/lane-{lane:05d}").glob("*.arrow")):
                with pa.ipc.open_file(shard) as reader:
                    batch = reader.get_batch(0)
                for row in batch.to_pylist():
                    self._check_row(row, lane, account)
        for spans in account.spans.values():
            spans.sort()
            for (_, end), (start, _) in pairwise(spans):
                assert end <= start, "segments of one document overlap"
        return account

    def _check_row(self, row: Mapping[str, Any], lane: int, account: Account) -> None:
        index = account.rows[lane]
        account.rows[lane] += 1
        tokens = row["tokens"]
        assert len(tokens) == self.seq_len
        taken = [0] * len(self.names)
        end = valid = 0
        segments = list(_segments(row, lane, index))
        assert segments
        for start, segment in segments:
            following = -(-end // self.multiple) * self.multiple
            assert start == following, segment.place
            assert tokens[end:start] == [self.pad] * (start - end), segment.place
            account.padding += start - end
            end = start + len(segment.tokens)
            self._check_segment(segment)
            valid += len(segment.tokens) - (segment.following < 0)
            taken[segment.document[0]] += len(segment.tokens)
            span = (segment.offset, segment.offset + len(segment.tokens))
            account.spans[segment.document, segment.pass_number].append(span)
        assert end <= self.seq_len
        assert tokens[end:] == [self.pad] * (self.seq_len - end)
        assert row["valid_tokens"] == valid
        account.padding += self.seq_len - end
        account.taken[lane].append(taken)
        account.segments_of_rows.append([segment for _, segment in segments])

    def _check_segment(self, segment: Segment) -> None:
        whole = self.readable(segment.document)
        end = segment.offset + len(segment.tokens)
        assert segment.tokens, segment.place
        assert segment.tokens == whole[segment.offset : end], segment.place
        following = whole[end] if end < len(whole) else -1
        assert segment.following == following, segment.place

    def readable(self, document: Document) -> list[int]:
        """Return the tokens of a document that may be in rows: truncated ones end early."""
        tokens = self.tokens[document]
        policy = self.recipe.get("packing", {}).get("overlong", "split")
        if policy == "split" or len(tokens) <= self.seq_len:
            return tokens
        return tokens[: self.seq_len] if policy == "truncate" else []

    def check_whole(self, account: Account, passes: int) -> None:
        """Check that each pass holds every readable document whole, once, and nothing else."""
        expected = {
            (document, number): [(0, len(self.readable(document)))]
            for document in self.tokens
            for number in range(passes)
            if self.readable(document)
        }
        assert {found: _joined(spans) for found, spans in account.spans.items()} == expected

    def read_tokens(self, dataset: int) -> int:
        """Tokens of one pass over a data set, before anything is cut or dropped."""
        return sum(len(tokens) for key, tokens in self.tokens.items() if key[0] == dataset)

    def lost_tokens(self, dataset: int) -> int:
        """Tokens of one pass that the policy for long documents takes away."""
        kept = sum(len(self.readable(key)) for key in self.tokens if key[0] == dataset)
        return self.read_tokens(dataset) - kept

    def document_count(self, dataset: int) -> int:
        """Documents of one pass over a data set."""
        return sum(key[0] == dataset for key in self.tokens)

    def _check_files(self, stream: Path) -> None:
        """Check that file numbers mean what the sorted names say."""
        for name, files in zip(self.names, self.files, strict=True):
            with pa.ipc.open_file(stream / "catalog" / f"{name}.arrow") as reader:
                assert reader.read_all().column("name").to_pylist() == files


def _segments(row: Mapping[str, Any], lane: int, index: int) -> Iterator[tuple[int, Segment]]:
    columns = (
        "segment_starts",
        "segment_lengths",
        "source_dataset",
        "source_file",
        "source_document",
        "source_output",
        "source_offset",
        "source_pass",
        "segment_next",
    )
    for start, length, dataset, file, locator, output, offset, pass_number, following in zip(
        *(row[name] for name in columns), strict=True
    ):
        assert output == 0
        yield (
            start,
            Segment(
                lane=lane,
                index=index,
                document=(dataset, file, locator),
                pass_number=pass_number,
                offset=offset,
                following=following,
                tokens=row["tokens"][start : start + length],
            ),
        )


def _documents(path: str, entry: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield (locator, text) of every document of a file."""
    field_name = entry.get("text", "text")
    if path.endswith(".parquet"):
        yield from enumerate(pq.read_table(path).column(field_name).to_pylist())
    elif path.endswith(".jsonl"):
        offset = 0
        with open(path, "rb") as file:
            for line in file:
                text = line.decode().removeprefix(_BOM)
                if text.strip():
                    yield offset, json.loads(text)[field_name]
                offset += len(line)
    else:
        with open(path, encoding="utf-8", newline="") as file:
            yield 0, file.read().removeprefix(_BOM)


@lru_cache(maxsize=100_000)
def _tokenize(tokenizer: str, text: str) -> list[int]:
    backend = _load(tokenizer)
    ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    return [*ids, backend.token_to_id("<|endoftext|>")]


@lru_cache
def _load(path: str) -> Tokenizer:
    backend = Tokenizer.from_file(path)
    backend.encode_special_tokens = True
    return backend


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join sorted spans that touch."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
