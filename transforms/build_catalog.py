"""BuildCatalogs: footers read in parallel, one catalog a data set; of few files, without a job."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from zephon_beam.catalog.encoding import same_catalog
from zephon_beam.catalog.scan import FileScan, list_files, scan_file
from zephon_beam.catalog.table import build_catalog, derive_chunk_bytes
from zephon_beam.layout import catalog_name
from zephon_beam.recipe import Recipe
from zephon_beam.store.base import open_store

ScanRow = tuple[str, int, str, list[tuple[int, int]]]
"""(path, size, identity, row groups): a `FileScan` as it crosses a shuffle."""

_ELEMENTS = 1000
"""Elements about which the files of a data set are spread."""
FEW_FILES = 256
"""As many are scanned in less time than an engine takes to start a job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogJob:
    """What the catalogs of a stream are built from."""

    stream: str
    recipe: Recipe
    formats: tuple[str, ...]
    roots: tuple[str, ...]
    given: tuple[int, ...] = ()
    """Data sets whose catalogs a fork takes over, which are not built."""

    @property
    def built(self) -> tuple[int, ...]:
        """Data sets whose catalogs are built."""
        places = range(len(self.formats))
        return tuple(dataset for dataset in places if dataset not in self.given)


class BuildCatalogs(beam.PTransform[Any, Any]):
    """List and scan the files of each data set and write its catalog into the stream.

    Element types: in int (place of the data set), out str (name of the catalog).

    Raises:
        SourceError: no files, an empty data set, an unreadable file.
        DeterminismError: the stream holds another catalog of that name.

    Determinism: depends on names, sizes, identities and footers of the files, in name order.
    """

    def __init__(self, job: CatalogJob) -> None:
        """Build the catalogs of `job`."""
        super().__init__()
        self._job = job

    def expand(self, datasets: PCollection[Any]) -> PCollection[Any]:
        """Scan files in parallel, then write one catalog for each data set."""
        return (
            datasets
            | "ListFiles" >> beam.ParDo(_ListFiles(self._job))
            | "SpreadFiles" >> beam.Reshuffle()
            | "ScanFiles" >> beam.ParDo(_ScanFiles(self._job))
            | "GroupByDataset" >> beam.GroupByKey()
            | "WriteCatalogs" >> beam.ParDo(_WriteCatalog(self._job))
        )


class _ListFiles(beam.DoFn):
    def __init__(self, job: CatalogJob) -> None:
        self._job = job

    def process(self, dataset: int) -> Iterator[tuple[int, list[str]]]:
        """Yield files alone, of many some together: an element costs more than a file."""
        recipe = list(self._job.recipe.datasets.values())[dataset]
        paths = list_files(recipe.patterns)
        together = 1 + len(paths) // _ELEMENTS
        for first in range(0, len(paths), together):
            yield dataset, paths[first : first + together]


class _ScanFiles(beam.DoFn):
    def __init__(self, job: CatalogJob) -> None:
        self._job = job

    def process(self, element: tuple[int, list[str]]) -> Iterator[tuple[int, list[ScanRow]]]:
        dataset, paths = element
        scans = [scan_file(path, self._job.formats[dataset]) for path in paths]
        yield (
            dataset,
            [(scan.path, scan.size, scan.identity, list(scan.row_groups)) for scan in scans],
        )


class _WriteCatalog(beam.DoFn):
    def __init__(self, job: CatalogJob) -> None:
        self._job = job

    def process(self, element: tuple[int, Iterable[list[ScanRow]]]) -> Iterator[str]:
        dataset, scanned = element
        scans = [
            FileScan(path=path, size=size, identity=identity, row_groups=tuple(row_groups))
            for rows in scanned
            for path, size, identity, row_groups in rows
        ]
        yield _write_catalog(self._job, dataset, scans)


def build_here(job: CatalogJob, paths: Sequence[Sequence[str]]) -> None:
    """Write the catalogs as `BuildCatalogs` does, one file after the other in this process.

    Args:
        job: what the catalogs are built from.
        paths: the files of each data set, in recipe order.

    Raises:
        SourceError: an unreadable file.
        DeterminismError: the stream holds another catalog of that name.
    """
    for dataset in job.built:
        scans = [scan_file(path, job.formats[dataset]) for path in paths[dataset]]
        _write_catalog(job, dataset, scans)


def _write_catalog(job: CatalogJob, dataset: int, scans: Sequence[FileScan]) -> str:
    """Write the catalog of a data set and return its name."""
    name = job.recipe.dataset_names[dataset]
    source_bytes = sum(scan.size for scan in scans)
    catalog = build_catalog(
        name,
        job.formats[dataset],
        job.roots[dataset],
        scans,
        chunk_bytes=derive_chunk_bytes(job.recipe, source_bytes),
    )
    open_store(job.stream).put_if_absent(catalog_name(name), catalog, same_catalog)
    return catalog_name(name)
