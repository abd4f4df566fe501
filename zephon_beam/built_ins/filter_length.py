"""`filter_length`: documents of a length in characters."""

from dataclasses import dataclass
from typing import ClassVar

from zephon_beam.built_ins.base import FILTER
from zephon_beam.checks import require, require_int


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterLength:
    """Keep documents of at least `min_characters` and at most `max_characters` code points."""

    min_characters: int = 0
    max_characters: int | None = None

    kind: ClassVar[str] = FILTER
    contents: ClassVar[tuple[str, ...]] = ("text",)

    def __post_init__(self) -> None:
        require_int("min_characters", self.min_characters, 0, "0 sets no limit")
        if self.max_characters is not None:
            repair = "it is the largest length that is kept; null sets no limit"
            require_int("max_characters", self.max_characters, self.min_characters, repair)
        require(
            self.min_characters > 0 or self.max_characters is not None,
            "min_characters",
            "above 0 if max_characters is not given",
            self.min_characters,
            "say which lengths to keep, e.g. min_characters: 200",
        )

    @property
    def code_version(self) -> str:
        """Only ours."""
        return "1"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Puts none."""
        return ()

    def __call__(self, document: str) -> bool:
        """Say whether a text is kept."""
        length = len(document)
        return length >= self.min_characters and (
            self.max_characters is None or length <= self.max_characters
        )
