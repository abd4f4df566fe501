"""`normalize`: one spelling for texts that look the same."""

import unicodedata
from dataclasses import dataclass
from typing import ClassVar, Literal

from zephon_beam.built_ins.base import MAP
from zephon_beam.checks import require_bool, require_choice

_FORMS = ("NFC", "NFKC", "NFD", "NFKD")


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalize:
    r"""Bring a text into a Unicode normalization form, end its lines by `\n`, strip its ends.

    Determinism: depends on the text and, where a form or stripping is asked for, on the version
    of Unicode that Python has.
    Source: Unicode Standard Annex 15.
    """

    form: Literal["NFC", "NFKC", "NFD", "NFKD"] | None = "NFC"
    """NFC, NFKC, NFD or NFKD; None: as it is."""
    newlines: bool = True
    r"""Whether `\r\n` and a lone `\r` become `\n`."""
    strip: bool = False
    """Whether white space is taken off both ends of the document."""

    kind: ClassVar[str] = MAP
    contents: ClassVar[tuple[str, ...]] = ("text",)

    def __post_init__(self) -> None:
        if self.form is not None:
            require_choice("form", self.form, _FORMS)
        require_bool("newlines", self.newlines)
        require_bool("strip", self.strip)

    @property
    def code_version(self) -> str:
        """Include the Unicode version if it can change a text."""
        by_tables = self.form is not None or self.strip
        return "1, Unicode " + unicodedata.unidata_version if by_tables else "1"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Puts none."""
        return ()

    def __call__(self, document: str) -> str:
        """Normalize a text."""
        if self.newlines and "\r" in document:
            document = document.replace("\r\n", "\n").replace("\r", "\n")
        if self.form is not None and not document.isascii():
            document = unicodedata.normalize(self.form, document)
        return document.strip() if self.strip else document
