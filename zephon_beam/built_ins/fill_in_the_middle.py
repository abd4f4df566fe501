"""`fill_in_the_middle`: documents whose middle comes last, so that models learn to fill gaps."""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

from zephon_beam.built_ins.base import SPANS
from zephon_beam.checks import require, require_choice, require_text
from zephon_beam.keyed import keyed_bound, keyed_digest
from zephon_beam.weights import parse_weight

Piece = tuple[str, bool]
"""(text, False) or (special token, True)."""

_MODES = ("psm", "spm", "mixed")


@lru_cache
def _bound(rate: str | float) -> int:
    return keyed_bound(Fraction(parse_weight("rate", rate)))


@dataclass(frozen=True, kw_only=True, slots=True)
class FillInTheMiddle:
    """Cut a share of the documents at two random characters and put the middle last.

        document  prefix | middle | suffix
        psm       <prefix> prefix <suffix> suffix <middle> middle
        spm       <prefix> <suffix> suffix <middle> prefix middle

    The cuts are uniform over all places between characters, both ends included. The three texts
    are tokenized each for itself; nothing is lost or repeated. An empty document stays one.

    Determinism: depends on the document's text and its key, hence on the pass.
    Source: Bavarian et al., "Efficient Training of Language Models to Fill in the Middle" (2022),
    PSM and the second variant of SPM.
    """

    rate: str | float = "0.5"
    """Share of the documents that are cut, exactly as written."""
    mode: str = "mixed"
    """`psm`, `spm`, or `mixed`: each for half of them."""
    prefix: str = "<fim_prefix>"
    middle: str = "<fim_middle>"
    suffix: str = "<fim_suffix>"

    kind: ClassVar[str] = SPANS
    contents: ClassVar[tuple[str, ...]] = ("text",)

    def __post_init__(self) -> None:
        rate = parse_weight("rate", self.rate)
        require(rate <= 1, "rate", "from 0 to 1", self.rate, "e.g. rate: 0.5")
        require_choice("mode", self.mode, _MODES)
        tokens = self.special_tokens
        for name, token in zip(("prefix", "suffix", "middle"), tokens, strict=True):
            require_text(name, token, "name a special token of the tokenizer")
        distinct = len(set(tokens)) == len(tokens)
        repair = "a model could not tell them apart"
        require(distinct, "prefix", "another token than suffix and middle", tokens, repair)

    @property
    def code_version(self) -> str:
        """Only ours."""
        return "1"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Prefix, suffix and middle."""
        return self.prefix, self.suffix, self.middle

    def __call__(self, document: str, *, key: int) -> list[Piece]:
        """Return the pieces of a document."""
        digest = keyed_digest("fill_in_the_middle", key, size=32)
        chance, first, second, coin = (
            int.from_bytes(digest[start : start + 8], "little") for start in range(0, 32, 8)
        )
        if not document or chance >= _bound(self.rate):
            return [(document, False)]
        places = len(document) + 1
        start, stop = sorted((first * places >> 64, second * places >> 64))
        prefix, middle, suffix = document[:start], document[start:stop], document[stop:]
        if self.mode == "spm" or (self.mode == "mixed" and coin & 1):
            pieces = [(self.prefix, True), (self.suffix, True), (suffix, False)]
            return [*pieces, (self.middle, True), (prefix, False), (middle, False)]
        pieces = [(self.prefix, True), (prefix, False), (self.suffix, True), (suffix, False)]
        return [*pieces, (self.middle, True), (middle, False)]
