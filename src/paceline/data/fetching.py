"""Global batches that can be asked for by number (`keras.utils.PyDataset`): every worker fetches each batch and takes
its slice. Batches are fetched ahead by threads, never beyond the epoch, since a data set may change itself between
epochs. Ends the tour of `data/`; `keras/datasets.py` makes these from what users pass to `fit`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from paceline.data.order import GlobalOrder
from paceline.data.passes import Plan, Span, out_of_data, span
from paceline.data.protocols import Sample
from paceline.data.streams import StreamBatch


def _nothing() -> None: ...


@dataclass(frozen=True)
class Fetching:
    """How to get at the batches.

    Attributes:
        fetch: batch number -> whatever the data set holds.
        prepare: makes (x, y, sample_weight), with columns as leaves, of it.
        begin_epoch: called before each epoch.
        end_epoch: called after each epoch.
        end_before: `end_epoch` is called before "first" epoch, before "every" epoch (Keras resets an evaluation's data
            this way), or before "none".
        readers: how many batches are fetched ahead at once.
    """

    fetch: Callable[[int], Any]
    prepare: Callable[[Any], Sample]
    begin_epoch: Callable[[], None] = _nothing
    end_epoch: Callable[[], None] = _nothing
    end_before: str = "none"
    readers: int = 1


class FetchedBatches:
    """The epochs of numbered batches.

    Args:
        fetching: how to get them.
        plan: how epochs are laid over passes; `num_batches` None: there is no end.
        shuffle: whether each pass takes the batches in another order.
        seed: of that order.
        description: for people.
        signature: must be equal on all ranks.
        initial_epoch: the first epoch that is read.
    """

    policy = "every worker reads the same batches and takes its slice of each"
    caveat: str | None = None
    num_samples: int | None = None

    def __init__(
        self,
        fetching: Fetching,
        *,
        plan: Plan,
        shuffle: bool,
        seed: int,
        description: str,
        signature: str,
        initial_epoch: int = 0,
    ) -> None:
        self._fetching = fetching
        self._plan = plan
        self._shuffle = shuffle and plan.num_batches is not None
        self._seed = seed
        self.description = description
        self._signature = signature
        self._initial_epoch = initial_epoch
        self._epoch = initial_epoch - 1  # the last one begun
        self._within_epoch = False
        self._span = Span(0, 0, 0)
        self._order: GlobalOrder | None = None
        self._held: tuple[int, StreamBatch] | None = None
        self._ahead: dict[int, Future[Any]] = {}
        self._executor: ThreadPoolExecutor | None = None

    @property
    def steps_per_epoch(self) -> int | None:
        return self._plan.steps or self._plan.num_batches

    def signature(self) -> str:
        seed = self._seed if self._shuffle else None
        return f"{self._signature}; batches {self._plan.num_batches}, seed {seed}, steps {self._plan.steps}"

    def content(self) -> int | None:
        return None

    def begin_epoch(self, epoch: int, first_step: int = 0) -> None:
        if epoch < self._epoch:
            raise LookupError(f"epoch {epoch} has gone by: the data is in epoch {self._epoch}")
        while self._epoch < epoch:
            self._next_epoch()
        self._fetch_ahead(first_step)

    def batch(self, step: int) -> StreamBatch | None:
        length = self._span.length
        if length is not None and step >= length:
            if self._plan.steps is not None and step < self._plan.steps:
                warnings.warn(out_of_data(step, self._plan.steps), stacklevel=2)
            self._end_epoch()
            return None
        if self._held is None or self._held[0] != step:
            self._fetch_ahead(step)
            element = self._ahead.pop(step).result()
            self._fetch_ahead(step + 1)
            self._held = (step, StreamBatch(self._fetching.prepare(element)))
        return self._held[1]

    def close(self) -> None:
        self._drop_ahead()
        self._held = None
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None

    def _next_epoch(self) -> None:
        end_before = self._fetching.end_before
        self._end_epoch()
        if end_before == "every" or (end_before == "first" and self._epoch < self._initial_epoch):
            self._fetching.end_epoch()
        self._epoch += 1
        self._held = None
        self._span = self._span_of(self._epoch - self._initial_epoch)
        if self._shuffle and self._plan.num_batches is not None:
            number = self._initial_epoch + self._span.number
            if self._order is None or self._order.epoch != number:
                self._order = GlobalOrder(self._plan.num_batches, seed=self._seed, epoch=number)
        self._within_epoch = True
        self._fetching.begin_epoch()

    def _span_of(self, epoch: int) -> Span:
        if self._plan.computable:
            return span(self._plan, epoch)
        assert self._plan.steps is not None, "otherwise an epoch is one endless pass"
        return Span(0, epoch * self._plan.steps, self._plan.steps)

    def _end_epoch(self) -> None:
        if self._within_epoch:
            self._drop_ahead()
            self._within_epoch = False
            self._fetching.end_epoch()

    def _fetch_ahead(self, step: int) -> None:
        """Have the batches of `step` and of those that follow it fetched, and no others."""
        stop = step + self._fetching.readers
        if self._span.length is not None:
            stop = min(stop, self._span.length)
        for stale in [ahead for ahead in self._ahead if not step <= ahead < stop]:
            self._ahead.pop(stale).cancel()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._fetching.readers, thread_name_prefix="paceline-fetch")
        for ahead in range(step, stop):
            if ahead not in self._ahead:
                self._ahead[ahead] = self._executor.submit(self._fetching.fetch, self._number_of(ahead))

    def _number_of(self, step: int) -> int:
        place = self._span.first + step
        return place if self._order is None else int(self._order.indices(place, place + 1)[0])

    def _drop_ahead(self) -> None:
        """Let go of what was fetched ahead; wait for what is being fetched, so that the data may change after."""
        for future in self._ahead.values():
            if not future.cancel():
                future.exception()
        self._ahead.clear()
