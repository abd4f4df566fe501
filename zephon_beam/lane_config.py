"""What a lane process must know of the recipe and the sources, in plain numbers."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from zephon_beam.manifest import Manifest
from zephon_beam.mixing import MixingPhase, integer_weights
from zephon_beam.recipe import Recipe
from zephon_beam.recipe_datasets import DatasetRecipe


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneConfig:
    """The part of a stream's definition that mixing and packing depend on."""

    fingerprint: str
    lanes: int
    seq_len: int
    samples_per_shard: int
    token_dtype: str
    pad_id: int
    has_loss_mask: bool
    interleave: int
    chunk_totals: tuple[int | None, ...]
    """Chunks of each data set over all lanes and passes; None: endless."""
    phases: tuple[MixingPhase, ...]
    unit: str
    stop_when_exhausted: bool
    overlong: tuple[str, ...]
    """Of each data set, what happens to documents longer than a row."""
    packing: str
    open_bins: int
    max_segments: int | None
    group_of_dataset: tuple[int, ...]
    segment_multiple: int = 1
    """Every segment starts at a multiple of it; divides `seq_len`."""
    quarantine_limit: tuple[int, int] | None = None
    """Fraction of a data set's documents that may be set aside (numerator, denominator)."""
    dataset_names: tuple[str, ...] = ()
    """For messages."""
    media_ids: tuple[tuple[int, ...], ...] = ()
    """Of each data set whose documents may be cut, ids of tokens among which no cut may fall."""

    @property
    def dataset_count(self) -> int:
        """Number of data sets."""
        return len(self.chunk_totals)

    @property
    def group_count(self) -> int:
        """Number of groups that share bins."""
        return max(self.group_of_dataset) + 1

    def whole_ids(self, dataset: int) -> tuple[int, ...]:
        """Return the ids of tokens among which documents of a data set are never cut."""
        return self.media_ids[dataset] if self.media_ids else ()

    def dataset_name(self, dataset: int) -> str:
        """Return what to call a data set."""
        return self.dataset_names[dataset] if self.dataset_names else f"number {dataset}"

    def channel_chunks(self, dataset: int, lane: int) -> int | None:
        """Return how many chunks a lane reads of a data set, None if without end."""
        total = self.chunk_totals[dataset]
        return None if total is None else max(0, -(-(total - lane) // self.lanes))


def make_lane_config(recipe: Recipe, manifest: Manifest) -> LaneConfig:
    """Derive the configuration that every lane of a stream shares.

    Determinism: depends on the recipe and on what `stream.json` froze.
    """
    datasets = list(recipe.datasets.values())
    totals = [
        None if dataset.passes == "repeat" else int(dataset.passes) * frozen.chunk_count
        for dataset, frozen in zip(datasets, manifest.datasets, strict=True)
    ]
    return LaneConfig(
        fingerprint=manifest.fingerprint,
        lanes=manifest.lanes,
        seq_len=manifest.seq_len,
        samples_per_shard=manifest.samples_per_shard,
        token_dtype=np.dtype(manifest.token_dtype).name,
        pad_id=manifest.pad_id,
        has_loss_mask=manifest.has_loss_mask,
        interleave=recipe.shuffle.interleave,
        chunk_totals=tuple(totals),
        phases=_phases(recipe, [frozen.weight for frozen in manifest.datasets]),
        unit=recipe.mixing.unit,
        stop_when_exhausted=recipe.mixing.when_exhausted == "stop",
        overlong=tuple(_overlong(recipe, dataset) for dataset in datasets),
        packing=recipe.packing.method,
        open_bins=recipe.packing.open_bins,
        max_segments=recipe.packing.max_segments,
        group_of_dataset=recipe.group_of_dataset,
        segment_multiple=recipe.packing.segment_multiple,
        quarantine_limit=_quarantine_limit(recipe),
        dataset_names=recipe.dataset_names,
        media_ids=tuple(
            tuple(manifest.media_ids) if dataset.content_kind == "messages" else ()
            for dataset in datasets
        ),
    )


def _overlong(recipe: Recipe, dataset: DatasetRecipe) -> str:
    """Return what happens to a data set's documents longer than a row.

    Content is dropped: a cut could leave an item alone, or what is said of it.
    """
    if dataset.content_kind == "content":
        return "drop"
    return recipe.chat.overlong if dataset.content_kind == "messages" else recipe.packing.overlong


def _quarantine_limit(recipe: Recipe) -> tuple[int, int] | None:
    """Return the budget for bad documents as an exact fraction; None where the first one fails."""
    if recipe.bad_records.action != "quarantine":
        return None
    return Fraction(Decimal(recipe.bad_records.max_fraction)).as_integer_ratio()


def _phases(recipe: Recipe, weights: list[str]) -> tuple[MixingPhase, ...]:
    """Turn global positions into packs closed by one lane."""
    phases = [MixingPhase(start=0, weights=integer_weights([Decimal(w) for w in weights]))]
    for entry in recipe.mixing.schedule:
        given: dict[str, Any] = dict(entry.weights)
        changed = [Decimal(given.get(name, "0")) for name in recipe.datasets]
        start = recipe.schedule_sample(entry) // recipe.lanes
        phases.append(MixingPhase(start=start, weights=integer_weights(changed)))
    return tuple(phases)
