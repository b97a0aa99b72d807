"""Global batches of data that can only be read from its beginning on (`tf.data` pipelines, generators): every worker
reads the same stream and takes its slice of each batch.

What an iterator yields depends on how many were made before it (a reshuffling pipeline gives each a new order), so the
n-th pass must be read from the n-th iterator: `Passes.pass_over` sees to that. Only the last batch is held, which is
what a discarded round needs. Next file: `fetching.py`, for batches that can be asked for by number.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from paceline.data.passes import Plan, out_of_data, span
from paceline.data.protocols import Column, Sample
from paceline.data.sources.arrays import checksum, spec, take_rows
from paceline.data.structure import leaves, map_leaves
from paceline.errors import ConfigError


class Passes(Protocol):
    """The iterators over a stream, one for each pass."""

    @property
    def description(self) -> str: ...

    @property
    def caveat(self) -> str | None: ...

    @property
    def inputs_vary(self) -> bool:
        """Whether the inputs of the same samples may differ between workers."""

    def signature(self) -> str: ...

    def pass_over(self, number: int) -> None:
        """Leave the stream as if the passes before `number` had been read. Numbers only rise."""

    def open(self, number: int) -> Iterator[Any]:
        """The iterator of pass `number`, once `pass_over(number)` was called. No pass is opened twice. A stream that
        cannot be begun again gives the same iterator each time."""

    def close(self) -> None: ...


class StreamBatch:
    """One batch of a stream. The fingerprint covers its size and the values of its first and last rows.

    Args:
        sample: (x, y, sample_weight) with columns as leaves.
        inputs_vary: the inputs may differ between workers although the samples are the same (random augmentation), so
            that the fingerprint covers targets and weights only, but of all rows.
    """

    def __init__(self, sample: Sample, *, inputs_vary: bool = False) -> None:
        self._sample = sample
        self._inputs_vary = inputs_vary
        self.num_samples = _num_rows(sample)

    @cached_property
    def fingerprint(self) -> int:
        last = self.num_samples - 1
        ends = [slice(0, 1), slice(last, last + 1)] if self.num_samples else []
        rows, covered = ([slice(None)], self._sample[1:]) if self._inputs_vary else (ends, self._sample)
        result = zlib.crc32(self.num_samples.to_bytes(8, "little"))
        for index in rows:
            for _, column in leaves(covered):
                result = zlib.crc32(checksum(column, index).to_bytes(4, "little"), result)
        return result

    def take(self, start: int, stop: int) -> Sample:
        x, y, sample_weight = map_leaves(lambda _, column: take_rows(column, slice(start, stop)), self._sample)
        return x, y, sample_weight


class StreamBatches:
    """The epochs of a stream.

    Args:
        passes: its iterators.
        prepare: makes (x, y, sample_weight), with columns as leaves, from what an iterator yields.
        plan: how epochs are laid over passes.
        initial_epoch: the first epoch that is read.
    """

    policy = "every worker reads the same stream and takes its slice of each batch"
    num_samples: int | None = None

    def __init__(self, passes: Passes, prepare: Callable[[Any], Sample], *, plan: Plan, initial_epoch: int = 0) -> None:
        self._passes = passes
        self._prepare = prepare
        self._plan = plan
        self._epoch = initial_epoch  # the epoch that is being read, not begun yet at first
        self._initial_epoch = initial_epoch
        self._number = 0  # of the pass that is being read
        self._num_extra = 0  # passes that were begun because an evaluation was run again
        self._first = 0  # batch of that pass at which the epoch began
        self._iterator: Iterator[Any] | None = None
        self._num_read = 0  # batches of the pass that were taken from the iterator
        self._ended = False  # the iterator has said that there is no more
        self._element: Any = None  # what the iterator gave last
        self._batch: StreamBatch | None = None  # the same, prepared

    @property
    def steps_per_epoch(self) -> int | None:
        return self._plan.steps or self._plan.num_batches

    @property
    def description(self) -> str:
        return self._passes.description

    @property
    def caveat(self) -> str | None:
        return self._passes.caveat

    def signature(self) -> str:
        return f"{self._passes.signature()}; steps {self._plan.steps}"

    def content(self) -> int | None:
        return None

    def begin_epoch(self, epoch: int, first_step: int = 0) -> None:
        if epoch < self._epoch:
            raise LookupError(f"epoch {epoch} has gone by: the stream is in epoch {self._epoch}")
        while self._epoch < epoch:
            self._pass_over_epoch()
        if self._plan.restart and first_step < self._num_read - 1:
            self._num_extra += 1
            self._go_to_pass(self._number + 1)
        self._passes.pass_over(self._number)
        while self._num_read < self._first + first_step and self._read():
            pass

    def batch(self, step: int) -> StreamBatch | None:
        length = self._length
        if length is not None and step >= length:
            self._tell_if_cut_short(step)
            return None
        index = self._first + step
        if index < self._num_read - 1:
            raise LookupError(f"step {step} has gone by: the stream is at step {self._num_read - self._first - 1}")
        while self._num_read <= index:
            if not self._read():
                self._tell_if_cut_short(step)
                return None
        if self._batch is None:
            self._batch = StreamBatch(self._prepare(self._element), inputs_vary=self._passes.inputs_vary)
        return self._batch

    def close(self) -> None:
        self._iterator = self._element = self._batch = None
        self._ended = True
        self._passes.close()

    @property
    def _length(self) -> int | None:
        """Steps that this epoch has at most."""
        if self._plan.computable:
            return span(self._plan, self._epoch - self._initial_epoch).length
        return self._plan.steps

    def _tell_if_cut_short(self, step: int) -> None:
        if self._plan.steps is not None and step < self._plan.steps:
            warnings.warn(out_of_data(step, self._plan.steps), stacklevel=3)

    def _read(self) -> bool:
        """Take the next batch of the pass. False: there is none."""
        if self._ended:
            return False
        if self._iterator is None:
            self._iterator = self._passes.open(self._number)
        try:
            self._element = next(self._iterator)
        except StopIteration:
            self._ended = True
            return False
        self._batch = None
        self._num_read += 1
        return True

    def _pass_over_epoch(self) -> None:
        """Go to where the next epoch begins, reading on only where nothing else can tell."""
        if self._plan.computable:
            coming = span(self._plan, self._epoch + 1 - self._initial_epoch)
            number, first = coming.number + self._num_extra, coming.first
        else:
            number, first = self._read_to_end_of_epoch()
        self._epoch += 1
        self._first = first
        if number != self._number:
            self._go_to_pass(number)

    def _go_to_pass(self, number: int) -> None:
        self._number = number
        self._iterator = self._element = self._batch = None
        self._num_read = 0
        self._ended = False

    def _read_to_end_of_epoch(self) -> tuple[int, int]:
        """Pass and batch at which the next epoch begins, for a stream that goes on over epochs and may end anywhere."""
        assert self._plan.steps is not None
        end = self._first + self._plan.steps
        self._passes.pass_over(self._number)
        while self._num_read < end and self._read():
            pass
        return (self._number + 1, 0) if self._ended else (self._number, end)


def _num_rows(sample: Sample) -> int:
    """The number of rows, which must be the same in every column."""
    names = ("x", "y", "sample_weight")
    columns: list[tuple[str, Column]] = [
        named for name, part in zip(names, sample, strict=True) for named in leaves(part, name)
    ]
    if not columns:
        raise ConfigError("a batch of the data is empty: it has no arrays")
    sizes = {
        name: int(column.shape[0]) for name, column in columns if len(column.shape) and column.shape[0] is not None
    }
    if len(sizes) < len(columns):
        lone = next(name for name, _ in columns if name not in sizes)
        raise ConfigError(
            f"{lone} of a batch is a single value without a batch dimension. Batch the data by the global batch, or "
            "give `batch_size` to have a `tf.data.Dataset` batched here."
        )
    if len(set(sizes.values())) > 1:
        raise ConfigError(f"the arrays of one batch have different numbers of rows: {sizes}")
    return next(iter(sizes.values()))


def batch_signature(sample: Sample) -> str:
    """Names, types and shapes of a batch's columns, without the number of rows."""
    names = ("x", "y", "sample_weight")
    return ", ".join(
        f"{name} {spec(column).replace('[' + str(column.shape[0]), '[?', 1)}"
        for group, part in zip(names, sample, strict=True)
        for name, column in leaves(part, group)
        if isinstance(column, np.ndarray) or len(column.shape)
    )
