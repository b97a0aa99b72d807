"""Callbacks in a group: all ranks run them on equal logs; those that write or print act on rank 0 alone.

A callback's state is what it keeps in plain attributes (numbers, texts, lists, arrays ...): a restarted worker gets it
from the others, so that EarlyStopping, ReduceLROnPlateau and the like stay equal everywhere.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from paceline.errors import ConfigError
from paceline.training.codec import encode

RANK_ZERO_ONLY = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard, keras.callbacks.RemoteMonitor)
NOT_STATE = ("_model", "model", "params", "validation_data")


class RankZeroOnly(keras.callbacks.Callback):
    """Runs `inner` on the process that has rank 0 at the time.

    When rank 0 is lost, the next one begins where it was: its `inner` is begun then, and a CSV file is appended to.
    What an epoch's end left to a rank 0 that may not have lived to do it is noted in `left_to_rank_zero`.
    """

    def __init__(
        self, inner: keras.callbacks.Callback, rank: Callable[[], int], left_to_rank_zero: deque[Callable[[], None]]
    ) -> None:
        super().__init__()
        self._left_to_rank_zero = left_to_rank_zero
        self.inner = inner
        self.async_safe = getattr(inner, "async_safe", False)  # Keras runs such callbacks beside training
        self._rank = rank
        self._is_prepared = False
        self._begun = False
        self._epoch: int | None = None

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        self.inner.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._is_prepared = False
        if self._rank() == 0:
            self._prepare()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_") and name not in ("on_train_begin", "on_epoch_begin"):
            return lambda *arguments, **named: self._forward(name, *arguments, **named)
        return super().__getattribute__(name)

    def on_train_begin(self, logs: Any = None) -> None:
        if self._rank() == 0:
            self._prepare()
            self._begun = True
            self.inner.on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        if self._rank() == 0:
            self._take_over()
            self.inner.on_epoch_begin(epoch, logs)

    def _forward(self, name: str, *arguments: Any, **named: Any) -> None:
        if self._rank() == 0:
            self._prepare()
            if "train" in name or "epoch" in name:
                self._take_over()
            getattr(self.inner, name)(*arguments, **named)
        elif name == "on_epoch_end":
            self._left_to_rank_zero.append(functools.partial(self._make_up_for, *arguments, **named))

    def _make_up_for(self, epoch: int, logs: Any = None) -> None:
        """End an epoch in the place of a rank 0 that was lost before all had agreed to go on."""
        self._take_over()
        if not isinstance(self.inner, keras.callbacks.CSVLogger) or not _has_row(self.inner, epoch):
            self.inner.on_epoch_end(epoch, logs)

    def _prepare(self) -> None:
        """Give `inner` the model, to which some react by writing (TensorBoard)."""
        if not self._is_prepared:
            self._is_prepared = True
            self.inner.set_model(self._model)

    def _take_over(self) -> None:
        if self._begun:
            return
        self._begun = True
        self._prepare()
        if isinstance(self.inner, keras.callbacks.CSVLogger):
            self.inner.append = True
        self.inner.on_train_begin()
        if self._epoch is not None:
            self.inner.on_epoch_begin(self._epoch)


def _has_row(logger: keras.callbacks.CSVLogger, epoch: int) -> bool:
    """Whether the file ends with the row of this epoch."""
    path = Path(logger.filename)
    lines = path.read_text().splitlines() if path.exists() else []
    return bool(lines) and lines[-1].startswith(f"{epoch}{logger.sep}")


def prepare_callbacks(
    callbacks: Any,
    *,
    model: keras.Model,
    rank: Callable[[], int],
    verbose: Any,
    epochs: int,
    steps: int | None,
    add_history: bool,
    left_to_rank_zero: deque[Callable[[], None]] | None = None,
) -> keras.callbacks.CallbackList:
    """The user's callbacks as Keras runs them, with those that write or print confined to rank 0."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    listed = list(keras.tree.flatten(callbacks)) if callbacks else []
    for callback in listed:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ConfigError(
                "BackupAndRestore restores on one process what the others do not have: leave it out "
                "(a killed worker takes the state from the others by itself)"
            )
    left = deque() if left_to_rank_zero is None else left_to_rank_zero
    confined = [
        RankZeroOnly(callback, rank, left)
        if isinstance(callback, RANK_ZERO_ONLY) or getattr(callback, "rank_zero_only", False)
        else callback
        for callback in listed
    ]
    if verbose != 0 and not any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in listed):
        confined.append(RankZeroOnly(keras.callbacks.ProgbarLogger(), rank, left))
    return keras.callbacks.CallbackList(
        confined, add_history=add_history, model=model, verbose=verbose, epochs=epochs, steps=steps
    )


def export_callbacks(callbacks: keras.callbacks.CallbackList) -> list[dict[str, Any]]:
    """Each callback's plain attributes, in order."""
    return [_plain(_state_owner(callback)) for callback in callbacks.callbacks]


def adopt_callbacks(callbacks: keras.callbacks.CallbackList, states: Sequence[dict[str, Any]]) -> None:
    """Take over what `export_callbacks` gave on another rank."""
    for callback, state in zip(callbacks.callbacks, states, strict=True):
        for name, value in state.items():
            setattr(_state_owner(callback), name, value)


def _state_owner(callback: Any) -> Any:
    return callback.inner if isinstance(callback, RankZeroOnly) else callback


def _plain(callback: Any) -> dict[str, Any]:
    if isinstance(callback, keras.callbacks.ProgbarLogger):
        return {}  # what the bar shows is this process's own affair
    return {name: value for name, value in vars(callback).items() if name not in NOT_STATE and _travels(value)}


def _travels(value: Any) -> bool:
    try:
        encode(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
