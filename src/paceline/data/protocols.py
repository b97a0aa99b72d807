"""The seams of data. `GlobalBatches` is what training consumes: the steps of each epoch, whatever the data lives in.
`Rows` is one column of an indexable source. Next file: `passes.py` (which pass over the data an epoch reads).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from paceline.data.order import Indices
from paceline.data.structure import Structure

Sample = tuple[Structure, Structure, Structure]
"""(x, y, sample_weight); y and sample_weight are None where absent."""


class GlobalBatch(Protocol):
    """The samples of one step, of which each member takes its microbatches. It stays valid as long as it lives."""

    @property
    def num_samples(self) -> int: ...

    @property
    def fingerprint(self) -> int:
        """32 bits that are equal where two workers hold the same batch. Cheap: see the implementation for what it
        covers."""

    def take(self, start: int, stop: int) -> Sample:
        """Rows start..stop-1: numpy arrays, or tensors where numpy has no such thing (strings, ragged, sparse).
        They may be views: only read them."""


class GlobalBatches(Protocol):
    """The data of one `fit`, `evaluate` or `predict`: epochs of global batches, the same on every worker.

    Used by one thread. Epochs are asked for in rising order. The samples of (epoch, step) depend on nothing but the
    arguments it was made with, so that a worker which comes in the middle sees what the others see.
    """

    @property
    def num_samples(self) -> int | None:
        """Samples of one pass; None where that is not known before the pass ends."""

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of a whole epoch, for progress; None until the stream ends. `batch` has the last word: an epoch may
        be shorter."""

    @property
    def description(self) -> str:
        """For people: "1,797 samples in memory, shuffled with seed 7"."""

    @property
    def policy(self) -> str:
        """For people: what each worker reads."""

    @property
    def caveat(self) -> str | None:
        """Why two workers might see different batches, where that was noticed beforehand; for people."""

    def signature(self) -> str:
        """Shapes, types and sizes. It must be equal on all ranks."""

    def content(self) -> int | None:
        """32 bits from some of the rows: equal where workers loaded the same data; None for streams."""

    def begin_epoch(self, epoch: int, first_step: int = 0) -> None:
        """Make ready so that the next batch is `first_step` of `epoch`.

        Called at each epoch's start; again in the same epoch after a fault; and in a fresh process that joins in
        mid-training, for which the epochs before are passed over (without reading them where that is possible).
        `begin_epoch(n)` after a call that ended elsewhere leaves the data as a call of n epochs leaves it.
        An evaluation may begin the same epoch once more, at its start: that is a new pass.
        """

    def batch(self, step: int) -> GlobalBatch | None:
        """The global batch of this step of the epoch; None when the epoch is over before it.

        A step may be asked for again (its round was discarded): same answer. Steps before the last one asked for are
        gone for streams: `LookupError`. None at step 0 means that nothing is left (an exhausted generator).
        """

    def close(self) -> None:
        """End threads and let go of what is held. More than once is fine."""


class Rows(Protocol):
    """One column of indexable data, whatever its kind. numpy arrays are columns as they are; others implement this."""

    @property
    def shape(self) -> tuple[int | None, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def take(self, index: slice | Indices) -> Any:
        """These rows, in this order."""

    def checksum(self, index: slice | Indices) -> int:
        """32 bits of these rows."""


Column = np.ndarray[Any, Any] | Rows
