"""Names of the objects of a stream (the public layout)."""

import re

DRAIN = "progress/drain.json"
"""Asks endless jobs to end with all that they were supplied committed; replaced."""
POLLED = "progress/polled.json"
"""That the source of an endless job was called not long ago; differs each time."""
MANIFEST = "stream.json"
QUARANTINE_FOLDER = "quarantine/"
_NUMBERED = re.compile(r"(\d+)\.[a-z]+")


def lane_folder(kind: str, lane: int) -> str:
    """Return e.g. `shards/lane-00007/`, ended by a slash as prefixes are."""
    return f"{kind}/lane-{lane:05d}/"


def shard_name(lane: int, shard: int) -> str:
    """Name of shard number `shard` of a lane; its existence is the commit."""
    return f"{lane_folder('shards', lane)}{shard:09d}.arrow"


def state_name(lane: int, shard: int) -> str:
    """Name of the lane state right after shard number `shard`."""
    return f"{lane_folder('state', lane)}{shard:09d}.avro"


def end_name(lane: int) -> str:
    """Name of the object that says how many samples a finished lane has."""
    return f"end/lane-{lane:05d}.json"


def origin_name(lane: int) -> str:
    """Name of the state that a lane of a fork begins with."""
    return f"origin/lane-{lane:05d}.avro"


def plan_name(advance: int) -> str:
    """Name of the plan of an advance."""
    return f"advances/{advance:06d}.json"


def recompute_name(number: int) -> str:
    """Name of a plan that makes lost shards again."""
    return f"recompute/{number:06d}.json"


def carry_name(lane: int, advance: int) -> str:
    """Name of a lane's carry after an advance."""
    return f"{lane_folder('carry', lane)}{advance:06d}.avro"


def progress_name(lane: int) -> str:
    """Name of the advice on how far a lane is; replaced, and never relied on."""
    return f"progress/lane-{lane:05d}.json"


def catalog_name(dataset: str) -> str:
    """Name of the catalog of a data set."""
    return f"catalog/{dataset}.arrow"


def consumer_name(consumer: str) -> str:
    """Name of the object in which a training run says where it reads and what it still needs."""
    return f"consumers/{consumer}.json"


def base_name(number: int, digest: str) -> str:
    """Name of an object that says which shards lanes begin with after others were deleted."""
    return f"base/{number:012d}-{digest}.json"


def quarantine_name(dataset: str, pass_: int, chunk: int, part: int, stage: str) -> str:
    """Name of what was set aside of one part of a chunk in one pass by one stage of the work."""
    return f"{QUARANTINE_FOLDER}{dataset}/{pass_:06d}-{chunk:09d}-{part:06d}.{stage}.jsonl"


def decode_quarantine_name(lane: int, shard: int) -> str:
    """Name of what could not be decoded of one shard."""
    return f"{QUARANTINE_FOLDER}decode/{lane:05d}-{shard:09d}.jsonl"


def number_of(name: str) -> int:
    """Return the number in the last part of a numbered object's name.

    Raises:
        ValueError: the last part is not a number with an ending.
    """
    match = _NUMBERED.fullmatch(name.rsplit("/", 1)[-1])
    if match is None:
        raise ValueError(f"name must end in a number and a suffix, got {name!r}")
    return int(match.group(1))
