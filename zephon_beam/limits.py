"""How long a run may become: checked before anything starts."""

from zephon_beam.checks import require_choice, require_int
from zephon_beam.errors import RecipeError
from zephon_beam.recipe import Recipe


def resolve_until_samples(
    recipe: Recipe,
    *,
    until_samples: int | None,
    until_tokens: int | None,
    follow: bool = False,
) -> int | None:
    """Return the complete samples that a run must reach; None: the end of a finite stream.

    A run that follows its consumers is bounded by them.

    Raises:
        RecipeError: a limit is not positive, both are given, or an endless stream has none.
    """
    repair = "give the number of samples wanted, counted from the stream's start"
    if until_samples is not None and until_tokens is not None:
        raise RecipeError(
            "--until-samples and --until-tokens must not both be given; they bound the same thing; "
            "leave one out"
        )
    if until_samples is not None:
        require_int("--until-samples", until_samples, 1, repair)
        return until_samples
    if until_tokens is not None:
        require_int("--until-tokens", until_tokens, 1, repair)
        return -(-until_tokens // recipe.seq_len)
    if recipe.endless and not follow:
        raise RecipeError(
            "run must be bounded when the recipe is endless (passes: repeat), got no limit; it "
            "would fill the disk; give --until-samples N, --until-tokens N or --follow, or set "
            "passes"
        )
    return None


def check_following(
    *, follow: bool, lookahead: int | None, retain: str, endless: bool = False
) -> None:
    """Check the options of a run that follows its consumers.

    Raises:
        RecipeError: one is out of its range, or given without `--follow`.
    """
    require_choice("--retain", retain, ("all", "pins"))
    if lookahead is not None:
        repair = "give the samples to keep ahead of the slowest consumer"
        require_int("--lookahead", lookahead, 1, repair)
    if endless and not follow:
        raise RecipeError(
            "--endless must be given together with --follow, got it alone; a job without end is "
            "for streams that follow their consumers; add --follow, or leave it out"
        )
    given = "--lookahead" if lookahead is not None else "--retain pins"
    if not follow and (lookahead is not None or retain != "all"):
        raise RecipeError(
            f"{given} must be given together with --follow, got it alone; there would be no "
            "consumer to look at; add --follow, or leave it out"
        )
