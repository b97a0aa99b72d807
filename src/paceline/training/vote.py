"""The vote that ends a round: each member's record, and the one pure function by which all decide alike.

Members exchange records of a few dozen bytes (`Communicator.all_gather_bytes`) and feed the same list, in rank order,
to `decide`. Next file: `session.py`, which carries the records.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.errors import ProtocolError

_RECORD = struct.Struct("<QQQQQf??")


@dataclass(frozen=True)
class VoteRecord:
    """What one member says of the open round.

    Attributes:
        generation: of the group that votes.
        round: number of the open round.
        digest: of the proposal that the member holds; equal on all members, or the round is discarded.
        fingerprint: of the data that the round read; equal on all members, or the members read different data.
        newest_generation: the newest generation of which the member has heard.
        work_seconds: how long the member worked alone.
        stop: the member was asked to stop after this round.
        halt: the member wants the call to end before this round.
    """

    generation: int
    round: int
    digest: int
    fingerprint: int
    newest_generation: int
    work_seconds: float
    stop: bool
    halt: bool = False

    def encode(self) -> bytes:
        return _RECORD.pack(
            self.generation,
            self.round,
            self.digest,
            self.fingerprint,
            self.newest_generation,
            self.work_seconds,
            self.stop,
            self.halt,
        )

    @staticmethod
    def decode(payload: bytes) -> VoteRecord:
        if len(payload) != _RECORD.size:
            raise ProtocolError(f"a vote has {_RECORD.size} bytes, got {len(payload)}")
        return VoteRecord(*_RECORD.unpack(payload))


@dataclass(frozen=True)
class Verdict:
    """How the members' records end the round.

    Attributes:
        outcome: "commit"; "halt" when a member wants the call to end before this round, which is not committed; or what
            was found: "digests differ" or "data differ".
        suspects: ranks in the minority when something differs.
        meet: a member has heard of a newer generation: all meet the coordinator before the next round.
        stop: a member was asked to stop: all stop after this round.
        slowest: rank whose work took longest.
    """

    outcome: Literal["commit", "halt", "digests differ", "data differ"]
    suspects: tuple[int, ...] = ()
    meet: bool = False
    stop: bool = False
    slowest: int = 0


def decide(records: Sequence[VoteRecord]) -> Verdict:
    """Decide from all members' records, in rank order. Identical records give identical verdicts.

    Raises `ProtocolError` when the records are not of one generation and round: members of a group vote on the same
    round, or something is broken beyond what a retry mends.
    """
    if len({(record.generation, record.round) for record in records}) != 1:
        rounds = ", ".join(f"rank {rank}: generation {r.generation} round {r.round}" for rank, r in enumerate(records))
        raise ProtocolError(f"members vote on different rounds ({rounds})")
    meet = any(record.newest_generation > record.generation for record in records)
    stop = any(record.stop for record in records)
    slowest = max(range(len(records)), key=lambda rank: records[rank].work_seconds)
    if any(record.halt for record in records):
        return Verdict("halt", (), meet, stop, slowest)
    suspects = minority([record.fingerprint for record in records])
    if suspects:
        return Verdict("data differ", suspects, meet, stop, slowest)
    suspects = minority([record.digest for record in records])
    if suspects:
        return Verdict("digests differ", suspects, meet, stop, slowest)
    return Verdict("commit", (), meet, stop, slowest)


def minority(values: Sequence[int]) -> tuple[int, ...]:
    """Ranks whose value is not the most frequent one (the lowest rank's, when several are as frequent)."""
    if len(set(values)) <= 1:
        return ()
    counts: dict[int, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    favourite = max(counts, key=lambda value: (counts[value], -values.index(value)))
    return tuple(rank for rank, value in enumerate(values) if value != favourite)
