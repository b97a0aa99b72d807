"""Optimizers: what they do to the reduced gradient, with batches that do not divide. Next file: `losses.py`."""

from __future__ import annotations

import keras
from keras import optimizers

from numerics.catalogue.data import REMAINDERS, dense, features, targets
from numerics.catalogue.registry import Run, equals_plain_keras


def _remainders(run: Run, optimizer: keras.optimizers.Optimizer) -> keras.Model:
    """Three fits of one model, each with a last batch of its own kind."""
    model = dense()
    model.compile(optimizer, "mse", metrics=["mae"])
    model = run.distribute(model)
    for rows, batch in REMAINDERS:
        run.fit(model, features(rows), targets(rows), batch_size=batch, epochs=2)
    run.keep_weights(model)
    return model


@equals_plain_keras
def sgd(run: Run) -> None:
    _remainders(run, optimizers.SGD(0.05))


@equals_plain_keras
def momentum(run: Run) -> None:
    _remainders(run, optimizers.SGD(0.02, momentum=0.9, nesterov=True))


@equals_plain_keras
def adam(run: Run) -> None:
    _remainders(run, optimizers.Adam(0.01))


@equals_plain_keras
def adamw(run: Run) -> None:
    _remainders(run, optimizers.AdamW(0.01, weight_decay=0.1))


@equals_plain_keras
def moving_average_of_weights(run: Run) -> None:
    _remainders(run, optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3))


@equals_plain_keras
def moving_average_taken_at_the_end(run: Run) -> None:
    model = _remainders(run, optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8))
    run.predict(model, features(7))


@equals_plain_keras
def clipnorm(run: Run) -> None:
    _remainders(run, optimizers.SGD(0.5, clipnorm=0.1))


@equals_plain_keras
def global_clipnorm(run: Run) -> None:
    _remainders(run, optimizers.Adam(0.01, global_clipnorm=0.05))


@equals_plain_keras
def clipvalue(run: Run) -> None:
    _remainders(run, optimizers.SGD(0.5, clipvalue=0.03))


@equals_plain_keras
def gradient_accumulation_that_does_not_divide_the_steps(run: Run) -> None:
    model = dense()
    model.compile(optimizers.Adam(0.01, gradient_accumulation_steps=3, global_clipnorm=0.1), "mse")
    model = run.distribute(model)
    run.fit(model, features(31), targets(31), batch_size=4, epochs=2)
    run.keep_weights(model)


@equals_plain_keras
def exponential_decay(run: Run) -> None:
    schedule = optimizers.schedules.ExponentialDecay(0.1, decay_steps=3, decay_rate=0.5, staircase=True)
    _remainders(run, optimizers.SGD(schedule))
