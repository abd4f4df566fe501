"""The recipe: everything that decides the bytes of a stream, checked before any work starts.

Frozen dataclasses that mirror the recipe file field by field. Run options (runner, workers,
paths of the stream) live elsewhere and can never change a byte. The strict conversion from and
to plain mappings is in `zephon_beam.recipe_mapping`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zephon_beam.checks import (
    require,
    require_bool,
    require_choice,
    require_int,
    require_text,
)
from zephon_beam.recipe_datasets import DatasetRecipe
from zephon_beam.recipe_media import MediaRecipe
from zephon_beam.store.base import is_remote
from zephon_beam.weights import canonical_weight, parse_weight

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHARD_TOKENS = 524_288
_MIB = 1024 * 1024
_MOST_MEDIA_BYTES = 512 * _MIB
_AUTO_MEDIA_BYTES = 128 * _MIB
"""Pixels of a shard when all its tokens are placeholders: at most, and as `auto` chooses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerRecipe:
    """Which tokenizer turns text into ids, and which ids frame a document."""

    path: str
    """A Hugging Face `tokenizer.json`, a folder that holds one, or a tiktoken rank file."""
    eos: str | int | None = "<|endoftext|>"
    """Token text or id appended to each document; None: nothing is appended."""
    bos: str | int | None = None
    """Token text or id put before each document; None: nothing."""
    pad: str | int = 0
    """Id or token text that fills the rest of a row; `auto`: the tokenizer's pad, else `eos`."""
    allow_special: bool = False
    """Whether special-token text inside a document becomes the special token."""
    pattern: str | None = None
    """Of a rank file: the regular expression that splits text before it is encoded."""
    special: Mapping[str, int] = field(default_factory=dict)
    """Of a rank file: the special tokens and their ids."""

    def __post_init__(self) -> None:
        require_text("tokenizer.path", self.path, "name a tokenizer.json or its folder")
        for name in ("eos", "bos"):
            value = getattr(self, name)
            valid = value is None or (isinstance(value, (str, int)) and value != "")
            valid = valid and not isinstance(value, bool) and value != -1
            require(
                valid, f"tokenizer.{name}", "a token, an id or null", value, "e.g. <|endoftext|>"
            )
        valid = isinstance(self.pad, (str, int)) and not isinstance(self.pad, bool)
        require(valid, "tokenizer.pad", "an id, a token or auto", self.pad, "e.g. pad: 0")
        require_bool("tokenizer.allow_special", self.allow_special)
        if self.pattern is not None:
            require_text("tokenizer.pattern", self.pattern, "or leave it out for a tokenizer.json")
        repair = "write e.g. special: {'<|endoftext|>': 50256}"
        valid = isinstance(self.special, Mapping) and all(
            isinstance(token, str) and token for token in self.special
        )
        require(valid, "tokenizer.special", "a mapping of token to id", self.special, repair)
        for token, number in self.special.items():
            require_int(f"tokenizer.special.{token}", number, 0, repair, 2**31)
        object.__setattr__(self, "special", dict(self.special))


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleEntry:
    """New weights from a global sample (or token count) on."""

    weights: Mapping[str, Any]
    at_sample: int | None = None
    at_tokens: int | None = None

    def __post_init__(self) -> None:
        given = [self.at_sample is not None, self.at_tokens is not None]
        require(
            sum(given) == 1,
            "mixing.schedule",
            "entries with exactly one of at_sample and at_tokens",
            {"at_sample": self.at_sample, "at_tokens": self.at_tokens},
            "name the sample or the token count at which the weights change",
        )
        name = "at_sample" if self.at_sample is not None else "at_tokens"
        require_int(
            f"mixing.schedule.{name}",
            getattr(self, name),
            1,
            "before the first entry the data sets' own weights apply",
        )
        require(
            isinstance(self.weights, Mapping) and len(self.weights) > 0,
            "mixing.schedule.weights",
            "a mapping of data set to weight",
            self.weights,
            "data sets that are not named get weight 0",
        )
        canonical = {
            name: canonical_weight(parse_weight(f"mixing.schedule.weights.{name}", weight))
            for name, weight in self.weights.items()
        }
        object.__setattr__(self, "weights", canonical)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixingRecipe:
    """How the lanes choose the data set of the next piece."""

    unit: str = "tokens"
    when_exhausted: str = "continue"
    schedule: tuple[ScheduleEntry, ...] = ()

    def __post_init__(self) -> None:
        require_choice("mixing.unit", self.unit, ("tokens", "documents"))
        require_choice("mixing.when_exhausted", self.when_exhausted, ("continue", "stop"))
        object.__setattr__(self, "schedule", tuple(self.schedule))


@dataclass(frozen=True, kw_only=True, slots=True)
class ShuffleRecipe:
    """How far documents are moved from their place in the source."""

    chunks: bool = True
    documents: bool = True
    interleave: int = 16
    """Open chunks per data set and lane; a document is taken from each in turn."""

    def __post_init__(self) -> None:
        require_bool("shuffle.chunks", self.chunks)
        require_bool("shuffle.documents", self.documents)
        require_int("shuffle.interleave", self.interleave, 1, "1 reads chunk after chunk", 4096)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingRecipe:
    """How sequences become rows of `seq_len` tokens."""

    method: str = "best_fit"
    open_bins: int = 64
    overlong: str = "split"
    within: str | Mapping[str, tuple[str, ...]] = "all"
    max_segments: int | None = None
    segment_multiple: int = 1
    """Every segment starts at a multiple of this many tokens."""

    def __post_init__(self) -> None:
        methods = ("concat", "best_fit", "first_fit", "best_fit_split")
        require_choice("packing.method", self.method, methods)
        require_int("packing.open_bins", self.open_bins, 1, "64 pads about 0.3 %", 65_536)
        require_choice("packing.overlong", self.overlong, ("split", "truncate", "drop"))
        if self.max_segments is not None:
            require_int("packing.max_segments", self.max_segments, 1, "null sets no limit")
        require_int("packing.segment_multiple", self.segment_multiple, 1, "1 leaves no gaps")
        if isinstance(self.within, str):
            require_choice("packing.within", self.within, ("all", "dataset"))
        else:
            valid = isinstance(self.within, Mapping) and len(self.within) > 0
            repair = "a mapping is of group to data sets, e.g. {text: [web, books], code: [code]}"
            require(valid, "packing.within", "all, dataset or a mapping", self.within, repair)
            groups = {name: tuple(members) for name, members in self.within.items()}
            object.__setattr__(self, "within", groups)


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRecordsRecipe:
    """What happens to a document that can never be read."""

    action: str = "fail"
    max_fraction: str | float = "0.001"

    def __post_init__(self) -> None:
        require_choice("bad_records.action", self.action, ("fail", "quarantine"))
        fraction = parse_weight("bad_records.max_fraction", self.max_fraction)
        require(
            fraction <= 1, "bad_records.max_fraction", "at most 1", self.max_fraction, "e.g. 0.001"
        )
        object.__setattr__(self, "max_fraction", canonical_weight(fraction))


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRecipe:
    """What is learned of conversations, and what happens to those longer than a row."""

    loss_on: str = "assistant"
    overlong: str = "truncate"
    """As `packing.overlong`, for conversations: they are not split unless this says so, and those
    with images or videos never are."""

    def __post_init__(self) -> None:
        require_choice("chat.loss_on", self.loss_on, ("assistant", "last_assistant", "all"))
        require_choice("chat.overlong", self.overlong, ("split", "truncate", "drop"))


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldoutRecipe:
    """A share of the documents that training leaves out, the same one for ever."""

    fraction: str | float
    take: str = "train"

    def __post_init__(self) -> None:
        require_choice("holdout.take", self.take, ("train", "eval"))
        fraction = parse_weight("holdout.fraction", self.fraction)
        rule = "above 0 and below 1"
        require(0 < fraction < 1, "holdout.fraction", rule, self.fraction, "e.g. 0.001")
        object.__setattr__(self, "fraction", canonical_weight(fraction))


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRecipe:
    """How shards are stored; compression never changes a digest."""

    compression: str = "auto"
    """`auto`: none in folders, which readers map, and zstd in buckets, which they download."""

    def __post_init__(self) -> None:
        require_choice("shard.compression", self.compression, ("auto", "none", "zstd"))

    def codec(self, stream: str) -> str:
        """Return `none` or `zstd` for a stream at an address."""
        if self.compression != "auto":
            return self.compression
        return "zstd" if is_remote(stream) else "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A whole stream: sources, tokenizer, order, mixture and packing.

    Raises:
        RecipeError: a field is wrong; the message names it, its value and the repair.

    Determinism: two recipes with equal `zephon_beam.fingerprint.recipe_identity` and equal source
    and tokenizer contents give byte-identical streams.
    """

    name: str
    tokenizer: TokenizerRecipe
    datasets: Mapping[str, DatasetRecipe]
    """In declared order, which counts: it breaks ties and numbers `source_dataset`."""
    seed: int = 0
    lanes: int = 8
    seq_len: int = 2048
    samples_per_shard: str | int = "auto"
    mixing: MixingRecipe = field(default_factory=MixingRecipe)
    shuffle: ShuffleRecipe = field(default_factory=ShuffleRecipe)
    packing: PackingRecipe = field(default_factory=PackingRecipe)
    chat: ChatRecipe = field(default_factory=ChatRecipe)
    bad_records: BadRecordsRecipe = field(default_factory=BadRecordsRecipe)
    holdout: HoldoutRecipe | None = None
    media: MediaRecipe | None = None
    """How images and videos become placeholders and frames, in `content` and `messages`."""
    chunk_bytes: int | None = None
    """Bytes of source per chunk; None: derived per data set and stored in `stream.json`."""
    shard: ShardRecipe = field(default_factory=ShardRecipe)

    def __post_init__(self) -> None:
        require_text("name", self.name, "give the stream a name; it does not change its bytes")
        require_int("seed", self.seed, 0, "any integer of at least 0")
        require_int("lanes", self.lanes, 1, "8 is a good default", 65_536)
        require_int(
            "seq_len", self.seq_len, 1, "write a plain number of tokens, e.g. 2048", 1 << 24
        )
        if self.samples_per_shard != "auto":
            require_int("samples_per_shard", self.samples_per_shard, 1, "or write auto")
        if self.chunk_bytes is not None:
            require_int("chunk_bytes", self.chunk_bytes, 1, "e.g. 256KiB, or leave it out", 1 << 40)
        self._check_datasets()
        self._check_schedule()
        self._check_packing()
        self._check_media()

    @property
    def shard_samples(self) -> int:
        """Samples of one shard, with `auto` resolved from the row length."""
        if isinstance(self.samples_per_shard, int):
            return self.samples_per_shard
        count = max(1, _SHARD_TOKENS // self.seq_len)
        if self.media is not None:
            count = max(1, min(count, _AUTO_MEDIA_BYTES // self._row_media_bytes))
        return count

    @property
    def endless(self) -> bool:
        """Whether the stream goes on without end unless it is told to stop."""
        last: Mapping[str, Any] = {name: entry.weight for name, entry in self.datasets.items()}
        if self.mixing.schedule:
            last = self.mixing.schedule[-1].weights
        taken = [self.datasets[name] for name, weight in last.items() if weight != "0"]
        repeats = [dataset.passes == "repeat" for dataset in taken]
        return all(repeats) if self.mixing.when_exhausted == "stop" else any(repeats)

    @property
    def has_loss_mask(self) -> bool:
        """Whether rows say which labels are learned.

        Those of conversations and of documents with media do, and of tokens that have masks.
        """
        return any(
            dataset.content_kind in ("messages", "content") or dataset.loss_mask is not None
            for dataset in self.datasets.values()
        )

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """Names in declared order; the place in it is `source_dataset`."""
        return tuple(self.datasets)

    @property
    def group_of_dataset(self) -> tuple[int, ...]:
        """Bin group of each data set under `packing.within`, groups numbered from 0."""
        within = self.packing.within
        if within == "all":
            return tuple(0 for _ in self.datasets)
        if within == "dataset":
            return tuple(range(len(self.datasets)))
        groups = dict(within) if isinstance(within, Mapping) else {}
        place = {name: g for g, members in enumerate(groups.values()) for name in members}
        return tuple(place[name] for name in self.datasets)

    def _check_datasets(self) -> None:
        valid = isinstance(self.datasets, Mapping) and len(self.datasets) > 0
        repair = "add e.g. `datasets: {web: {files: data/*.jsonl}}`"
        rule = "a mapping that names at least one data set"
        require(valid, "datasets", rule, self.datasets, repair)
        require(len(self.datasets) < 65_535, "datasets", "fewer than 65535", len(self.datasets), "")
        for name in self.datasets:
            require(
                isinstance(name, str) and bool(_NAME.fullmatch(name)),
                "datasets",
                "named with letters, digits, '.', '_' and '-'",
                name,
                "the name becomes a file name in the stream",
            )
        weights = [dataset.weight for dataset in self.datasets.values()]
        sized = [weight for weight in weights if weight == "size"]
        require(
            len(sized) in (0, len(weights)),
            "datasets.*.weight",
            "`size` for all data sets or for none",
            weights,
            "bytes and plain numbers cannot be compared",
        )
        require(
            any(weight != "0" for weight in weights),
            "datasets.*.weight",
            "above 0 for at least one data set",
            weights,
            "with all weights 0 nothing could ever be taken",
        )

    def _check_schedule(self) -> None:
        previous = 0
        for entry in self.mixing.schedule:
            position = self.schedule_sample(entry)
            require(
                position % self.lanes == 0,
                "mixing.schedule.at_sample",
                f"a multiple of lanes ({self.lanes})",
                position,
                f"use {-(-position // self.lanes) * self.lanes}",
            )
            require(
                position > previous,
                "mixing.schedule",
                "in increasing order of samples",
                position,
                "sort the entries",
            )
            previous = position
            unknown = [name for name in entry.weights if name not in self.datasets]
            require(
                not unknown,
                "mixing.schedule.weights",
                "names of data sets",
                unknown,
                "check spelling",
            )
            positive = any(weight != "0" for weight in entry.weights.values())
            require(
                positive, "mixing.schedule.weights", "not all 0", dict(entry.weights), "raise one"
            )

    def schedule_sample(self, entry: ScheduleEntry) -> int:
        """Global sample at which an entry takes effect; tokens are rounded up to whole rounds."""
        if entry.at_sample is not None:
            return entry.at_sample
        round_tokens = self.lanes * self.seq_len
        return -(-(entry.at_tokens or 0) // round_tokens) * self.lanes

    def _check_packing(self) -> None:
        within = self.packing.within
        if isinstance(within, Mapping):
            members = [name for group in within.values() for name in group]
            require(
                sorted(members) == sorted(self.datasets),
                "packing.within",
                "groups that name every data set exactly once",
                {group: list(names) for group, names in within.items()},
                f"the data sets are {', '.join(self.datasets)}",
            )
        require(
            self.seq_len % self.packing.segment_multiple == 0,
            "packing.segment_multiple",
            f"a divisor of seq_len ({self.seq_len})",
            self.packing.segment_multiple,
            "choose e.g. a power of two that divides it",
        )
        groups = len(set(self.group_of_dataset))
        size = groups * self.packing.open_bins * self.seq_len * 4
        require(
            size <= 32 * _MIB,
            "packing.open_bins",
            "small enough that groups · open_bins · seq_len · 4 bytes stay within 32 MiB",
            self.packing.open_bins,
            f"use at most {max(1, 32 * _MIB // (groups * self.seq_len * 4))}",
        )

    @property
    def _row_media_bytes(self) -> int:
        """Most bytes of pixels that one row can stand for."""
        return 0 if self.media is None else self.seq_len * self.media.family.bytes_per_token

    def _check_media(self) -> None:
        kinds = {name: entry.content_kind for name, entry in self.datasets.items()}
        named = [name for name, kind in kinds.items() if kind == "content"]
        require(
            self.media is not None or not named,
            "media",
            "given where a data set has `content`",
            None,
            f"write e.g. media: {{preset: qwen2_vl, num_frames: 8}} for {named}",
        )
        require(
            self.media is None or bool(named) or "messages" in kinds.values(),
            "media",
            "left out unless a data set has `content` or `messages`",
            None if self.media is None else {"preset": self.media.preset},
            "leave it out, or name the field of a data set that holds images or videos",
        )
        if self.media is None:
            return
        require(
            self.packing.method in ("best_fit", "first_fit"),
            "packing.method",
            "best_fit or first_fit in recipes with `media`",
            self.packing.method,
            "the others cut documents anywhere, also within an image",
        )
        require(
            not self.tokenizer.allow_special,
            "tokenizer.allow_special",
            "false in recipes with `media`",
            True,
            "text could forge placeholders that no image stands for",
        )
        size = self.shard_samples * self._row_media_bytes
        most = _MOST_MEDIA_BYTES // self._row_media_bytes
        use = f"use at most {most}, or a smaller seq_len" if most else "use a smaller seq_len"
        require(
            size <= _MOST_MEDIA_BYTES,
            "samples_per_shard",
            "small enough that the pixels of a shard stay within 512 MiB",
            self.samples_per_shard,
            f"a row of {self.seq_len} placeholders stands for {self._row_media_bytes} bytes; {use}",
        )
