"""The libraries that decode media, as part of what a stream is."""

from zephon_beam.errors import DriftError, RecipeError
from zephon_beam.manifest import Manifest
from zephon_beam.recipe import Recipe

CODE_VERSION = "media_libraries"
"""Name of the libraries' versions among the `code_versions` of a stream."""


def media_code_versions(recipe: Recipe) -> dict[str, str]:
    """Return what stands for the decoders in the fingerprint; nothing without media.

    Raises:
        RecipeError: the recipe has media, and the libraries are not installed.
    """
    if recipe.media is None:
        return {}
    try:
        from transforms.media.libraries import library_versions
    except ImportError as error:
        raise RecipeError(
            "media must be decoded by PyAV and Pillow, which are not installed "
            f"({error}); install zephon-beam with the extra `video`"
        ) from error
    return {CODE_VERSION: library_versions()}


def refuse_other_libraries(manifest: Manifest) -> None:
    """Refuse to decode with other libraries than the stream was created with.

    Raises:
        DriftError: a version differs.
    """
    from transforms.media.libraries import library_versions

    expected, found = manifest.code_versions.get(CODE_VERSION), library_versions()
    if found != expected:
        raise DriftError(
            f"media libraries: expected {expected}, found {found}; with others the stream would go "
            "on with other pixels; install those, or start a new stream"
        )
