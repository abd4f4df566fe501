"""`zephon-beam inspect STREAM`."""

import argparse
from typing import Any

from pipelines.commands.texts import (
    count,
    percent,
    size,
    write_facts,
    write_json,
    write_line,
    write_table,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("stream", metavar="STREAM", help="path or URI of the stream")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Print what the stream holds."""
    from zephon_beam.inspection import inspect_stream

    found = inspect_stream(args.stream)
    if args.json:
        write_json(found)
    else:
        _write_text(found)
    return 0


def _write_text(found: dict[str, Any]) -> None:
    lanes = found["lane_samples"]
    shortest, longest = count(min(lanes)), count(max(lanes))
    write_facts(
        {
            "name": found["name"],
            "fingerprint": found["fingerprint"],
            **_fork_of(found["origin"]),
            "lanes": f"{count(found['lanes'])}, of {shortest} to {longest} samples",
            "seq_len": f"{count(found['seq_len'])} tokens a sample",
            "samples": f"{count(found['samples'])}, complete: {count(found['complete_samples'])}"
            + (f", kept from {count(found['first_sample'])}" if found["first_sample"] else ""),
            "tokens": f"{count(found['tokens'])}, padding: {percent(found['padding_fraction'])}",
            "shards": f"{count(found['shards'])}, {size(found['bytes'])}",
            "finished": "yes" if found["finished"] else "no",
            **({"quarantine": found["quarantine"]} if found["quarantine"] else {}),
        }
    )
    write_line()
    header = ("data set", "weight", "share", "tokens", "documents", "truncated", "dropped")
    write_table(
        (*header, "quarantined"),
        [
            (
                name,
                str(entry["weight"]),
                percent(entry["share"]),
                count(entry["tokens"]),
                count(entry["documents"]),
                count(entry["truncated_tokens"]),
                count(entry["dropped_tokens"]),
                count(entry["quarantined"]),
            )
            for name, entry in found["datasets"].items()
        ],
    )


def _fork_of(origin: dict[str, Any] | None) -> dict[str, str]:
    if origin is None:
        return {}
    return {"fork of": f"{origin['stream']} at sample {count(origin['at_sample'])}"}
