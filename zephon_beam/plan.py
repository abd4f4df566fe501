"""The plan of an advance: for each lane where it starts and what it is supplied with.

Written once, before the job, so that a job that is retried or run twice sees the same input. A
plan is complete when every lane in it has a carry of its number (or has ended) and every shard
that the carry counts exists.
"""

import json
from dataclasses import dataclass
from typing import Any

from zephon_beam.errors import CorruptObjectError
from zephon_beam.layout import (
    carry_name,
    origin_name,
    plan_name,
    recompute_name,
    state_name,
)
from zephon_beam.sealed import seal, unseal

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SupplyEntry:
    """Parts [first_part, first_part + part_count) of one chunk of a lane's channel.

    The entry is satisfied by those parts, or by those up to the one marked last.
    """

    dataset: int
    number: int
    first_part: int
    part_count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LanePlan:
    """One lane's share of an advance."""

    lane: int
    head_kind: str
    """`carry`, `state`, `origin` at a fork's beginning, or `none` for a lane without anything."""
    head_number: int
    """Advance of the carry or shard of the state; -1 for the others."""
    supply: tuple[SupplyEntry, ...]
    wanted_shards: tuple[int, int] | None = None
    """In a plan that recomputes: the first and the last shard that is wanted."""

    @property
    def head_name(self) -> str | None:
        """Name of the object that the lane starts from."""
        if self.head_kind == "none":
            return None
        if self.head_kind == "origin":
            return origin_name(self.lane)
        namer = carry_name if self.head_kind == "carry" else state_name
        return namer(self.lane, self.head_number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One advance. Lanes that are not listed keep their head.

    A plan that recomputes makes lost shards again, from older states. It moves no head: its job
    writes neither carries nor ends. That of an endless job says where its lanes start, and gives
    the job a number: lanes go on from the states that it leaves.
    """

    advance: int
    fingerprint: str
    lanes: tuple[LanePlan, ...]
    recompute: bool = False
    endless: bool = False
    """Whether it is of an endless job: it supplies nothing itself, and is complete if drained."""

    @property
    def name(self) -> str:
        """Name of the object that it is stored in."""
        return recompute_name(self.advance) if self.recompute else plan_name(self.advance)

    def lane(self, lane: int) -> LanePlan:
        """Return a lane's share."""
        return next(entry for entry in self.lanes if entry.lane == lane)


def encode_plan(plan: Plan) -> bytes:
    """Encode a plan as JSON, one line a lane."""
    head = {
        "format_version": FORMAT_VERSION,
        "advance": plan.advance,
        "fingerprint": plan.fingerprint,
        **({"recompute": True} if plan.recompute else {}),
        **({"endless": True} if plan.endless else {}),
    }
    lanes = [_lane_to_json(entry) for entry in plan.lanes]
    sealed = seal({**head, "lanes": lanes})
    del sealed["lanes"]
    body = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in lanes)
    return (json.dumps(sealed)[:-1] + ', "lanes": [\n' + body + "\n]}\n").encode()


def decode_plan(data: bytes, name: str) -> Plan:
    """Decode a plan.

    Raises:
        CorruptObjectError: damaged or of another format version.
    """
    try:
        raw = json.loads(data)
        if raw["format_version"] != FORMAT_VERSION:
            raise CorruptObjectError(
                f"{name}: format version must be {FORMAT_VERSION}, got {raw['format_version']!r}; "
                "use the version of zephon-beam that wrote it"
            )
        raw = unseal(raw)
        lanes = tuple(_lane_from_json(entry) for entry in raw["lanes"])
        return Plan(
            advance=raw["advance"],
            fingerprint=raw["fingerprint"],
            lanes=lanes,
            recompute=raw.get("recompute", False),
            endless=raw.get("endless", False),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObjectError(
            f"{name} is corrupt: {error}; the advance cannot be run again; delete it together with "
            "the carries of its number, and run the recipe again"
        ) from error


def _lane_to_json(entry: LanePlan) -> dict[str, Any]:
    supply = [[s.dataset, s.number, s.first_part, s.part_count] for s in entry.supply]
    wanted = {} if entry.wanted_shards is None else {"wanted_shards": list(entry.wanted_shards)}
    head = [entry.head_kind, entry.head_number]
    return {"lane": entry.lane, "head": head, **wanted, "supply": supply}


def _lane_from_json(entry: Any) -> LanePlan:
    kind, number = entry["head"]
    supply = tuple(
        SupplyEntry(dataset=d, number=n, first_part=first, part_count=count)
        for d, n, first, count in entry["supply"]
    )
    wanted = entry.get("wanted_shards")
    return LanePlan(
        lane=entry["lane"],
        head_kind=kind,
        head_number=number,
        supply=supply,
        wanted_shards=None if wanted is None else (wanted[0], wanted[1]),
    )
