"""A script for thread-workers whose training can be read: each round counts the ids of its samples.

The model is two numbers and a list. What must hold at the end, whatever was killed: every worker that came to the end
holds the same list, with every id of every epoch exactly once and in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.communication.protocols import Communicator
from paceline.data.shares import assign
from paceline.strategies.protocols import Ballot
from paceline.testing.fakes import ThreadWorker
from paceline.training.recovery import State
from paceline.training.round import run
from paceline.types import Group
from paceline.wire.frames import checksum

NUM_IDS = 7  # of each round; more than the members, and no multiple of their number


@dataclass
class Model:
    """What training changes. `first` is what it was initialised with, as weights are by a random number."""

    first: int = 0
    total: np.ndarray = field(default_factory=lambda: np.zeros(2, np.int64))
    seen: list[int] = field(default_factory=list)

    def export_state(self) -> State:
        return State([self.first, self.seen], (self.total,))

    def adopt_state(self, state: State) -> None:
        self.first, self.seen = state.values
        self.total = np.array(state.arrays[0])


@dataclass
class Progress:
    """Where a call stands: rounds that it has committed."""

    step: int = 0

    def export_state(self) -> State:
        return State(self.step)

    def adopt_state(self, state: State) -> None:
        self.step = state.values


class CountRound:
    """One step: the members share the ids of the round, sum their squares, and all note the ids."""

    name = "count"
    samples = NUM_IDS

    def __init__(self, model: Model, step: int, *, halt: bool = False) -> None:
        self.step = step
        self._model = model
        self._ids = range(step * NUM_IDS, (step + 1) * NUM_IDS)
        self._halt = halt

    def work(self, group: Group, rank: int, communicator: Communicator) -> list[int]:
        return [self._ids[index] for index in assign(len(self._ids), group.size)[rank]]

    def talk(self, work: list[int], communicator: Communicator) -> tuple[np.ndarray, list[int]]:
        own = np.array([sum(work), sum(sample * sample for sample in work)], np.int64)
        total = np.empty_like(own)
        communicator.all_reduce(own, total)
        parts = communicator.all_gather_bytes(np.array(work, np.int64).tobytes())
        return total, np.frombuffer(b"".join(parts), np.int64).tolist()

    def ballot(self, work: list[int], proposal: tuple[np.ndarray, list[int]]) -> Ballot:
        total, ids = proposal
        return Ballot(checksum(total.tobytes() + bytes(repr(ids), "ascii")), self.step, self._halt)

    def change(self, proposal: tuple[np.ndarray, list[int]]) -> None:
        total, ids = proposal
        self._model.total = self._model.total + total
        self._model.seen += ids


def count(worker: ThreadWorker, model: Model, *, rounds: int, first: int = 0, halt_at: int | None = None) -> Any:
    """A call of `rounds` rounds; ended before round `halt_at` by whoever gets there with that wish."""
    progress = Progress()
    with worker.calls.call("count", {"rounds": str(rounds)}, progress=progress) as opened:
        if opened.replayed:
            return opened.result
        while progress.step < rounds:
            halt = halt_at is not None and progress.step >= halt_at
            if not run(worker.session, CountRound(model, first + progress.step, halt=halt)):
                break
            progress.step += 1
        opened.result = [progress.step, model.total]
    return opened.result


def assert_counted(model: Model, rounds: int) -> None:
    """Every id exactly once, in order, and so in the sums."""
    ids = list(range(rounds * NUM_IDS))
    assert model.seen == ids
    assert model.total.tolist() == [sum(ids), sum(sample * sample for sample in ids)]
