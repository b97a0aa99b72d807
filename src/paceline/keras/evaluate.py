"""`evaluate` in a group, and the validation of `fit`: each rank counts metrics on its share; the sums are everyone's.

A round covers a stretch of global batches, always the same ones, so that the order of summation does not depend on
the number of workers.
"""

from __future__ import annotations

from typing import Any, Protocol

import keras

from paceline.data.protocols import GlobalBatches
from paceline.errors import ConfigError
from paceline.keras import seam
from paceline.keras.callbacks import adopt_callbacks, export_callbacks, prepare_callbacks
from paceline.keras.datasets import make_batches
from paceline.keras.replica import Replica
from paceline.keras.reporting import tell_sharding, to_floats
from paceline.strategies.all_reduce import AllReduceRound
from paceline.training.recovery import State
from paceline.training.round import run

STRETCH = 8  # global batches in a round


class Position(Protocol):
    """Where the evaluation stands: batches of committed rounds."""

    step: int


class EvaluateProgress:
    """What a newcomer takes over beside the model."""

    def __init__(self) -> None:
        self.step = 0
        self.callbacks: keras.callbacks.CallbackList | None = None
        self.callback_states: list[dict[str, Any]] = []

    def export_state(self) -> State:
        assert self.callbacks is not None
        return State([self.step, export_callbacks(self.callbacks)])

    def adopt_state(self, state: State) -> None:
        self.step, self.callback_states = state.values


def evaluate(
    replica: Replica,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: Any = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
) -> Any:
    """Evaluate, as `keras.Model.evaluate`. Every rank passes the same arguments and gets the same results."""
    replica.check("evaluate")
    batches = make_batches(
        x,
        y,
        sample_weight,
        batch_size=batch_size,
        shuffle=False,
        class_weight=None,
        seed=replica.options.seed,
        steps_per_epoch=steps,
        purpose="evaluate",
    )
    evaluation = Evaluation(replica, batches)
    try:
        evaluation.prepare()
        prepared = prepare_callbacks(
            callbacks,
            model=replica.model,
            rank=replica.rank,
            verbose=verbose,
            epochs=1,
            steps=batches.steps_per_epoch,
            add_history=False,
        )
        progress = EvaluateProgress()
        progress.callbacks = prepared
        with replica.calls.call("evaluate", evaluation.describe(), progress=progress) as opened:
            if not opened.replayed:
                tell_sharding("evaluate", batches, evaluation.microbatch, replica.session)
                if opened.resumed:
                    with replica.calls.take_up():
                        evaluation.take_up(prepared, progress)
                    adopt_callbacks(prepared, progress.callback_states)
                opened.result = to_floats(evaluation.run(prepared, progress, entering=not opened.resumed))
            logs = opened.result
        return logs if return_dict else seam.metrics_in_order(replica.model, logs)
    finally:
        evaluation.close()


class Evaluation:
    """The rounds of one evaluation; `fit` runs it again after each epoch."""

    def __init__(self, replica: Replica, batches: GlobalBatches) -> None:
        self._replica = replica
        self._model = replica.model
        self._batches = batches
        self.microbatch = 0

    def signature(self) -> str:
        return self._batches.signature()

    def describe(self) -> dict[str, str]:
        return {"data": self.signature(), "layout": self._program.layout.digest, **self._replica.describe()}

    def prepare(self) -> None:
        """The slow part, alone."""
        self._batches.begin_epoch(0)
        first = self._batches.batch(0)
        if first is None or first.num_samples == 0:
            raise ConfigError("evaluate was given no data: the first batch is empty")
        self.microbatch = self._replica.microbatch_for(first.num_samples)
        example = first.take(0, min(self.microbatch, first.num_samples))
        self._program = self._replica.program(example, training=False)

    def run(
        self, callbacks: keras.callbacks.CallbackList, position: Position, *, entering: bool, number: int = 0
    ) -> dict[str, Any]:
        """Evaluate this data for the `number`-th time (from 0), from `position` on: `entering`, or after `take_up`.
        Returns the model's metrics, and changes them, alike on all ranks."""
        self._model.stop_evaluating = False
        if entering:
            callbacks.on_test_begin()
            self._model.reset_metrics()
        hooked = not entering  # the hooks of the first stretch have been called
        self._batches.begin_epoch(number, position.step)
        while stretch := self._next_stretch(position.step):
            if not hooked:
                _begin_batches(callbacks, position.step, len(stretch))
            hooked = False
            activity = AllReduceRound(
                self._program,
                stretch,
                name="evaluate",
                step=None,
                microbatch=self.microbatch,
                salt=(self._replica.calls.session.call, position.step),
                reduction=self._replica.reduction,
                halt=bool(self._model.stop_evaluating),
            )
            if not run(self._replica.session, activity):
                self._model.stop_evaluating = True
                break
            for number in range(len(stretch)):
                callbacks.on_test_batch_end(position.step + number, self._program.logs)
            position.step += len(stretch)
        logs = dict(self._model.get_metrics_result())
        callbacks.on_test_end(logs)
        return logs

    def take_up(self, callbacks: keras.callbacks.CallbackList, position: Position, *, number: int = 0) -> None:
        """Call the hooks that the others had called before the round in which a newcomer was let in."""
        callbacks.on_test_begin()
        self._batches.begin_epoch(number, position.step)
        _begin_batches(callbacks, position.step, len(self._next_stretch(position.step)))

    def close(self) -> None:
        self._batches.close()

    def _next_stretch(self, step: int) -> list[Any]:
        length = 1 if self._program.depends_on_order else STRETCH
        batches = (self._batches.batch(number) for number in range(step, step + length))
        stretch = []
        for batch in batches:
            if batch is None:
                break
            stretch.append(batch)
        return stretch


def _begin_batches(callbacks: keras.callbacks.CallbackList, first: int, count: int) -> None:
    for number in range(first, first + count):
        callbacks.on_test_batch_begin(number)
