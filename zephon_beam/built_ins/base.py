"""What every built-in transform is: the values of `with`, checked, and a call without memory."""

from typing import Any, ClassVar, Protocol

MAP = "map"
"""call(document) -> document."""
FILTER = "filter"
"""call(document) -> whether to keep it."""
SPANS = "spans"
"""call(document, key=key) -> its pieces: (text, False) or (name of a special token, True)."""
PART_FILTER = "part_filter"
"""call(documents of a part, in order) -> whether to keep each."""


class BuiltIn(Protocol):
    """A built-in with its options; frozen.

    Determinism: a call depends on its arguments, the options and `code_version` alone.
    """

    kind: ClassVar[str]
    contents: ClassVar[tuple[str, ...]]
    """Contents of data sets that it can be applied to."""

    @property
    def code_version(self) -> str:
        """Stands for the code in the fingerprint; another one may give other bytes."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Special tokens that it puts between texts."""

    def __call__(self, *args: Any, **keys: Any) -> Any:
        """Do it."""
