"""Number formats, and ways to run a step. Next file: `feeding.py`."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from numerics.catalogue.data import dense, features, labels, targets, weights
from numerics.catalogue.registry import Run, case, equals_plain_keras

ROWS = 17


@case(plain=5e-3, one=1e-5)
def mixed_float16(run: Run) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    model = dense()
    model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse", metrics=["mae"])
    model = run.distribute(model, microbatch=4)
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8, epochs=2)
    run.keep_weights(model)


@case(one=1e-5)
def mixed_float16_with_steps_that_overflow(run: Run) -> None:
    """The first loss scales make infinities, which all ranks must see alike: the step is left out, the scale halved.

    Plain Keras halves it once more here: the sum over the whole batch, in float16, is larger than a microbatch's.
    """
    keras.config.set_dtype_policy("mixed_float16")
    model = dense()
    inner = keras.optimizers.SGD(0.05, momentum=0.5)
    model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**23), "mse", metrics=["mae"])
    model = run.distribute(model, microbatch=4)
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8, epochs=4)
    run.keep("scale", model.optimizer.dynamic_scale.value)
    run.keep("steps", model.optimizer.inner_optimizer.iterations.value)
    run.keep_weights(model)
    skipped = 12 - int(model.optimizer.inner_optimizer.iterations.value)
    assert 0 < skipped < 12, f"{skipped} steps of 12 were left out"


@case(plain=5e-2, one=1e-5)
def mixed_bfloat16(run: Run) -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = dense()
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model = run.distribute(model, microbatch=4)
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8, epochs=2)
    run.keep_weights(model)


@case(plain=1e-12)
def float64(run: Run) -> None:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    entry = keras.Input((6,), dtype="float64")
    ids = keras.Input((2,), dtype="int32")
    joined = layers.Concatenate()([entry, layers.Flatten()(layers.Embedding(50, 3)(ids))])
    model = keras.Model([entry, ids], layers.Dense(2)(layers.Dense(5, activation="tanh")(joined)))
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    model = run.distribute(model)
    x = [features(ROWS).astype(np.float64), labels(2 * ROWS, 50).reshape(ROWS, 2)]
    run.fit(model, x, targets(ROWS).astype(np.float64), sample_weight=weights(ROWS), batch_size=8, epochs=2)
    run.keep_weights(model)


@equals_plain_keras
def compiled_by_xla(run: Run) -> None:
    model = keras.Sequential(
        [keras.Input((3,), dtype="int32"), layers.Embedding(20, 4), layers.Flatten(), layers.Dense(2)]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], jit_compile=True)
    assert model.jit_compile
    model = run.distribute(model)
    run.fit(model, labels(3 * ROWS, 20).reshape(ROWS, 3), targets(ROWS), batch_size=8, epochs=2)
    run.keep_weights(model)


@equals_plain_keras
def run_eagerly_with_several_outputs(run: Run) -> None:
    entry = keras.Input((6,))
    hidden = layers.Dense(4, activation="tanh")(entry)
    model = keras.Model(entry, [layers.Dense(2)(hidden), layers.Dense(1)(hidden)])
    model.compile(keras.optimizers.SGD(0.05), ["mse", "mae"], run_eagerly=True)
    model = run.distribute(model)
    y = [targets(ROWS), targets(ROWS, 1)]
    run.fit(model, features(ROWS), y, batch_size=8, epochs=2, validation_data=(features(ROWS), y))
    run.predict(model, features(ROWS), batch_size=8)
    run.keep_weights(model)


class NumbersOfBatches(keras.callbacks.Callback):
    """Notes which batches it was called for, and the loss that it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.losses: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        self.begun.append(batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        assert logs is not None
        self.ended.append(batch)
        self.losses.append(float(logs["loss"]))


@equals_plain_keras
def several_steps_in_one_execution(run: Run) -> None:
    model = dense()
    model.compile(keras.optimizers.SGD(0.05), "mse", steps_per_execution=3)
    model = run.distribute(model)
    noted = NumbersOfBatches()
    run.fit(model, features(31), targets(31), batch_size=4, epochs=2, callbacks=[noted])
    # Keras says that the last execution ended with batch 8, though there are eight batches, from 0.
    assert noted.ended == [2, 5, 8 if run.plain else 7] * 2
    run.keep("batches", {"begun": noted.begun, "losses": noted.losses})
    run.keep_weights(model)
