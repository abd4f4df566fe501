"""The ids of a recipe's special tokens, looked up in its tokenizer."""

from zephon_beam.encode_documents import special_id
from zephon_beam.errors import RecipeError
from zephon_beam.recipe import Recipe, TokenizerRecipe
from zephon_beam.tokenizer import Tokenizer
from zephon_beam.transforming.steps import Steps


def special_ids(
    recipe: TokenizerRecipe, tokenizer: Tokenizer
) -> tuple[int | None, int | None, int]:
    """Return the ids of `bos`, `eos` and padding."""
    bos = _resolve("bos", recipe.bos, tokenizer, recipe)
    eos = _resolve("eos", recipe.eos, tokenizer, recipe)
    return bos, eos, _pad(recipe, tokenizer, eos)


def refuse_unknown_tokens(steps: Steps, tokenizer: Tokenizer) -> None:
    """Refuse transforms that would put tokens between texts which the vocabulary does not have."""
    for step in (step for own in steps for step in own):
        for token in step.special_tokens:
            try:
                special_id(tokenizer, token)
            except RecipeError as error:
                raise RecipeError(f"{step.place} ({step.name}): {error}") from error


def refuse_unknown_placeholders(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Refuse tokens that would stand for images and are not in the vocabulary."""
    for name in ("image", "video", "start", "end") if recipe.media is not None else ():
        token = recipe.media.token(name) if recipe.media is not None else ""
        if token and tokenizer.token_id(token) is None:
            raise RecipeError(
                f"media.{name}_token must be a token of {recipe.tokenizer.path!r}, got {token!r}; "
                "add it to the tokenizer, or name the token that it has"
            )


def _resolve(
    field: str, value: str | int | None, tokenizer: Tokenizer, recipe: TokenizerRecipe
) -> int | None:
    """Turn a token's text or id into an id of the vocabulary."""
    if value is None:
        return None
    found = tokenizer.token_id(value) if isinstance(value, str) else value
    if found is None or not 0 <= found < tokenizer.vocab_size:
        raise RecipeError(
            f"tokenizer.{field} must be a token of {recipe.path!r} or an id below "
            f"{tokenizer.vocab_size}, got {value!r}; name one that the vocabulary has, or null for "
            "none"
        )
    return found


def _pad(recipe: TokenizerRecipe, tokenizer: Tokenizer, eos: int | None) -> int:
    if recipe.pad != "auto":
        pad = _resolve("pad", recipe.pad, tokenizer, recipe)
    else:
        pad = tokenizer.pad_id if tokenizer.pad_id is not None else eos
    if pad is None:
        raise RecipeError(
            f"tokenizer.pad must be an id or a token when the tokenizer names no padding and eos "
            f"is null, got {recipe.pad!r}; write e.g. pad: 0"
        )
    return pad
