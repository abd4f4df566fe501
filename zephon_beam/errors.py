"""Errors that users can meet, each under the nearest builtin.

Wording: `<field> must be <rule>, got <value!r>; <consequence>; <what to do>`. The message is for
people; attributes carry the same values for programs. `exit_status` is what the command line
returns: 1 when the stream or the data is at fault, 2 when the recipe or the command is.
"""


class ZephonBeamError(Exception):
    """Base of every error that zephon-beam raises on purpose."""

    exit_status = 1


class RecipeError(ZephonBeamError, ValueError):
    """The recipe, a flag or an argument is wrong; nothing was started."""

    exit_status = 2


class SourceError(ZephonBeamError):
    """A source file is missing, empty, unreadable or not of the declared format."""


class BadRecordError(SourceError, ValueError):
    """One document is permanently unusable: bad UTF-8, bad JSON, a missing or wrong field."""

    def __init__(
        self, message: str, *, file: str = "", locator: int = -1, reason: str = ""
    ) -> None:
        super().__init__(message)
        self.file = file
        self.locator = locator
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the keyword attributes when a worker process sends the error to its parent."""
        return _rebuild_bad_record, (str(self), self.file, self.locator, self.reason)


def _rebuild_bad_record(message: str, file: str, locator: int, reason: str) -> BadRecordError:
    return BadRecordError(message, file=file, locator=locator, reason=reason)


class QuarantineError(SourceError, ValueError):
    """More documents of a data set are permanently unusable than the recipe allows."""

    def __init__(
        self, message: str, *, dataset: str = "", quarantined: int = 0, documents: int = 0
    ) -> None:
        super().__init__(message)
        self.dataset = dataset
        self.quarantined = quarantined
        self.documents = documents

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the keyword attributes when a worker process sends the error to its parent."""
        counts = (self.quarantined, self.documents)
        return _rebuild_quarantine, (str(self), self.dataset, *counts)


def _rebuild_quarantine(
    message: str, dataset: str, quarantined: int, documents: int
) -> QuarantineError:
    return QuarantineError(message, dataset=dataset, quarantined=quarantined, documents=documents)


class TransformError(ZephonBeamError):
    """A function of the recipe gave no document, or met a fault that is not its document's."""


class DriftError(ZephonBeamError):
    """The recipe, the tokenizer or a source is no longer what the stream was built from."""


class DeterminismError(ZephonBeamError):
    """An immutable object exists with other content than the one computed now."""


class CorruptObjectError(ZephonBeamError):
    """A stored object is truncated, altered or not of a format this version reads."""


class CorruptShardError(CorruptObjectError):
    """A shard is truncated, altered or not of a format this version reads."""


class ResumeError(ZephonBeamError, ValueError):
    """A saved reader state does not fit the stream or the topology it is loaded into."""

    exit_status = 2


class StreamNotFoundError(ZephonBeamError, FileNotFoundError):
    """There is no stream at the given place."""

    exit_status = 2


class StoreError(ZephonBeamError, OSError):
    """The store refused or failed: no permission, no space, no folder. A retry may succeed."""


class StreamTimeoutError(ZephonBeamError, TimeoutError):
    """The pipeline did not deliver the next samples within the reader's timeout."""


class StreamExhaustedError(ZephonBeamError):
    """More samples were asked for than a finite stream has."""


class PipelineError(ZephonBeamError):
    """The pipeline that computes a stream beside its reader has ended with an error."""
