"""The seams between a round and what it does: an `Activity` fills a round, a `Program` is a model's compiled work.

Next file: `all_reduce.py`, the activity of a synchronous training step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from paceline.communication.buckets import Bucket
from paceline.communication.protocols import Communicator
from paceline.types import Group

Work = TypeVar("Work")
Proposal = TypeVar("Proposal")


@dataclass(frozen=True)
class Ballot:
    """What a member's vote says.

    Attributes:
        digest: of the proposal that it holds; all must hold the same.
        fingerprint: of the data that the round reads; all must read the same.
        halt: the call is to end before this round, which is then not committed (a callback set `stop_training`).
    """

    digest: int
    fingerprint: int = 0
    halt: bool = False


class Activity(Protocol[Work, Proposal]):
    """What the rounds of a call do: a training step, a stretch of an evaluation, an agreement.

    Attributes:
        name: for events and messages: "fit", "evaluate" ...
        step: number of the optimizer's step that the round takes, or None.
        samples: how many samples the whole group's round covers.
    """

    @property
    def name(self) -> str: ...

    @property
    def step(self) -> int | None: ...

    @property
    def samples(self) -> int: ...

    def work(self, group: Group, rank: int, communicator: Communicator) -> Work:
        """Leaves no trace: the same call may follow, with another group, after a discarded round. Alone, but for
        what a model needs to know of the others before or inside its forward pass."""

    def talk(self, work: Work, communicator: Communicator) -> Proposal:
        """Together. Changes nothing; every member ends with the same proposal."""

    def ballot(self, work: Work, proposal: Proposal) -> Ballot:
        """What to vote on."""

    def change(self, proposal: Proposal) -> None:
        """Adopt the proposal. Talks to no one and cannot fail for a reason that only one member has."""


@dataclass(frozen=True)
class SparseRows:
    """Rows of a table that have a gradient: `rows[k]` belongs to row `ids[k]`; each id once, ascending."""

    ids: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True)
class Contribution:
    """What one microbatch adds to a round: the sum over all microbatches is the round's proposal.

    Attributes:
        buffers: one flat array for each bucket of the program's layout; only to be read.
        sparse: one entry for each sparse gradient of the layout.
        origin: what the program keeps so that a sum of one contribution is handed back without a copy.
    """

    buffers: tuple[np.ndarray, ...]
    sparse: tuple[SparseRows, ...] = ()
    origin: Any = None


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a contribution lies; the same on all ranks.

    Attributes:
        buckets: dense tensors.
        sparse_shapes: (rows, width) of each table with a sparse gradient.
        sparse_dtypes: of the rows' sums; float32 where nothing is said.
        digest: of all names, shapes, dtypes and places.
    """

    buckets: tuple[Bucket, ...]
    sparse_shapes: tuple[tuple[int, int], ...] = ()
    sparse_dtypes: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True)
class Microbatch:
    """One unit of work.

    Attributes:
        data: (x, y, sample_weight) as the model takes them.
        num_samples: how many samples it holds.
        share: num_samples / samples of the global batch.
        salt: two uint32 that set this microbatch's random numbers apart from all others'.
        factors: correction for each loss whose divisor is not the number of samples; empty when there is none.
        first: it is its global batch's first one, whose counters stand for all.
        present: False for a member without samples that runs the forward pass only because the others' BatchNorm
            layers wait for it; its share is 0 and it counts nothing.
    """

    data: Any
    num_samples: int
    share: float
    salt: tuple[int, int]
    factors: np.ndarray = field(default_factory=lambda: np.empty(0, np.float64))
    first: bool = True
    present: bool = True


class Program(Protocol):
    """A model's compiled work on one kind of call (training, evaluation). `contribute` leaves no trace in the model."""

    @property
    def layout(self) -> Layout:
        """Known once `prepare` has run."""

    @property
    def synchronous(self) -> bool:
        """Whether the members talk inside the forward pass, so that each runs exactly one microbatch in a round."""

    @property
    def needs_divisors(self) -> bool:
        """Whether `contribute` needs `Microbatch.factors`: some loss divides by what only the data tell (a sum of
        sample weights, a mask)."""

    def prepare(self, data: Any) -> None:
        """Build and trace for data like this microbatch's."""

    @property
    def measure_width(self) -> int:
        """How many numbers `measure` gives."""

    def measure(self, data: Any) -> np.ndarray:
        """What each loss divides by on this microbatch, float64, one per loss."""

    def contribute(self, microbatch: Microbatch, communicator: Communicator) -> Contribution: ...

    def apply(self, total: Contribution) -> None:
        """Adopt the sum of all contributions."""


class BatchView(Protocol):
    """One global batch, as `data.protocols.GlobalBatch` gives it."""

    @property
    def num_samples(self) -> int: ...

    @property
    def fingerprint(self) -> int: ...

    def take(self, start: int, stop: int) -> Any: ...


Batches = Sequence[BatchView]
