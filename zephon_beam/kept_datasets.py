"""Which data sets of a fork go on where they are, and which begin anew: decided from two recipes.

A data set keeps its place if its name, its files, its content and its transforms are what they
were. Its pieces that wait in open rows re-enter if its tokens are what they were, too; else they
are dropped, and so is the rest of a document that is partly used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zephon_beam.errors import RecipeError
from zephon_beam.fingerprint import differences, recipe_identity
from zephon_beam.layout import MANIFEST
from zephon_beam.manifest import Manifest
from zephon_beam.recipe import Recipe
from zephon_beam.recipe_mapping import recipe_from_mapping

_ORDER_FIELDS = ("seed", "shuffle.chunks", "shuffle.documents", "holdout")
"""A place in a data set means other documents when one of these changes."""
_CONTENT_FIELDS = ("text", "messages", "content", "tokens", "loss_mask", "transforms")
_FRAMING_FIELDS = ("tokenizer.pad", "tokenizer.eos", "tokenizer.bos")
"""Told by ids, which may be spelt otherwise; the padding is in no sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetFork:
    """What becomes of one data set of a fork's recipe."""

    name: str
    older: int | None
    """Its place in the older recipe; None: it begins anew."""
    anew: str = ""
    """Why it begins anew."""
    dropped: str = ""
    """Why its pieces in open rows are dropped; empty: they re-enter."""


def fork_datasets(
    older: Manifest,
    recipe: Recipe,
    code_versions: Mapping[str, str],
    file_changes: Mapping[str, str],
) -> tuple[DatasetFork, ...]:
    """Decide which data sets of a fork go on, taking their tokens to be what they were.

    Args:
        older: of the stream that is forked.
        recipe: of the fork.
        code_versions: what stands for the transforms of the fork's recipe.
        file_changes: in what files differ, by data set; those that do not are left out.

    Returns:
        One entry for each data set, in the order of the fork's recipe.

    Raises:
        RecipeError: the recipe changes what decides the order of documents or the lanes, or no
            data set of the older recipe is left.

    Determinism: depends on the arguments alone.
    """
    changed = changed_fields(older, recipe)
    refuse_other_order(changed)
    places = {dataset.name: place for place, dataset in enumerate(older.datasets)}
    forks = []
    for name in recipe.datasets:
        anew = "it is new"
        if name in places:
            anew = file_changes.get(name, "") or _content_change(name, changed)
            anew = anew or _code_change((f"datasets.{name}.",), older.code_versions, code_versions)
        forks.append(DatasetFork(name=name, older=None if anew else places[name], anew=anew))
    if all(fork.older is None for fork in forks):
        reasons = "; ".join(f"{fork.name}: {fork.anew}" for fork in forks)
        raise RecipeError(
            f"recipe must keep a data set of the stream, all begin anew ({reasons}); there is "
            "nothing to go on with; undo a change, or run the recipe into a new place"
        )
    return tuple(forks)


def compare_tokens(
    forks: Sequence[DatasetFork], older: Manifest, recipe: Recipe, newer: Manifest
) -> tuple[DatasetFork, ...]:
    """Decide whose pieces re-enter, now that the fork's tokenizer and code are known.

    Determinism: depends on the arguments alone.
    """
    changed = changed_fields(older, recipe)
    return tuple(
        fork
        if fork.older is None
        else replace(
            fork,
            dropped=_token_change(recipe.datasets[fork.name].content_kind, changed, older, newer),
        )
        for fork in forks
    )


def changed_fields(older: Manifest, recipe: Recipe) -> dict[str, str]:
    """Return in which fields a recipe differs from that of a stream, as {field: in words}."""
    stored = recipe_from_mapping(older.recipe, origin=f"{MANIFEST}: recipe")
    return differences(recipe_identity(stored), recipe_identity(recipe))


def decides_order(field: str) -> bool:
    """Say whether no fork can change a field of the recipe."""
    return field == "lanes" or field in _ORDER_FIELDS or field.startswith("holdout.")


def refuse_other_order(changed: Mapping[str, str]) -> None:
    """Refuse what no place in a data set outlives.

    Raises:
        RecipeError: the recipe changes it.
    """
    if "lanes" in changed:
        raise RecipeError(
            f"lanes must stay what they are in a fork: {changed['lanes']}; the chunks of a pass "
            "are shared out among the lanes, so documents would repeat or be missed; undo the "
            "change, or run the recipe into a new place"
        )
    for field, words in changed.items():
        if decides_order(field):
            raise RecipeError(
                f"{field} must stay what it is in a fork: {words}; the places that data sets are "
                "at would mean other documents, which would repeat or be missed; undo the change, "
                "or run the recipe into a new place"
            )


def _content_change(name: str, changed: Mapping[str, str]) -> str:
    """Say in what a data set's documents differ; empty if they do not."""
    for field, words in changed.items():
        parts = field.split(".")
        key = parts[2].partition("[")[0] if parts[:2] == ["datasets", name] and parts[2:] else ""
        if key in _CONTENT_FIELDS:
            return f"{'.'.join(parts[2:])}: {words}"
    return ""


def _token_change(kind: str, changed: Mapping[str, str], older: Manifest, newer: Manifest) -> str:
    """Say in what the tokens of a data set's documents differ; empty if they do not."""
    if older.tokenizer_digest != newer.tokenizer_digest:
        return "the tokenizer is another one"
    for name in ("bos_id", "eos_id"):
        found, expected = getattr(newer, name), getattr(older, name)
        if found != expected:
            return f"tokenizer.{name[:3]}: the stream has {expected}, the recipe now has {found}"
    for field, words in changed.items():
        section = field.partition(".")[0]
        if (
            (section == "tokenizer" and field not in _FRAMING_FIELDS)
            or (kind == "messages" and field == "chat.loss_on")
            or (kind in ("content", "messages") and section == "media")
        ):
            return f"{field}: {words}"
    prefixes = {"messages": ("chat", "media"), "content": ("media",)}.get(kind, ())
    return _code_change(prefixes, older.code_versions, newer.code_versions)


def _code_change(
    prefixes: tuple[str, ...], older: Mapping[str, str], newer: Mapping[str, str]
) -> str:
    """Say which code of a kind is another one; empty if none is."""
    for name in sorted({*older, *newer}):
        before, now = older.get(name), newer.get(name)
        if name.startswith(prefixes) and before != now:
            return f"{name.replace('_', ' ')}: code {before or 'of nothing'} became {now}"
    return ""
