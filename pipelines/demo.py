"""`demo`: the whole product on a corpus that every installation has, in under a minute.

Builds a small stream from the files of the installed apache-beam, trains nothing, but reads it as
a trainer would: a few steps as 2 ranks, a stop, and on with 3 ranks. The digest it prints is the
same on every machine, Python version and engine.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.demo_corpus import TOKENIZER_FILE, write_demo_corpus
from pipelines.recipe_file import load_recipe
from pipelines.run import run_stream
from zephon_beam.errors import DeterminismError
from zephon_beam.inspection import inspect_stream
from zephon_beam.reader import StreamReader
from zephon_beam.verification import verify_stream

SAMPLES = 3072
BATCH = 24
STEPS = 6
RECIPE = """\
name: demo
lanes: 4
seq_len: 1024
samples_per_shard: 128
tokenizer: {{path: {tokenizer}, pad: "<|pad|>"}}
datasets:
  code: {{files: code/**/*.py, format: text, weight: 0.7}}
  prose: {{files: prose/*.jsonl, weight: 0.3}}
shuffle: {{interleave: 4}}
packing: {{open_bins: 16}}
"""

Say = Callable[[str], None]


def run_demo(*, keep: str | None = None, say: Say | None = None) -> dict[str, Any]:
    """Build a stream, read it with two world sizes, and sum up.

    Args:
        keep: folder for corpus, recipe and stream; None: a temporary one that is deleted.
        say: takes the lines of the story; None: tells nothing.

    Returns:
        stream_digest, samples, tokens, tokens_per_second, padding_fraction, datasets
        {name: {tokens, share}}, steps_equal, seconds.

    Raises:
        DeterminismError: the ranks did not read what the stream says.
        ZephonBeamError: apache-beam is not the version that the demo is made for.

    Determinism: the digest depends on the release of apache-beam and the recipe alone.
    """
    say = say or _be_silent
    started = time.monotonic()
    with _folder(keep) as folder:
        say("corpus: the Python modules of apache-beam (code) and their docstrings (prose)")
        write_demo_corpus(folder)
        recipe = folder / "demo.yaml"
        recipe.write_text(RECIPE.format(tokenizer=TOKENIZER_FILE))
        stream = folder / "stream"
        say(f"run: {SAMPLES:,} samples of 1,024 tokens, mixed 70/30, packed by best_fit")
        built = run_stream(load_recipe(recipe), stream, until_samples=SAMPLES)
        say(f"  {built['samples']:,} samples, {built['tokens_per_second']:,.0f} tokens/s")
        found = inspect_stream(str(stream))
        for name, entry in found["datasets"].items():
            say(f"  {name}: {entry['share']:.1%} of the tokens, weight {entry['weight']}")
        say(f"  padding: {found['padding_fraction']:.2%}")
        _read_elastically(str(stream), say)
        report = verify_stream(str(stream), until_samples=SAMPLES)
        if not report.ok:
            raise DeterminismError(f"demo stream must verify, found {report.faults[0]}")
        say(f"stream digest: {report.stream_digest}")
    seconds = time.monotonic() - started
    say(f"done in {seconds:.1f} s")
    return {
        "stream_digest": report.stream_digest,
        "samples": found["samples"],
        "tokens": found["tokens"],
        "tokens_per_second": built["tokens_per_second"],
        "padding_fraction": found["padding_fraction"],
        "datasets": {
            name: {"tokens": entry["tokens"], "share": entry["share"]}
            for name, entry in found["datasets"].items()
        },
        "steps_equal": True,
        "seconds": round(seconds, 1),
    }


def _read_elastically(stream: str, say: Say) -> None:
    """Read steps as 2 ranks, save, go on as 3 ranks; compare with one reader of everything."""
    half = STEPS // 2
    before, state = _read_steps(stream, 2, half, {})
    say(f"read: {half} steps as 2 ranks, saved {state['next_sample']} as the next sample")
    after, _ = _read_steps(stream, 3, STEPS - half, state)
    say(f"read: {STEPS - half} steps as 3 ranks, from the same saved state")
    expected = [set(range(s * BATCH, (s + 1) * BATCH)) for s in range(STEPS)]
    if before + after != expected:
        raise DeterminismError(
            f"ranks must read samples {BATCH} a step in order, got {before + after!r}; a saved "
            "state would not mean the same on other topologies; please report this"
        )
    say("  every step had the same samples as on any other number of ranks")


def _read_steps(
    stream: str, world: int, steps: int, state: dict[str, Any]
) -> tuple[list[set[int]], dict[str, Any]]:
    """Read whole steps on every rank; return each step's samples and the state after them."""
    readers = [
        StreamReader(
            stream,
            global_batch_size=BATCH,
            micro_batch_size=4,
            dp_rank=rank,
            dp_world_size=world,
            timeout=30,
        )
        for rank in range(world)
    ]
    microbatches = -(-BATCH // world // 4)
    for reader in readers:
        reader.load_state_dict(state)
    seen: list[set[int]] = []
    for _ in range(steps):
        batches = [next(reader) for reader in readers for _ in range(microbatches)]
        ids = [sample for batch in batches for sample in batch["sample_ids"].tolist()]
        seen.append({sample for sample in ids if sample >= 0})
    after = readers[0].state_dict()
    for reader in readers:
        reader.close()
    return seen, after


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    if keep is not None:
        folder = Path(keep).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="zephon-beam-demo-") as temporary:
        yield Path(temporary)


def _be_silent(_line: str) -> None:
    """Say nothing."""
