"""Synchronous data parallelism: every microbatch contributes a vector, and the sum of all is the step.

A global batch is cut into microbatches that do not depend on who is there; each member takes a contiguous range of
them. A contribution is already weighted (its gradient is that of `share * loss`), so that nothing is left to divide
after the sum and partial or empty shares need no special case. `averaging.py` does the sums. The same activity serves
training (a contribution holds gradients, state changes and metric sums) and evaluation (metric sums alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.communication.protocols import Communicator
from paceline.data.shares import assign, cut
from paceline.strategies.averaging import Reduction, Sum, digest_of
from paceline.strategies.protocols import Ballot, Batches, Contribution, Microbatch, Program
from paceline.types import Group


@dataclass(frozen=True)
class Piece:
    """Rows start..stop of global batch number `batch`."""

    batch: int
    start: int
    stop: int


@dataclass(frozen=True)
class AllReduceWork:
    """A member's own sum, and the size of the group that it was made for."""

    total: Sum
    group_size: int


class AllReduceRound:
    """One round over one global batch (training) or several (evaluation).

    Args:
        program: the model's work.
        batches: the global batches, in order.
        name: of the call, for events.
        step: number of the optimizer's step, None for an evaluation.
        microbatch: samples of each unit of work.
        salt: names the round among all of the job, for random numbers.
        reduction: how contributions are summed.
        halt: this member wants the call to end before this round.
    """

    def __init__(
        self,
        program: Program,
        batches: Batches,
        *,
        name: str,
        step: int | None,
        microbatch: int,
        salt: Sequence[int],
        reduction: Reduction,
        halt: bool = False,
    ) -> None:
        self.name = name
        self.step = step
        self.samples = sum(batch.num_samples for batch in batches)
        self._program = program
        self._batches = batches
        self._salt = tuple(salt)
        self._reduction = reduction
        self._halt = halt
        self._pieces = [
            Piece(number, rows.start, rows.stop)
            for number, batch in enumerate(batches)
            for rows in cut(batch.num_samples, microbatch)
        ]

    def work(self, group: Group, rank: int, communicator: Communicator) -> AllReduceWork:
        pieces = self._pieces
        if self._program.synchronous:
            pieces = [self._joined(assign(len(pieces), group.size)[member]) for member in range(group.size)]
        mine = assign(len(pieces), group.size)[rank]
        factors = self._factors(pieces, mine, communicator) if self._program.needs_divisors else {}
        total = self._reduction.start(self._program.layout, len(pieces))
        for index in mine:
            microbatch = self._microbatch(pieces[index], index, factors.get(index))
            total.add(index, self._program.contribute(microbatch, communicator))
        return AllReduceWork(total, group.size)

    def talk(self, work: AllReduceWork, communicator: Communicator) -> Contribution:
        return work.total.reduce(communicator)

    def ballot(self, work: AllReduceWork, proposal: Contribution) -> Ballot:
        if work.group_size == 1:
            return Ballot(digest=0, halt=self._halt)  # nobody to compare with
        fingerprint = 0
        for batch in self._batches:
            fingerprint = (fingerprint * 31 + batch.fingerprint) % 2**64
        return Ballot(digest_of(proposal), fingerprint, self._halt)

    def change(self, proposal: Contribution) -> None:
        self._program.apply(proposal)

    def _joined(self, indices: Sequence[int]) -> Piece:
        """One piece of all of a member's pieces of the one batch; an empty one where it has none."""
        if not indices:
            return Piece(0, 0, 0)
        return Piece(0, self._pieces[indices[0]].start, self._pieces[indices[-1]].stop)

    def _microbatch(self, piece: Piece, index: int, factors: np.ndarray | None) -> Microbatch:
        batch = self._batches[piece.batch]
        count = piece.stop - piece.start
        return Microbatch(
            data=self._data(piece),
            num_samples=count,
            share=count / batch.num_samples,
            salt=salt_of(*self._salt, piece.batch, index),
            factors=np.empty(0, np.float64) if factors is None else factors,
            first=piece.start == 0 and count > 0,
            present=count > 0,
        )

    def _data(self, piece: Piece) -> Any:
        """The piece's rows; one row of somebody else's for a member that only keeps the others company."""
        return self._batches[piece.batch].take(piece.start, max(piece.stop, piece.start + 1))

    def _factors(
        self, pieces: Sequence[Piece], mine: Sequence[int], communicator: Communicator
    ) -> dict[int, np.ndarray]:
        """Corrections for losses that do not divide by the number of samples.

        With D_i what the loss divides by on microbatch i and D the sum over its global batch, the loss of the whole
        batch is sum(D_i / D * loss_i). Contributions are weighted by share_i, so what is left is D_i / (share_i D).
        Members exchange the few D_i they measured; all add them up in one order.
        """
        measured = {index: self._program.measure(self._data(pieces[index])) for index in mine}
        rows = [np.concatenate([[float(index)], values]) for index, values in measured.items()]
        payload = np.concatenate(rows).astype(np.float64).tobytes() if rows else b""
        width = 1 + self._program.measure_width
        everyone = np.frombuffer(b"".join(communicator.all_gather_bytes(payload)), np.float64).reshape(-1, width)
        totals = np.zeros((len(self._batches), width - 1))
        for row in everyone[np.argsort(everyone[:, 0], kind="stable")]:
            piece = pieces[int(row[0])]
            if piece.stop > piece.start:
                totals[piece.batch] += row[1:]
        factors = {}
        for index, divisors in measured.items():
            piece = pieces[index]
            share = (piece.stop - piece.start) / self._batches[piece.batch].num_samples
            total = share * totals[piece.batch]
            factors[index] = np.divide(divisors, total, out=np.zeros_like(total), where=total != 0)
        return factors


def salt_of(*numbers: int) -> tuple[int, int]:
    """Two uint32 that depend on all of `numbers`: splitmix64's mixing, folded over them."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return state & 0xFFFFFFFF, state >> 32
