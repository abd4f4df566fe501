"""What every transform of an advance needs to know, and how workers open it.

Only names and the recipe travel in the job's graph; manifests, plans and catalogs are read from
the stream, where they are immutable.
"""

from dataclasses import dataclass
from functools import lru_cache

from zephon_beam.catalog.stored import read_catalog
from zephon_beam.catalog.table import Catalog
from zephon_beam.chunk_order import ChunkOrder
from zephon_beam.lane_config import LaneConfig, make_lane_config
from zephon_beam.layout import plan_name, recompute_name
from zephon_beam.manifest import Manifest, read_manifest
from zephon_beam.plan import Plan
from zephon_beam.position import read_plan
from zephon_beam.recipe import Recipe
from zephon_beam.store.base import Store, open_store


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamJob:
    """One advance of one stream, as the graph carries it."""

    stream: str
    advance: int
    recipe: Recipe
    roots: tuple[str, ...]
    """Folder of each data set's files, in recipe order."""
    code_folders: tuple[str, ...] = ()
    """Put at the end of a worker's import path, for the functions that the recipe calls."""
    recomputes: bool = False
    """Whether `advance` numbers a plan that makes lost shards again."""
    endless: bool = False
    """Whether `advance` numbers the plan of an endless job."""
    backend: str = "auto"
    """Which library encodes; a run option, so it changes the speed and never a byte."""

    def store(self) -> Store:
        """Open the stream's store."""
        return open_store(self.stream)

    def manifest(self) -> Manifest:
        """Read what the stream is."""
        return read_manifest(self.store())

    def lane_config(self) -> LaneConfig:
        """Derive the configuration of the lanes."""
        return make_lane_config(self.recipe, self.manifest())

    @property
    def codec(self) -> str:
        """How new shards are stored, `none` or `zstd`."""
        return self.recipe.shard.codec(self.stream)

    def plan(self) -> Plan:
        """Read the plan of this advance."""
        namer = recompute_name if self.recomputes else plan_name
        return read_plan(self.store(), self.manifest(), namer(self.advance))

    def catalogs(self) -> tuple[Catalog, ...]:
        """Map the catalogs, in recipe order, once for each process."""
        return tuple(_catalog(self.stream, name) for name in self.recipe.dataset_names)

    def chunk_orders(self) -> tuple[ChunkOrder, ...]:
        """Return the order of chunks of each data set, in recipe order."""
        return make_chunk_orders(self.recipe, self.catalogs())


def make_chunk_orders(recipe: Recipe, catalogs: tuple[Catalog, ...]) -> tuple[ChunkOrder, ...]:
    """Return the order of chunks of each data set, in recipe order."""
    return tuple(
        ChunkOrder(
            seed=recipe.seed,
            dataset=name,
            chunk_count=catalog.chunk_count,
            lanes=recipe.lanes,
            shuffle=recipe.shuffle.chunks,
            passes=None if dataset.passes == "repeat" else int(dataset.passes),
        )
        for (name, dataset), catalog in zip(recipe.datasets.items(), catalogs, strict=True)
    )


@lru_cache(maxsize=1024)
def _catalog(stream: str, dataset: str) -> Catalog:
    return read_catalog(open_store(stream), dataset)
