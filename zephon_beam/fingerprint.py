"""The fingerprint: one short name for everything that decides the bytes of a stream.

It covers the recipe without its paths, the tokenizer's content, the catalogs and the format of
the stream. Two recipes with one fingerprint give one stream; a stream refuses any other.
"""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from hashlib import blake2b
from typing import Any

from zephon_beam.manifest import Manifest
from zephon_beam.recipe import Recipe
from zephon_beam.recipe_mapping import recipe_to_mapping

_DIGEST_BYTES = 16


def recipe_identity(recipe: Recipe) -> dict[str, Any]:
    """Return what a recipe says about bytes, each thing in one spelling only.

    Left out: `name`, the places of files and tokenizer (their contents enter through digests), and
    `shard.compression` (digests are logical). Values that mean the same are the same: `auto` and
    the number it stands for, 0.70 and 0.7, a token count and the sample it is rounded up to.

    Determinism: depends on the recipe alone. The order of data sets counts, so it is kept.
    """
    identity = recipe_to_mapping(recipe)
    _drop_later_defaults(identity)
    del identity["name"], identity["tokenizer"]["path"], identity["shard"]
    for dataset in identity["datasets"].values():
        del dataset["files"]
    identity["samples_per_shard"] = recipe.shard_samples
    identity["mixing"]["schedule"] = [
        {
            "at_sample": recipe.schedule_sample(entry),
            "weights": {name: entry.weights.get(name, "0") for name in recipe.datasets},
        }
        for entry in recipe.mixing.schedule
    ]
    return identity


_LATER_DEFAULTS: dict[str, dict[str, Any]] = {
    "": {"chat": {"loss_on": "assistant", "overlong": "truncate"}, "holdout": None, "media": None},
    "tokenizer": {"pattern": None, "special": {}},
    "packing": {"segment_multiple": 1},
    "media": {"crop_area": "1", "crop_aspect": "1"},
    "datasets.*": {
        "messages": None,
        "content": None,
        "tokens": None,
        "loss_mask": None,
        "transforms": [],
    },
}
"""Keys that the first version of the recipe did not have, and what they ask for when they ask for
nothing: left out then, so that the streams of that version keep their fingerprints."""


def _drop_later_defaults(identity: dict[str, Any]) -> None:
    for values, defaults in _later_tables(identity):
        for key, default in defaults.items():
            if values[key] == default:
                del values[key]


def _restore_later_defaults(identity: Mapping[str, Any]) -> dict[str, Any]:
    restored: dict[str, Any] = deepcopy(dict(identity))
    for values, defaults in _later_tables(restored):
        for key, default in defaults.items():
            values.setdefault(key, deepcopy(default))
    return restored


def _later_tables(identity: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each mapping that may hold later keys, with their defaults."""
    yield identity, _LATER_DEFAULTS[""]
    for section in ("tokenizer", "packing", "media"):
        if identity.get(section) is not None:
            yield identity[section], _LATER_DEFAULTS[section]
    for dataset in identity["datasets"].values():
        yield dataset, _LATER_DEFAULTS["datasets.*"]


def fingerprint(
    recipe: Recipe,
    *,
    tokenizer_digest: str,
    catalog_digests: Mapping[str, str],
    format_version: int,
    code_versions: Mapping[str, str] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> str:
    """Hash a recipe and the contents it stands on.

    Args:
        recipe: any recipe.
        tokenizer_digest: digest of the tokenizer's content.
        catalog_digests: digest of the catalog of each data set of the recipe.
        format_version: version of the stream format.
        code_versions: what stands for each piece of code and each library that decides bytes
            besides our own, by name.
        origin: of a fork, what stands for the point that it begins at.

    Returns:
        BLAKE2b over canonical JSON, 32 hexadecimal digits.

    Raises:
        ValueError: the catalogs are not those of the recipe's data sets.

    Determinism: depends on `recipe_identity` and the other arguments; values are pinned in tests.
    """
    if set(catalog_digests) != set(recipe.datasets):
        raise ValueError(
            f"catalog_digests must name the data sets {list(recipe.datasets)}, "
            f"got {list(catalog_digests)}"
        )
    content: dict[str, Any] = {
        "format_version": format_version,
        "recipe": recipe_identity(recipe),
        "tokenizer": tokenizer_digest,
        "catalogs": {name: catalog_digests[name] for name in recipe.datasets},
    }
    if code_versions:
        content["code"] = dict(sorted(code_versions.items()))
    if origin is not None:
        content["origin"] = dict(origin)
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return blake2b(text.encode("ascii"), digest_size=_DIGEST_BYTES).hexdigest()


def manifest_fingerprint(manifest: Manifest, recipe: Recipe) -> str:
    """Compute the fingerprint of a stream from everything else that its manifest says.

    Args:
        manifest: its own fingerprint is not looked at.
        recipe: of the manifest.
    """
    return fingerprint(
        recipe,
        tokenizer_digest=manifest.tokenizer_digest,
        catalog_digests={dataset.name: dataset.catalog_digest for dataset in manifest.datasets},
        format_version=manifest.format_version,
        code_versions=manifest.code_versions,
        origin=None if manifest.origin is None else manifest.origin.identity(),
    )


def differences(old_identity: Mapping[str, Any], new_identity: Mapping[str, Any]) -> dict[str, str]:
    """Say in which fields two identities differ.

    Returns:
        In words by field, such as `the stream has "0.7", the recipe now has "0.8"` by
        `datasets.web.weight`; empty if the identities are equal.
    """
    return {
        field: f"the stream has {old}, the recipe now has {new}"
        for field, old, new in differing_fields(old_identity, new_identity)
    }


def differing_fields(
    old_identity: Mapping[str, Any], new_identity: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    """Return (field, old value, new value) where two identities differ, values as JSON text.

    A value that is not there is `nothing`.
    """
    old, new = map(_restore_later_defaults, (old_identity, new_identity))
    return list(_compare("", old, new))


def _compare(path: str, old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        if path == "datasets" and list(old) != list(new) and set(old) == set(new):
            yield "order of datasets", _spell(list(old)), _spell(list(new))
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{path}.{key}" if path else key
            yield from _compare(inner, old.get(key, _ABSENT), new.get(key, _ABSENT))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _compare(f"{path}[{place}]", one, other)
    elif old != new or type(old) is not type(new):
        yield path, _spell(old), _spell(new)


_ABSENT = object()


def _spell(value: Any) -> str:
    return "nothing" if value is _ABSENT else json.dumps(value, ensure_ascii=False)
