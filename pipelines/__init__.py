"""Runnable pipelines and the command line; imports Apache Beam only when something runs."""

from typing import Any


def run_stream(recipe: Any, stream: str, **options: Any) -> dict[str, Any]:
    """Compute a stream, or go on with it; the same as `zephon-beam run`.

    Args:
        recipe: path of a recipe file, or a `zephon_beam.recipe.Recipe`.
        stream: path or URI of the stream.
        **options: see `pipelines.run.run_stream`, e.g. `until_samples` and `options`, a list of
            Beam flags.

    Returns:
        The facts that `zephon-beam run --json` prints.

    Raises:
        RecipeError: the recipe or an argument is wrong; nothing was started.
        DriftError: the stream was built from another recipe, tokenizer or source.

    Determinism: the stream depends on the recipe and its sources alone, never on the options.
    """
    from pipelines.run import run_stream as run

    return run(recipe, stream, **options)
