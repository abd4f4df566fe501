"""Tokenizer backends on real text: megabytes and tokens per CPU-second, as ratios to `hf`.

    python tests/benchmarks/bench_tokenizers.py [--tokenizer FILE] [--megabytes 4]

The text is the demo's corpus, Python modules and their docstrings, a quarter of a megabyte at a
time. In each round every backend encodes another part of it, so that none meets words or documents
that it has cached as a whole, and the ratio is that of one round; a backend that gives other ids
than `hf` ends the run. The cost of the gate is printed besides.
tiktoken gets the same vocabulary as ranks, if the merges follow the ids and the pattern is that of
GPT-2, as in the demo's tokenizer, which is used without `--tokenizer`.
"""

import argparse
import base64
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.demo_corpus import TOKENIZER_FILE, write_demo_corpus
from pipelines.train_demo_tokenizer import corpus_texts
from transforms.tokenizers.byte_level import byte_of_character
from transforms.tokenizers.fast_tokens import FastTokenizer
from transforms.tokenizers.gate import compare
from transforms.tokenizers.hugging_face import HuggingFaceTokenizer
from transforms.tokenizers.tiktoken_ranks import TiktokenTokenizer
from zephon_beam.tokenizer import Tokenizer

ROUNDS = 3
BATCH_CHARS = 256 * 1024
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def read_batches(megabytes: int) -> list[list[str]]:
    """Return the first documents of the demo's corpus in batches."""
    with tempfile.TemporaryDirectory(prefix="zephon-beam-bench-") as folder:
        write_demo_corpus(Path(folder))
        batches: list[list[str]] = [[]]
        size = 0
        for text in corpus_texts(Path(folder)):
            batches[-1].append(text)
            size += len(text)
            if size >= BATCH_CHARS:
                if len(batches) * BATCH_CHARS >= megabytes * 1_000_000:
                    return batches
                batches.append([])
                size = 0
    return batches


def make_rank_file(content: bytes) -> tuple[bytes, dict[str, int]]:
    """Turn a byte-level tokenizer whose merges follow its ids into ranks and special tokens."""
    description = json.loads(content)
    special = {token["content"]: token["id"] for token in description["added_tokens"]}
    alphabet = byte_of_character()
    lines = [
        base64.b64encode(bytes(alphabet[character] for character in token)) + f" {rank}".encode()
        for token, rank in description["model"]["vocab"].items()
        if token not in special
    ]
    return b"\n".join(lines), special


def run(tokenizer: Tokenizer, batches: list[list[str]]) -> tuple[float, list[np.ndarray]]:
    """Return the CPU-seconds of encoding everything, and the ids."""
    started = time.process_time()
    ids = [tokenizer.encode(batch)[0] for batch in batches]
    return time.process_time() - started, ids


def main() -> int:
    """Print a row for each backend."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER_FILE)
    parser.add_argument("--megabytes", type=int, default=4)
    args = parser.parse_args()
    content = args.tokenizer.read_bytes()
    options: dict[str, Any] = {"allow_special": False, "name": "bench"}
    started = time.process_time()
    reason = compare(content, name="bench")
    print(f"gate: {time.process_time() - started:.2f} CPU s, {reason or 'admitted'}")
    backends: dict[str, Tokenizer] = {"hf": HuggingFaceTokenizer(content, **options)}
    if reason is None:
        backends["fastokens"] = FastTokenizer(content, **options)
    if json.loads(content)["pre_tokenizer"].get("use_regex"):
        ranks, special = make_rank_file(content)
        backends["tiktoken"] = TiktokenTokenizer(
            ranks, pattern=GPT2_PATTERN, special=special, **options
        )
    batches = read_batches(args.megabytes)
    seconds: dict[str, list[float]] = {name: [] for name in backends}
    tokens = 0
    for number in range(ROUNDS):
        share = batches[number::ROUNDS]
        found = {}
        # Another order each round, so that nobody always has the warm caches.
        shift = number % len(backends)
        for name in [*list(backends)[shift:], *list(backends)[:shift]]:
            used, found[name] = run(backends[name], share)
            seconds[name].append(used)
        for name, ids in found.items():
            if not all(map(np.array_equal, ids, found["hf"])):
                print(f"{name} gives other ids than hf")
                return 1
        tokens += sum(map(len, found["hf"]))
    megabytes = sum(len(text.encode()) for batch in batches for text in batch) / 1e6
    print(f"{megabytes:.1f} MB, {tokens:,} tokens")
    print("backend     MB/CPU s  tokens/CPU s  times hf, median of")
    for name, used in seconds.items():
        ratios = [one / other for one, other in zip(seconds["hf"], used, strict=True)]
        print(
            f"{name:10} {megabytes / sum(used):9.1f} {tokens / sum(used):13,.0f}  "
            f"{sorted(ratios)[len(ratios) // 2]:6.1f}   "
            + " ".join(f"{ratio:.1f}" for ratio in ratios)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
