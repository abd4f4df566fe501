"""What must hold in every shard: each fault is found and named."""

import pytest

from tests.streams import Segment, make_manifest, samples_of
from zephon_beam.shard_checks import check_rows


@pytest.mark.parametrize(
    ("starts", "faults"),
    [
        ((0, 8), []),
        ((0, 4), []),
        ((0, 6), ["row 0: segment_starts: expected multiples of 4, found 6"]),
    ],
)
def test_segments_start_at_multiples_of_what_the_recipe_says(
    starts: tuple[int, int], faults: list[str]
) -> None:
    """Padded apart further than needed is no fault; elsewhere is one."""
    manifest = make_manifest(recipe={"packing": {"segment_multiple": 4}})
    row = [Segment(start=start, tokens=(1, 2, 3)) for start in starts]
    samples = samples_of([row], manifest)
    assert list(check_rows(samples, samples.valid_tokens, manifest, [])) == [
        # The manifest of this test names no data set.
        "row 0: source_dataset: expected at least 0 and below 0, found 0",
        *faults,
    ]
