"""Faults of documents and of the field that holds them: their wording, and what they lead to."""

from collections.abc import Iterable

from zephon_beam.checks import nearest
from zephon_beam.errors import BadRecordError, RecipeError, SourceError
from zephon_beam.sources.documents import Quarantined

_STOPS = "every run would stop here, for no document is skipped silently"
_LISTED_FIELDS = 20
_SHOWN_CHARACTERS = 60
_HOLDS = {
    "text": ("text", "the documents' text"),
    "messages": ("a list of messages", "the conversations"),
    "content": ("a list of parts", "the texts, images and videos"),
    "tokens": ("a list of integers", "the documents' token ids"),
    "loss_mask": ("a list of 0 and 1", "the tokens' loss mask"),
}
"""What a key of the recipe asks of the field that it names, and what to name instead."""


class RecordFaults:
    """What becomes of records that can never be read: the first one raises, or all are set aside.

    A reader reports the fault and gives an empty document in the record's place.
    """

    def __init__(self, *, quarantine: bool) -> None:
        """Raise at the first fault, or keep what is reported."""
        self._quarantine = quarantine
        self.found: list[Quarantined] = []

    def report(self, error: BadRecordError, place: int) -> None:
        """Keep a fault of the document at a place among those of this file and part.

        Raises:
            BadRecordError: `error`, unless faults are set aside.
        """
        if not self._quarantine:
            raise error
        self.found.append(
            Quarantined(
                place=place,
                file=error.file,
                locator=error.locator,
                reason=error.reason,
                message=str(error).replace(_STOPS, "it was set aside"),
            )
        )


def bad_record(
    file: str, locator: int, place: str, *, rule: str, found: str, reason: str, repair: str
) -> BadRecordError:
    """Return the error for a document that can never be read.

    Args:
        file: name relative to the data set's root.
        locator: the document's locator.
        place: where the document is, for people.
        rule: what must be what, e.g. `document must be valid JSON`.
        found: what was found instead.
        reason: one word for programs.
        repair: what to do.
    """
    return BadRecordError(
        f"{file}, {place}: {rule}, got {found}; {_STOPS}; {repair}",
        file=file,
        locator=locator,
        reason=reason,
    )


def wrong_field(field: str, path: str, names: Iterable[str], key: str = "text") -> RecipeError:
    """Return the error for a recipe whose `key` names a field that its first file does not have."""
    return RecipeError(
        f"{key} must be a field of the documents, got {field!r}, which {path!r} does not have; "
        f"{describe_fields(field, names)}"
    )


def wrong_type(field: str, path: str, found: str, key: str = "text") -> RecipeError:
    """Return the error for a recipe whose `key` names a field which holds something else."""
    rule, repair = _HOLDS[key]
    return RecipeError(
        f"{key} must be a field that holds {rule}, got {field!r}, which holds {found} in {path!r}; "
        f"name the field with {repair}"
    )


def wrong_file(
    file: str, field: str, key: str, error: KeyError | TypeError, names: Iterable[str]
) -> SourceError:
    """Return the error for a file that lacks the field of its data set, or has another there.

    Args:
        file: name relative to the data set's root.
        field: the field.
        key: key of the recipe that names it.
        error: `KeyError`: there is none; `TypeError`: what it holds instead.
        names: the fields there are.
    """
    missing = isinstance(error, KeyError)
    found = f"none; {describe_fields(field, names)}" if missing else str(error)
    return SourceError(
        f"{file}: expected a column {field!r} of {_HOLDS[key][0]}, found {found}; every file of a "
        f"data set needs it; correct the file or `{key}` in the recipe, then run the recipe into a "
        "new place"
    )


def describe_fields(field: str, names: Iterable[str]) -> str:
    """List the fields there are and the one that was probably meant."""
    listed = list(names)
    shown = ", ".join(repr(name) for name in listed[:_LISTED_FIELDS]) or "none"
    more = f" and {len(listed) - _LISTED_FIELDS} more" if len(listed) > _LISTED_FIELDS else ""
    hint = nearest(field, listed)
    return f"its fields are {shown}{more}" + (f"; did you mean {hint!r}?" if hint else "")


def shorten(value: object) -> str:
    """Show a value in a message without filling the screen."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
