"""The budget of `bad_records: {action: quarantine}`: how many documents may be set aside.

It is judged in each lane for each data set, from what the lane consumed: when a shard is complete,
when a part that held such documents is used up, and at the lane's end. So it fails at the same
place whatever arrives when, and never because one bundle happened to hold more than its share.
"""

from dataclasses import dataclass
from fractions import Fraction

from zephon_beam.errors import QuarantineError

MINIMUM_DOCUMENTS = 1000
"""Documents of a data set that a lane reads before it judges, unless it ends earlier."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuarantineBudget:
    """At most `limit` of a data set's documents in a lane may be set aside.

    A fraction says little of a few documents, so:
    - nothing is judged before `MINIMUM_DOCUMENTS` were read or the lane has ended;
    - one document is never too many (unless the limit is 0), as long as a good one was read, too.
    """

    dataset: str
    limit: tuple[int, int]
    """Numerator and denominator of the recipe's `bad_records.max_fraction`, exact."""

    def judge(self, quarantined: int, documents: int, *, ended: bool) -> None:
        """Stop when too many of the documents that were read had been set aside.

        Raises:
            QuarantineError: they are more than the budget allows.

        Determinism: integers only.
        """
        if not quarantined or not (ended or documents >= MINIMUM_DOCUMENTS):
            return
        numerator, denominator = self.limit
        is_within = quarantined * denominator <= numerator * documents
        is_single = quarantined == 1 and numerator > 0 and documents > 1
        if not (is_within or is_single):
            raise QuarantineError(
                f"bad_records.max_fraction must be at least the fraction of bad documents, got "
                f"{Fraction(numerator, denominator)}, and {quarantined} of {documents} documents "
                f"of data set {self.dataset} in one lane are bad; the stream would lack them "
                f"without notice; look at the reasons in quarantine/{self.dataset}, mend the "
                "source or raise the fraction, and run the recipe into a new place",
                dataset=self.dataset,
                quarantined=quarantined,
                documents=documents,
            )
