"""Catalogs as a stream keeps them."""

from zephon_beam.catalog.table import Catalog
from zephon_beam.errors import CorruptObjectError
from zephon_beam.layout import MANIFEST, catalog_name
from zephon_beam.store.base import Store


def read_catalog(store: Store, dataset: str) -> Catalog:
    """Map the catalog of a data set.

    Args:
        store: of the stream.
        dataset: its name.

    Raises:
        CorruptObjectError: it is missing or damaged.
    """
    name = catalog_name(dataset)
    try:
        return Catalog.from_buffer(store.open_mmap(name), name)
    except FileNotFoundError as error:
        raise CorruptObjectError(
            f"{name} must exist beside {MANIFEST}, found none in {store.uri!r}; the order of "
            "its sources can no longer be known; restore it from a copy, or run the recipe "
            "into a new place, which writes the same bytes"
        ) from error
