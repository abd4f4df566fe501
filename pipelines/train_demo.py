"""`python -m pipelines.train_demo`: a tiny GPT trained on the demo stream, on any number of ranks.

It trains with 1, 2 and 4 ranks, which are processes that talk over gloo, then kills a run of 2
ranks with SIGKILL and goes on with 3. Every run prints, for each step, a digest of the samples that
all its ranks together were given, and the loss: digests are equal, losses differ by rounding. It
needs torch, and Apache Beam to make the stream unless one is given.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from multiprocessing import connection
from pathlib import Path
from typing import Any

from zephon_beam.errors import DeterminismError, RecipeError
from zephon_beam.manifest import read_manifest
from zephon_beam.store.base import open_store

MICRO_BATCH = 2
WIDTH, HEADS, LAYERS = 64, 4, 2
LEARNING_RATE = 3e-3
DEMO_SAMPLES = 512
_LOOK_SECS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What all ranks of one run share."""

    stream: str
    folder: str
    """Where this run keeps its checkpoint and what it has logged."""
    world: int
    steps: int
    batch: int
    vocab_size: int
    seq_len: int

    @property
    def checkpoint(self) -> Path:
        """Model, optimizer and the reader's state after the last step."""
        return Path(self.folder, "checkpoint.pt")

    @property
    def log(self) -> Path:
        """A line of JSON a step: {step, digest, loss}."""
        return Path(self.folder, "log.jsonl")


def run_train_demo(
    stream: str | None,
    *,
    worlds: Sequence[int] = (1, 2, 4),
    steps: int = 10,
    batch: int = 8,
    plot: str | None = None,
    say: Any = None,
) -> dict[str, Any]:
    """Train with each number of ranks, then once more with a kill and another number of ranks.

    Args:
        stream: path or URI of a stream; None: make that of the demo in a temporary folder.
        worlds: numbers of ranks.
        steps: steps of each run.
        batch: samples of a step.
        plot: file to draw the losses into, a PNG; None draws none.
        say: takes the lines of the story.

    Returns:
        {"digests": one a step, "losses": {run: one a step}}.

    Raises:
        RecipeError: torch is not installed.
        DeterminismError: two runs were given other samples in the same step.
    """
    _require_torch()
    say = say or _be_silent
    with tempfile.TemporaryDirectory(prefix="zephon-beam-train-") as folder:
        uri = stream if stream is not None else _make_stream(Path(folder), say)
        manifest = read_manifest(open_store(uri))
        logs: dict[str, list[dict[str, Any]]] = {}

        def training(name: str, world: int) -> Training:
            home = Path(folder, name)
            home.mkdir(exist_ok=True)
            return Training(
                stream=uri,
                folder=str(home),
                world=world,
                steps=steps,
                batch=batch,
                vocab_size=manifest.vocab_size,
                seq_len=manifest.seq_len,
            )

        for world in worlds:
            name = f"{world} ranks"
            say(f"train: {steps} steps of {batch} samples as {name}")
            logs[name] = _train(training(f"world-{world}", world))
        half = steps // 2
        say(f"train: 2 ranks, killed with SIGKILL after step {half - 1}, then 3 ranks")
        killed = training("killed", 2)
        _train(killed, kill_after=half)
        logs["2 ranks, killed, 3 ranks"] = _train(training("killed", 3))
        _compare(logs, say)
        if plot is not None:
            _draw(logs, plot, say)
    digests = [entry["digest"] for entry in next(iter(logs.values()))]
    losses = {name: [entry["loss"] for entry in log] for name, log in logs.items()}
    return {"digests": digests, "losses": losses}


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise RecipeError(
            "torch must be installed to train, found none; "
            "install it with pip install 'zephon-beam[train]'"
        ) from error


def _make_stream(folder: Path, say: Any) -> str:
    """Make the start of the demo's stream."""
    from pipelines.demo import RECIPE
    from pipelines.demo_corpus import TOKENIZER_FILE, write_demo_corpus
    from pipelines.run import run_stream

    write_demo_corpus(folder)
    recipe = folder / "demo.yaml"
    recipe.write_text(RECIPE.format(tokenizer=TOKENIZER_FILE))
    say(f"run: the first {DEMO_SAMPLES} samples of the demo's stream")
    run_stream(str(recipe), folder / "stream", until_samples=DEMO_SAMPLES)
    return str(folder / "stream")


# ------------------------------------------------------------------------------------------ a run


def _train(run: Training, kill_after: int | None = None) -> list[dict[str, Any]]:
    """Train with one process a rank; with `kill_after`, kill them once so many steps are saved."""
    # Ranks are forked by a process that has imported torch and done nothing with it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zephon_beam.torch", "pipelines.tiny_gpt"])
    meeting = Path(run.folder, "meeting")
    meeting.unlink(missing_ok=True)
    ranks = [
        context.Process(target=_train_rank, args=(run, rank, str(meeting)), daemon=True)
        for rank in range(run.world)
    ]
    for process in ranks:
        process.start()
    try:
        while any(process.is_alive() for process in ranks):
            if any(process.exitcode not in (None, 0) for process in ranks):
                raise RuntimeError(f"a rank of {run.world} must end without an error; see above")
            if kill_after is not None and len(_read_log(run)) >= kill_after:
                break
            time.sleep(_LOOK_SECS)
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
            process.join()
    return _read_log(run)


def _read_log(run: Training) -> list[dict[str, Any]]:
    """Return what was logged of each step; a step that was done twice counts as done last."""
    if not run.log.exists():
        return []
    lines = [line for line in run.log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    entries = {entry["step"]: entry for entry in map(json.loads, lines)}
    return [entries[step] for step in sorted(entries)]


def _train_rank(run: Training, rank: int, meeting: str) -> None:
    """Train as one rank, from the checkpoint on if there is one."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch
    import torch.distributed as dist

    from zephon_beam.torch import StreamDataset, StreamLoader

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=run.world
    )
    model = _make_model(run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    dataset = StreamDataset(
        run.stream,
        global_batch_size=run.batch,
        micro_batch_size=MICRO_BATCH,
        dp_rank=rank,
        dp_world_size=run.world,
        fields=(
            "input_ids",
            "labels",
            "position_ids",
            "segment_ids",
            "sample_ids",
            "global_num_valid_tokens",
        ),
        timeout=60,
    )
    with StreamLoader(dataset) as loader:
        if run.checkpoint.exists():
            saved = torch.load(run.checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["data"])
        while loader.reader.step < run.steps:
            step = loader.reader.step
            loss, digests = _take_step(model, optimizer, loader)
            everyone: list[Any] = [None] * run.world
            dist.all_gather_object(everyone, digests)
            if rank == 0:
                digest = _digest_of({k: v for part in everyone for k, v in part.items()})
                _save(run, model, optimizer, loader)
                with run.log.open("a") as log:
                    entry = {"step": step, "digest": digest, "loss": loss}
                    log.write(json.dumps(entry) + "\n")
    dist.destroy_process_group()


def _end_with_parent() -> None:
    """End this process when the one that trains has ended, which did not fork it itself."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _take_step(model: Any, optimizer: Any, loader: Any) -> tuple[float, dict[int, str]]:
    """Do one step of accumulated gradients; return its loss and the digest of each sample."""
    import torch
    import torch.distributed as dist

    optimizer.zero_grad()
    total = torch.zeros(())
    digests: dict[int, str] = {}
    for _ in range(loader.reader.microbatches_per_step):
        batch = next(loader)
        logits = model(batch["input_ids"], batch["position_ids"], batch["segment_ids"])
        # The sum over this rank's labels by the number of all ranks' labels: gradients are summed.
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100, reduction="sum"
        )
        loss = loss / batch["global_num_valid_tokens"]
        loss.backward()
        total += loss.detach()
        digests.update(_digests(batch))
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    dist.all_reduce(total)
    optimizer.step()
    return float(total), digests


def _digests(batch: Any) -> dict[int, str]:
    """Digest what was trained on, by sample; filler is nobody's."""
    arrays = [batch[key].numpy() for key in ("input_ids", "labels", "position_ids")]
    return {
        sample: blake2b(b"".join(array[row].tobytes() for array in arrays)).hexdigest()
        for row, sample in enumerate(batch["sample_ids"].tolist())
        if sample >= 0
    }


def _digest_of(digests: dict[int, str]) -> str:
    text = "".join(f"{sample} {digests[sample]}\n" for sample in sorted(digests))
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _save(run: Training, model: Any, optimizer: Any, loader: Any) -> None:
    """Replace the checkpoint, so that a kill leaves the old one or the new one."""
    import torch

    saved = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "data": loader.state_dict(),
    }
    partial = run.checkpoint.with_suffix(".partial")
    torch.save(saved, partial)
    os.replace(partial, run.checkpoint)


def _make_model(run: Training) -> Any:
    from pipelines.tiny_gpt import TinyGPT

    return TinyGPT(run.vocab_size, run.seq_len, width=WIDTH, heads=HEADS, layers=LAYERS)


# --------------------------------------------------------------------------------- what came out


def _compare(logs: dict[str, list[dict[str, Any]]], say: Any) -> None:
    """Print a line a step, and make sure that all runs were given the same samples."""
    say("step  samples           loss as " + "  ".join(logs))
    for entries in zip(*logs.values(), strict=True):
        digests = {entry["digest"] for entry in entries}
        if len(digests) != 1:
            raise DeterminismError(
                f"step {entries[0]['step']} must have the same samples on any number of ranks, got "
                f"{sorted(digests)}; please report this"
            )
        losses = "  ".join(f"{entry['loss']:.5f}" for entry in entries)
        say(f"{entries[0]['step']:4}  {entries[0]['digest']}  {losses}")
    say("every step had the same samples, whatever the number of ranks and the kill")


def _draw(logs: dict[str, list[dict[str, Any]]], plot: str, say: Any) -> None:
    try:
        import matplotlib as mpl
    except ImportError:
        say("losses are not drawn: matplotlib is missing; pip install 'zephon-beam[train]'")
        return
    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, log in logs.items():
        axes.plot([e["step"] for e in log], [e["loss"] for e in log], label=name, alpha=0.7)
    axes.set_xlabel("step")
    axes.set_ylabel("loss per label")
    axes.legend()
    figure.tight_layout()
    figure.savefig(plot, dpi=120)
    pyplot.close(figure)
    say(f"losses: {plot}")


def _be_silent(_line: str) -> None:
    """Say nothing."""


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="train_demo", description=__doc__, allow_abbrev=False)
    parser.add_argument("--stream", metavar="URI", help="a stream that exists; default: the demo's")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="samples of a step")
    parser.add_argument("--plot", metavar="FILE", help="draw the losses into this PNG")
    args = parser.parse_args(argv)
    try:
        run_train_demo(args.stream, steps=args.steps, batch=args.batch, plot=args.plot, say=_tell)
    except RecipeError as error:
        sys.stderr.write(f"train_demo: error: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
