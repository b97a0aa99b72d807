"""The script of the jobs that go wrong: what ranks do that does not fit together, and what each is told.

    python -m paceline run -n 2 tests/numerics/doors.py OUT together
    python -m paceline run -n 2 tests/numerics/doors.py OUT models

"together" walks through many doors in one job: all ranks are refused alike, and go on to the next. The other names
are jobs of their own, which must fail.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import paceline as pl
from paceline.errors import UserError

X = np.linspace(-1.0, 1.0, 36, dtype=np.float32).reshape(12, 3)
Y = np.linspace(0.0, 1.0, 24, dtype=np.float32).reshape(12, 2)


def simple(**options: Any) -> keras.Model:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse", **options)
    return model


def other_epochs() -> None:
    pl.distribute(simple()).fit(X, Y, epochs=1 + pl.rank(), verbose=0)


def validation_on_rank_zero_only() -> None:
    pl.distribute(simple()).fit(X, Y, verbose=0, validation_data=(X, Y) if pl.rank() == 0 else None)


def other_sizes_of_data() -> None:
    rows = 12 - pl.rank()
    pl.distribute(simple()).fit(X[:rows], Y[:rows], verbose=0)


def other_calls() -> None:
    model = pl.distribute(simple())
    if pl.rank() == 0:
        model.fit(X, Y, verbose=0)
    else:
        model.evaluate(X, Y, verbose=0)


def other_optimizer() -> None:
    model = simple()
    if pl.rank() == 1:
        model.compile("adam", "mse")
    pl.distribute(model).fit(X, Y, verbose=0)


def other_loss() -> None:
    model = simple()
    if pl.rank() == 1:
        model.compile(keras.optimizers.SGD(0.1), keras.losses.MeanAbsoluteError())
    pl.distribute(model).fit(X, Y, verbose=0)


def streams_in_other_orders() -> None:
    samples = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(12, seed=pl.rank() + 1).batch(4)
    pl.distribute(simple()).fit(samples, verbose=0)


def learning_rate_changed_on_rank_zero_only() -> None:
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.5)
    pl.distribute(simple()).fit(X, Y, epochs=3, verbose=0, callbacks=[schedule] if pl.rank() == 0 else [])


class OwnTrainStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def own_train_step() -> None:
    pl.distribute(OwnTrainStep([keras.Input((3,)), layers.Dense(2)]))


def backup_and_restore() -> None:
    pl.distribute(simple()).fit(X, Y, verbose=0, callbacks=[keras.callbacks.BackupAndRestore("never-written")])


def distributed_twice() -> None:
    pl.distribute(pl.distribute(simple()))


def not_a_model() -> None:
    pl.distribute(layers.Dense(2))  # type: ignore[type-var]


def no_data() -> None:
    pl.distribute(simple()).fit(X[:0], Y[:0], verbose=0)


def synchronized_statistics_in_xla() -> None:
    model = keras.Sequential([keras.Input((3,)), layers.BatchNormalization(synchronized=True), layers.Dense(2)])
    model.compile("sgd", "mse", jit_compile=True)
    pl.distribute(model).fit(X, Y, verbose=0)


def weights_and_class_weights() -> None:
    model = pl.distribute(simple())
    model.train_on_batch(X, Y, sample_weight=np.ones(12, np.float32), class_weight={0: 1.0})


TOGETHER: tuple[Callable[[], None], ...] = (
    other_epochs,
    validation_on_rank_zero_only,
    other_sizes_of_data,
    other_calls,
    other_optimizer,
    other_loss,
    streams_in_other_orders,
    learning_rate_changed_on_rank_zero_only,
    own_train_step,
    backup_and_restore,
    distributed_twice,
    not_a_model,
    no_data,
    synchronized_statistics_in_xla,
    weights_and_class_weights,
)


def together(out: Path) -> None:
    for door in TOGETHER:
        try:
            door()
            told = "nothing"
        except UserError as error:
            told = f"{type(error).__name__}: {error}"
        (out / f"{door.__name__}.rank{pl.rank()}").write_text(told)
    model = pl.distribute(simple())  # after all that, the job is as good as new
    model.fit(X, Y, verbose=0)
    (out / f"after.rank{pl.rank()}").write_text("trained")


def models(out: Path) -> None:
    """Rank 1's model has its layers in another order, of another width and another type."""
    first, second = layers.Dense(4, name="first"), layers.Dense(3, name="second")
    if pl.rank() == 1:
        first, second = layers.Dense(3, name="second"), layers.Dense(5, name="first")
    last = layers.Dense(2, name="last", dtype="float64" if pl.rank() == 1 else "float32")
    model = keras.Sequential([keras.Input((3,)), first, second, last])
    model.compile("sgd", "mse")
    pl.distribute(model).fit(X, Y, verbose=0)


def early(out: Path) -> None:
    """Rank 1's script ends while rank 0 still trains."""
    model = pl.distribute(simple())
    model.fit(X, Y, verbose=0)
    if pl.rank() == 0:
        model.fit(X, Y, verbose=0)


if __name__ == "__main__":
    {"together": together, "models": models, "early": early}[sys.argv[2]](Path(sys.argv[1]))
