"""A reader of a bucket whose shards lie in the local cache, against one of a folder, in one run.

    python tests/benchmarks/bench_cache.py [--rows 131072] [--lanes 8] [--seq_len 2048]

The same samples are in a folder, uncompressed, and in a bucket of a server of its own
(fake-gcs-server), compressed: as a run stores them there. A first pass fills the cache; then passes
over both alternate, each by a new reader, which finds its shards as any reader does. Ratios are of
CPU-seconds of this process; tokens follow a Zipf law, which compresses like text.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = str(Path(__file__).resolve().parents[2])
if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)

import numpy as np  # noqa: E402

from tests.benchmarks.bench_reader import PACKED_FIELDS, fill, open_reader, say  # noqa: E402
from tests.object_stores import gcs_server, make_gcs_bucket  # noqa: E402
from tests.streams import make_manifest  # noqa: E402
from zephon_beam.layout import MANIFEST, end_name, shard_name  # noqa: E402
from zephon_beam.manifest import encode_manifest  # noqa: E402
from zephon_beam.reader.batches import DEFAULT_FIELDS  # noqa: E402
from zephon_beam.shard import encode_shard  # noqa: E402
from zephon_beam.store.base import open_store  # noqa: E402
from zephon_beam.store.cache import CACHE_FOLDER  # noqa: E402

SHARD_ROWS = 256
PAIRS = 5
CASES = {
    "tokens": ("tokens",),
    "input_ids, labels": ("input_ids", "labels"),
    "packed rows": PACKED_FIELDS,
    "default fields": DEFAULT_FIELDS,
}


def write_streams(places: dict[str, str], args: argparse.Namespace) -> int:
    """Write the stream at each place with its codec; return its number of rows."""
    manifest = make_manifest(
        lanes=args.lanes, seq_len=args.seq_len, samples_per_shard=SHARD_ROWS, token_dtype="uint16"
    )
    stores = {place: open_store(place) for place in places}
    shards = max(1, args.rows // (SHARD_ROWS * args.lanes))
    rng = np.random.default_rng(0)
    samples = fill(rng, SHARD_ROWS, args)
    samples.tokens[...] = rng.zipf(1.1, samples.tokens.shape) % 50_000
    for shard in range(shards):
        for lane in range(args.lanes):
            header: dict[str, Any] = {"fingerprint": manifest.fingerprint, "lane": lane}
            header["first_sample"] = shard * SHARD_ROWS * args.lanes + lane
            for place, codec in places.items():
                data = encode_shard(samples, **header, compression=codec)
                stores[place].put_if_absent(shard_name(lane, shard), data)
    end = json.dumps({"samples": shards * SHARD_ROWS}).encode()
    for store in stores.values():
        for lane in range(args.lanes):
            store.put_if_absent(end_name(lane), end)
        store.put_if_absent(MANIFEST, encode_manifest(manifest))
    return shards * SHARD_ROWS * args.lanes


def read(place: str, fields: tuple[str, ...]) -> float:
    """Return the CPU time of a whole pass."""
    began = time.process_time()
    for _ in open_reader(place, fields):
        pass
    return time.process_time() - began


def main() -> None:
    """Print the ratio of each case."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=131_072, help="samples of the stream")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--seq_len", type=int, default=2048)
    args = parser.parse_args()
    args.dtype, args.masked = "uint16", False
    with tempfile.TemporaryDirectory() as name, gcs_server() as address:
        os.environ["STORAGE_EMULATOR_HOST"] = address
        os.environ[CACHE_FOLDER] = f"{name}/cache"
        folder, bucket = f"{name}/folder", f"gs://{make_gcs_bucket(address)}"
        rows = write_streams({folder: "none", bucket: "zstd"}, args)
        say(f"{rows} rows of {args.seq_len} tokens, {args.lanes} lanes; warm cache / folder:")
        began = time.process_time()
        read(bucket, ("tokens",))
        shards = rows // SHARD_ROWS
        say(f"filling the cache: {(time.process_time() - began) / shards * 1e3:.2f} CPU-ms a shard")
        for label, fields in CASES.items():
            pairs = [(read(folder, fields), read(bucket, fields)) for _ in range(PAIRS)]
            ratios = sorted(local / remote for local, remote in pairs)
            tokens = rows * args.seq_len / statistics.median(pair[1] for pair in pairs)
            say(
                f"{label:18} {statistics.median(ratios):6.2f} median, {ratios[0]:.2f} "
                f"to {ratios[-1]:.2f}; {tokens / 1e6:5.0f} M tokens a CPU-second"
            )


if __name__ == "__main__":
    main()
