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


@pytest.mark.parametrize(
    ("following", "learned", "fault"),
    [
        (-1, (1, 1, 0), []),
        (9, (1, 1, 1), []),
        (-1, (1, 1, 1), ["row 0: loss_mask at token 4: expected 0, for it has no label, found 1"]),
        (9, (1, 1, 2), ["row 0: loss_mask: expected 0 or 1, found 2"]),
    ],
)
def test_a_mask_is_0_where_there_is_no_label(
    following: int, learned: tuple[int, ...], fault: list[str]
) -> None:
    """The last token of a document has none; that of a piece before a cut has one."""
    manifest = make_manifest(has_loss_mask=True)
    row = [Segment(start=2, tokens=(1, 2, 3), learned=learned, following=following)]
    samples = samples_of([row], manifest)
    found = check_rows(samples, samples.valid_tokens, manifest, [])
    assert [line for line in found if "loss_mask" in line] == fault


def test_a_mask_is_0_in_padding() -> None:
    """Nothing is learned of what is no token."""
    manifest = make_manifest(has_loss_mask=True)
    samples = samples_of([[Segment(start=0, tokens=(1, 2), learned=(1, 0))]], manifest)
    assert samples.loss_mask is not None
    samples.loss_mask[0, 5] = 1
    expected = "row 0: loss_mask at token 5: expected 0, for it has no label, found 1"
    assert expected in list(check_rows(samples, samples.valid_tokens, manifest, []))
