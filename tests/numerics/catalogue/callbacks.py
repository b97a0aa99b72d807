"""Callbacks: all ranks decide alike on equal logs, and rank 0 alone writes. Next file: `models.py`."""

from __future__ import annotations

import csv
import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import callbacks

from numerics.catalogue.data import dense, features, targets
from numerics.catalogue.registry import Run, case, equals_plain_keras

ROWS = 19


def _model(learning_rate: float = 0.05) -> keras.Model:
    model = dense()
    model.compile(keras.optimizers.SGD(learning_rate), "mse", metrics=["mae"])
    return model


def _fit(run: Run, model: keras.Model, epochs: int, listed: list[Any], **options: Any) -> callbacks.History:
    validation = (features(13, seed=61), targets(13, seed=62))
    return run.fit(
        model,
        features(ROWS),
        targets(ROWS),
        batch_size=8,
        epochs=epochs,
        callbacks=listed,
        validation_data=validation,
        **options,
    )


@equals_plain_keras
def learning_rates_set_by_callbacks(run: Run) -> None:
    model = run.distribute(_model())
    schedule = callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8)
    plateau = callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_delta=0.01)
    _fit(run, model, 8, [schedule, plateau])
    run.keep_weights(model)


@equals_plain_keras
def early_stopping_that_restores_the_best_weights(run: Run) -> None:
    model = run.distribute(_model(0.9))  # it soon gets worse
    stopping = callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True)
    history = _fit(run, model, 30, [stopping])
    assert len(history.epoch) < 30
    run.keep("stopped", stopping.stopped_epoch)
    run.keep_weights(model)


class StopAt(callbacks.Callback):
    """Stops in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.params["steps"] and batch == 1 and int(self.model.optimizer.iterations.value) > 3:
            self.model.stop_training = True


@equals_plain_keras
def training_that_rank_zero_alone_stops_at_a_batch(run: Run) -> None:
    model = run.distribute(_model())
    history = _fit(run, model, 5, [StopAt()] if run.rank == 0 else [])
    assert len(history.epoch) == 2
    assert model.stop_training
    run.keep("steps", model.optimizer.iterations.value)
    run.keep_weights(model)


@equals_plain_keras
def csv_logger_writes_one_row_for_each_epoch(run: Run) -> None:
    model = run.distribute(_model())
    path = run.folder / "log.csv"
    _fit(run, model, 3, [callbacks.CSVLogger(str(path))])
    run.barrier()
    with path.open() as file:
        rows = list(csv.DictReader(file))
    run.keep("rows", {name: [float(row[name]) for row in rows] for name in rows[0]})


@equals_plain_keras
def best_checkpoint_and_saved_files(run: Run) -> None:
    """`../test_files.py` loads them where Paceline is not installed."""
    model = run.distribute(_model(0.9))
    best = callbacks.ModelCheckpoint(str(run.folder / "best.keras"), monitor="val_loss", save_best_only=True)
    each = callbacks.ModelCheckpoint(str(run.folder / "epoch-{epoch}.weights.h5"), save_weights_only=True)
    _fit(run, model, 4, [best, each])
    model.save(run.folder / "last.keras")
    model.save_weights(run.folder / "last.weights.h5")
    run.barrier()
    run.keep("best", best.best)
    run.keep("files", sorted(path.name for path in run.folder.iterdir()))
    run.predict(model, features(5))


class Board(callbacks.TensorBoard):
    """Writes numbers by TensorFlow's own operation, for which TensorBoard's package need not be installed."""

    @property
    def summary(self) -> Any:
        def scalar(name: str, data: Any, step: Any) -> None:
            tf.summary.write(name, tf.cast(data, tf.float32), step)

        return types.SimpleNamespace(
            create_file_writer=tf.summary.create_file_writer,
            record_if=tf.summary.record_if,
            scalar=scalar,
            write=tf.summary.write,
            experimental=tf.summary.experimental,
        )


@equals_plain_keras
def tensorboard_writes_one_file_of_events(run: Run) -> None:
    model = run.distribute(_model())
    folder = run.folder / "board"
    _fit(run, model, 2, [Board(str(folder), update_freq=2)])
    run.barrier()
    names = sorted(path.parent.name for path in folder.rglob("*") if path.is_file())
    run.keep("folders", names)
    assert names == ["train", "validation"]


class Everything(callbacks.Callback):
    """Notes the logs of every method that gets some."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, float]]] = []

    def _note(self, name: str, logs: Any) -> None:
        self.seen.append((name, {key: float(value) for key, value in (logs or {}).items()}))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note(f"batch {batch}", logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._note(f"epoch {epoch}", logs)

    def on_train_end(self, logs: Any = None) -> None:
        self._note("end", logs)

    def on_test_end(self, logs: Any = None) -> None:
        self._note("test", logs)


@equals_plain_keras
def logs_of_every_batch_and_epoch(run: Run) -> None:
    model = run.distribute(_model())
    noted = Everything()
    _fit(run, model, 2, [noted], initial_epoch=1)
    _fit(run, model, 2, [noted])
    run.keep("order", [name for name, _ in noted.seen])
    run.keep("logs", {f"{number}": logs for number, (_, logs) in enumerate(noted.seen)})


@case(one=1e-5)
def weights_that_a_callback_changes_on_every_rank(run: Run) -> None:
    model = run.distribute(_model())

    class Halve(callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.set_weights([0.5 * np.asarray(weight) for weight in self.model.get_weights()])

    _fit(run, model, 3, [Halve()])
    run.keep_weights(model)
