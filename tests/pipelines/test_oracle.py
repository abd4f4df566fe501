"""Every token of a stream, followed back to its source by an oracle that shares no code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracle import Account, Oracle
from tests.pipelines.small_streams import ROOT, environment, run, write_recipe
from zephon_beam.inspection import inspect_stream

PASSES = 2
GOLDEN = Path(__file__).parents[1] / "golden" / "recipe.yaml"
TWO_PASSES = [("passes: 1", f"passes: {PASSES}"), ("tokenizer.json}", "tokenizer.json, pad: 1}")]
BINS = "open_bins: 8"
OFTEN_SAVED = {"advance_bytes": 256 * 1024, "drain_bytes": 64 * 1024}
"""Several advances and drains: each saves a lane, its open bins too, and restores it."""


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([], id="best_fit, split"),
        pytest.param([(BINS, "method: concat, within: dataset")], id="concat, data sets apart"),
        pytest.param(
            [(BINS, "method: best_fit_split, open_bins: 4, max_segments: 3")],
            id="best_fit_split, at most 3 segments",
        ),
        pytest.param([(BINS, "method: first_fit, overlong: truncate")], id="first_fit, truncate"),
        pytest.param([(BINS, "overlong: drop")], id="best_fit, drop"),
        pytest.param([(BINS, "method: concat, segment_multiple: 16")], id="concat, segments apart"),
    ],
)
def test_each_pass_delivers_every_document_once(
    corpus: Path, tmp_path: Path, changes: list[tuple[str, str]]
) -> None:
    """Over all lanes: tokens and labels in place, nothing twice, nothing lost but by policy."""
    recipe = write_recipe(
        corpus / f"{tmp_path.name}.yaml", finite=True, changes=[*TWO_PASSES, *changes]
    )
    facts = run(recipe, tmp_path / "s", **OFTEN_SAVED)
    assert facts["finished"]
    oracle = Oracle(recipe)
    account = oracle.account(tmp_path / "s")
    oracle.check_whole(account, PASSES)
    check_counters(oracle, account, tmp_path / "s")
    check_policies(oracle, account)
    # The corpus must be able to show what the policies do.
    assert any(len(tokens) > oracle.seq_len for tokens in oracle.tokens.values())


def check_counters(oracle: Oracle, account: Account, stream: Path) -> None:
    """Compare the stream's own counters: read = packed + truncated + dropped, per data set."""
    found = inspect_stream(str(stream))
    overlong = oracle.recipe["packing"].get("overlong", "split")
    for dataset, name in enumerate(oracle.names):
        lost = PASSES * oracle.lost_tokens(dataset)
        packed = account.packed_tokens(dataset)
        assert PASSES * oracle.read_tokens(dataset) == packed + lost
        counted = found["datasets"][name]
        assert counted["tokens"] == packed
        assert counted["documents"] == PASSES * oracle.document_count(dataset)
        assert counted["truncated_tokens"] == (lost if overlong == "truncate" else 0)
        assert counted["dropped_tokens"] == (lost if overlong == "drop" else 0)
        if overlong != "split":
            assert lost > 0
    rows = sum(account.rows.values())
    assert found["samples"] == rows
    assert found["padding_fraction"] == account.padding / (rows * oracle.seq_len)
    ends = [json.loads(path.read_text()) for path in sorted((stream / "end").iterdir())]
    assert ends == [{"samples": account.rows[lane]} for lane in range(oracle.lanes)]


def check_policies(oracle: Oracle, account: Account) -> None:
    """Check what the packing promises of single rows."""
    packing = oracle.recipe["packing"]
    for row in account.segments_of_rows:
        assert len(row) <= packing.get("max_segments", len(row))
        if packing.get("within") == "dataset":
            assert len({segment.document[0] for segment in row}) == 1
    if packing.get("method") == "concat":
        # Only the last row of each data set of each lane may have a rest, and of segments that
        # are padded apart only the last one of a document.
        ends = (oracle.multiple - 1) * PASSES * len(oracle.tokens)
        assert account.padding <= oracle.lanes * len(oracle.names) * oracle.seq_len + ends


def test_awkward_documents_are_followed_too(tmp_path: Path) -> None:
    """Empty ones, blank lines, a byte order mark, foreign line ends, text like special tokens."""
    run(GOLDEN, tmp_path / "s")
    oracle = Oracle(GOLDEN)
    oracle.check_whole(oracle.account(tmp_path / "s"), PASSES)
    assert [0] in oracle.tokens.values()


def test_shares_follow_the_weights_at_every_row_of_an_endless_stream(
    corpus: Path, tmp_path: Path
) -> None:
    """Within a few rows' tokens, plus those of open bins, in each lane; passes never overlap."""
    recipe = write_recipe(corpus / "shares.yaml")
    run(recipe, tmp_path / "s", until_samples=1500, **OFTEN_SAVED)
    oracle = Oracle(recipe)
    account = oracle.account(tmp_path / "s")
    weights = [0.5, 0.3, 0.2]
    bound = (len(weights) + 1 + 8) * oracle.seq_len
    for lane in range(oracle.lanes):
        sums = [0] * len(weights)
        for row in account.taken[lane]:
            sums = [total + new for total, new in zip(sums, row, strict=True)]
            for weight, total in zip(weights, sums, strict=True):
                assert abs(total - weight * sum(sums)) <= bound
    passes = {number for _, number in account.spans}
    assert len(passes) > 1


def test_the_oracle_shares_no_code_with_what_it_checks() -> None:
    """It imports nothing of ours."""
    code = (
        "import sys, tests.oracle\n"
        "print(*{name.split('.')[0] for name in sys.modules} "
        "& {'zephon_beam', 'transforms', 'pipelines', 'apache_beam'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
