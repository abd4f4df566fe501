"""Holdout: which documents training leaves out, the same ones for ever.

A keyed hash of (data set, file, locator) decides for each document alone. Neither seed nor pass
enters, so the two streams stay disjoint whatever else changes, and file names are those of the
catalog, so a folder may be moved.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from zephon_beam.keyed import keyed_bound, keyed_ints
from zephon_beam.recipe import HoldoutRecipe
from zephon_beam.sources.documents import Documents, take_documents


def take_share(
    documents: Documents, holdout: HoldoutRecipe, *, dataset: str, file_name: Callable[[int], str]
) -> Documents:
    """Return the documents of a part that a recipe takes, in their order.

    Args:
        documents: a part as it was read.
        holdout: how much is held out, and which of the two shares to take.
        dataset: name of the data set.
        file_name: gives the catalog's name of a file by its place.

    Determinism: each document's share depends on the data set's name, its file's name, its locator
    and the fraction alone. A larger fraction holds out the same documents and more.
    """
    is_held_out = held_out(documents, holdout, dataset=dataset, file_name=file_name)
    chosen = is_held_out if holdout.take == "eval" else ~is_held_out
    return documents if chosen.all() else take_documents(documents, np.flatnonzero(chosen))


def held_out(
    documents: Documents, holdout: HoldoutRecipe, *, dataset: str, file_name: Callable[[int], str]
) -> npt.NDArray[np.bool_]:
    """Say which documents are held out, bool[documents]."""
    bound = keyed_bound(Fraction(holdout.fraction))
    found = np.zeros(len(documents), bool)
    files = documents.files.astype(np.int64)
    starts = np.flatnonzero(np.diff(files, prepend=-1))
    ends = np.append(starts[1:], len(files))[: len(starts)]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        name = file_name(int(files[start]))
        hashes = keyed_ints(("holdout", dataset, name), documents.locators[start:end].tolist())
        found[start:end] = [number < bound for number in hashes]
    return found
