"""Global batches of data in memory: each worker reads its own rows and no others. Next file: `streams.py`, for data
that can only be read from its beginning on."""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from paceline.data.order import GlobalOrder, Indices, random_permutation
from paceline.data.passes import Plan, Span, out_of_data, span
from paceline.data.protocols import Sample
from paceline.data.sources.arrays import ArraySource
from paceline.data.structure import Structure

Shuffle = bool | Literal["batch"]


@dataclass(frozen=True)
class ArrayBatch:
    """Rows of a source. The fingerprint covers their indices."""

    source: ArraySource
    indices: Indices

    @property
    def num_samples(self) -> int:
        return len(self.indices)

    @cached_property
    def fingerprint(self) -> int:
        return zlib.crc32(np.ascontiguousarray(self.indices).tobytes())

    def take(self, start: int, stop: int) -> Sample:
        x, y, sample_weight = self.source.take(self.indices[start:stop])
        return x, y, sample_weight


class ArrayBatches:
    """Global batches of columns in memory, in a global order.

    Args:
        columns: (x, y, sample_weight), each a structure of columns or None.
        batch_size: samples of a global batch.
        shuffle: True: all samples, anew in each pass. "batch": only within each batch. False: as they are.
        seed: of the order.
        steps: `steps_per_epoch`.
        restart: every epoch begins a new pass (see `passes.py`).
        initial_epoch: the first epoch that is read.
    """

    policy = "each worker reads its own rows"
    caveat: str | None = None

    def __init__(
        self,
        columns: tuple[Structure, Structure, Structure],
        *,
        batch_size: int,
        shuffle: Shuffle,
        seed: int,
        steps: int | None = None,
        restart: bool = False,
        initial_epoch: int = 0,
    ) -> None:
        x, y, sample_weight = columns
        self._source = ArraySource({"x": x, "y": y, "sample_weight": sample_weight})
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._steps = steps
        self._initial_epoch = initial_epoch
        self._plan = Plan(-(-self._source.num_samples // batch_size), steps, restart)
        self._span = Span(-1, 0, 0)
        self._order = GlobalOrder(0, seed=seed, epoch=0, shuffle=False)

    @property
    def num_samples(self) -> int | None:
        return self._source.num_samples

    @property
    def steps_per_epoch(self) -> int | None:
        return self._steps or self._plan.num_batches

    @property
    def description(self) -> str:
        how = {
            True: f"shuffled with seed {self._seed}",
            False: "in the order given",
            "batch": f"shuffled within each batch with seed {self._seed}",
        }[self._shuffle]
        return f"{self._source.num_samples:,} samples in memory, {how}"

    def signature(self) -> str:
        return (
            f"{self._source.signature()}; batch {self._batch_size}, shuffle {self._shuffle}, "
            f"seed {self._seed if self._shuffle else None}, steps {self._steps}"
        )

    def content(self) -> int | None:
        return self._source.fingerprint()

    def begin_epoch(self, epoch: int, first_step: int = 0) -> None:
        self._span = span(self._plan, epoch - self._initial_epoch)
        number = self._initial_epoch + self._span.number
        if (self._order.num_samples, self._order.epoch) != (self._source.num_samples, number):
            self._order = GlobalOrder(
                self._source.num_samples, seed=self._seed, epoch=number, shuffle=self._shuffle is True
            )
            self._order.indices(0, 0)

    def batch(self, step: int) -> ArrayBatch | None:
        assert self._span.length is not None, "the length of data in memory is known"
        if step >= self._span.length:
            if self._steps is not None and step < self._steps:
                warnings.warn(out_of_data(step, self._steps), stacklevel=2)
            return None
        number = self._span.first + step
        start = number * self._batch_size
        stop = min(start + self._batch_size, self._source.num_samples)
        if self._shuffle == "batch":
            within = random_permutation(stop - start, seed=self._seed, epoch=self._order.epoch, block=number + 1)
            return ArrayBatch(self._source, within + start)
        return ArrayBatch(self._source, self._order.indices(start, stop))

    def close(self) -> None:
        """Nothing is held."""
