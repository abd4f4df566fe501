"""What the stages before and behind packing must say alike of a document with media."""

from zephon_beam.keyed import Field
from zephon_beam.media.content import MediaFault
from zephon_beam.sources.compressed import split_ending

MEDIA_KINDS = ("content", "messages")
"""Kinds of documents that may hold images and videos, where the recipe has `media`."""


def document_key(
    seed: int, dataset: str, file: str, locator: int, pass_number: int
) -> tuple[Field, ...]:
    """Return what the chances of a document are drawn from: another pass has others."""
    return seed, "document", dataset, pass_number, file, locator


def archive_name(format: str, file: str) -> str | None:
    """Return the archive whose members may be items of the documents in it, if it is one."""
    return file if format == "webdataset" else None


def refuse_compressed_archive(format: str, file: str) -> None:
    """Refuse items of documents in an archive that is compressed.

    Raises:
        MediaFault: it is.
    """
    if format == "webdataset" and split_ending(file)[1] is not None:
        raise MediaFault(
            "compressed",
            "images and videos must be in archives that are not compressed: nothing can be read "
            "from the middle of one",
        )
