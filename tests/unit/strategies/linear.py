"""A linear model in numpy as the strategies see one: gradients, metric sums, a table with sparse rows, weighted losses.

Everything is float32, so that the order of summation shows in the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.communication.buckets import plan_buckets
from paceline.communication.communicator import GroupCommunicator
from paceline.communication.protocols import Communicator
from paceline.strategies.all_reduce import AllReduceRound
from paceline.strategies.averaging import Reduction
from paceline.strategies.protocols import Contribution, Layout, Microbatch, SparseRows
from paceline.testing.cluster import run_group
from paceline.types import Group, Member, WorkerIdentity

WIDTH = 37
TABLE = (50, 3)  # rows, width


@dataclass(frozen=True)
class Rows:
    """One global batch: inputs, targets, sample weights, and one row number of the table for each sample."""

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    ids: np.ndarray
    fingerprint: int = 1

    @property
    def num_samples(self) -> int:
        return len(self.x)

    def take(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        return self.x[start:stop], self.y[start:stop], self.weights[start:stop], self.ids[start:stop]


def make_rows(num_samples: int, *, seed: int = 0, weighted: bool = False) -> Rows:
    source = np.random.default_rng(seed)
    weights = source.integers(0, 3, num_samples) if weighted else np.ones(num_samples)
    return Rows(
        source.normal(size=(num_samples, WIDTH)).astype(np.float32),
        source.normal(size=num_samples).astype(np.float32),
        weights.astype(np.float32),
        source.integers(0, TABLE[0], num_samples),
    )


@dataclass
class LinearProgram:
    """Implements `strategies.protocols.Program`. The loss is the mean of squares, or, `weighted`, the weighted sum of
    squares divided by the sum of the weights."""

    weighted: bool = False
    sparse: bool = False
    synchronous: bool = False
    w: np.ndarray = field(default_factory=lambda: np.linspace(-1, 1, WIDTH, dtype=np.float32))
    loss_sum: np.ndarray = field(default_factory=lambda: np.zeros(1, np.float32))
    table: np.ndarray = field(default_factory=lambda: np.zeros(TABLE, np.float32))
    units: list[Microbatch] = field(default_factory=list)
    measure_width: int = 1

    @property
    def layout(self) -> Layout:
        buckets = plan_buckets([("w", (WIDTH,), "float32"), ("loss", (1,), "float32")])
        return Layout(buckets, (TABLE,) if self.sparse else ())

    @property
    def needs_divisors(self) -> bool:
        return self.weighted

    def prepare(self, data: Any) -> None:
        """Nothing to build."""

    def measure(self, data: Any) -> np.ndarray:
        return np.array([data[2].sum()], np.float64)

    def contribute(self, microbatch: Microbatch, communicator: Communicator) -> Contribution:
        self.units.append(microbatch)
        x, y, weights, ids = microbatch.data
        errors = x @ self.w - y
        divisor = weights.sum() if self.weighted else np.float32(len(x))
        factor = microbatch.factors[0] if self.weighted else np.float32(1)
        scale = np.float32(microbatch.share) * factor / max(divisor, np.float32(1e-9)) * np.float32(microbatch.present)
        per_sample = weights * errors * scale
        flat = np.empty(WIDTH + 1, np.float32)
        flat[:WIDTH] = 2 * (x.T @ per_sample)
        flat[WIDTH] = (per_sample * errors).sum()
        rows: tuple[SparseRows, ...] = ()
        if self.sparse:
            unique, places = np.unique(ids, return_inverse=True)
            values = np.zeros((len(unique), TABLE[1]), np.float32)
            np.add.at(values, places, per_sample[:, None] * np.ones(TABLE[1], np.float32))
            rows = (SparseRows(unique.astype(np.int64), values),)
        return Contribution((flat,), rows)

    def apply(self, total: Contribution) -> None:
        (flat,) = total.buffers
        self.w = self.w - np.float32(0.01) * flat[:WIDTH]
        self.loss_sum = self.loss_sum + flat[WIDTH:]
        for entry in total.sparse:
            self.table[entry.ids] -= entry.rows


def group_for(size: int) -> Group:
    return Group(1, tuple(Member(WorkerIdentity(worker, 1), "here", "", 0) for worker in range(size)))


def train(
    size: int,
    batches: Sequence[Rows],
    *,
    microbatch: int,
    deterministic: bool = False,
    **options: Any,
) -> list[LinearProgram]:
    """Train on `size` threads, one round for each batch. Returns each rank's model."""

    def body(communicator: GroupCommunicator) -> LinearProgram:
        program = LinearProgram(**options)
        reduction = Reduction(deterministic=deterministic)
        for number, batch in enumerate(batches):
            activity = AllReduceRound(
                program, [batch], name="fit", step=number, microbatch=microbatch, salt=(0, number), reduction=reduction
            )
            work = activity.work(group_for(size), communicator.rank, communicator)
            activity.change(activity.talk(work, communicator))
        return program

    return run_group(size, body)
