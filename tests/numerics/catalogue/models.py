"""Kinds of models, and several of them in one script. Next file: `bits.py`."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from numerics.catalogue.data import dense, features, labels, targets, weights
from numerics.catalogue.registry import Run, case, equals_one_worker, equals_plain_keras

ROWS = 17


@equals_plain_keras
def model_that_is_built_by_its_first_batch(run: Run) -> None:
    model = keras.Sequential([layers.Dense(5, activation="tanh"), layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model = run.distribute(model)
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8, epochs=2)
    run.keep("shape", str(model.input_shape))
    run.keep_weights(model)


class Twice(keras.Model):
    """A subclass with a `call` of its own, and layers that are made when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(6, activation="tanh")
        self.out = layers.Dense(2)

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = self.hidden(self.hidden(inputs))
        return self.out(hidden * 1.5 if training else hidden)


@equals_plain_keras
def subclass_with_its_own_call(run: Run) -> None:
    model = Twice()
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    model = run.distribute(model)
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8, epochs=2, validation_split=0.25)
    run.predict(model, features(5), batch_size=3)
    run.keep_weights(model)


class OwnLoss(Twice):
    """Computes its loss itself, and keeps a metric of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = keras.metrics.Mean(name="largest")

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        error = keras.ops.mean(keras.ops.square(y - y_pred), axis=-1)
        self.largest.update_state(keras.ops.max(y_pred, axis=-1))
        return keras.ops.mean(error + 0.1 * keras.ops.sum(keras.ops.square(x), axis=-1) * error)


@equals_plain_keras
def subclass_with_its_own_loss(run: Run) -> None:
    model = OwnLoss()
    model.compile(keras.optimizers.SGD(0.05))
    model = run.distribute(model)
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8, epochs=2)
    run.evaluate(model, features(ROWS), targets(ROWS), batch_size=8)
    run.keep_weights(model)


class OwnTest(Twice):
    """Tests in its own way: another error, one number for each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.error = keras.metrics.Mean(name="error")
        self.absolute = keras.metrics.MeanAbsoluteError(name="absolute")

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        y_pred = self(x, training=False)
        self.error.update_state(keras.ops.mean(keras.ops.square(y - y_pred)) * 2.0)
        self.absolute.update_state(y, y_pred)
        return {"error": self.error.result(), "absolute": self.absolute.result()}

    def predict_step(self, data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self(x, training=False) + 100.0


@equals_plain_keras
def subclass_with_its_own_steps_of_testing_and_predicting(run: Run) -> None:
    model = OwnTest()
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model = run.distribute(model)
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8, epochs=1)
    logs = model.evaluate(features(ROWS), targets(ROWS), batch_size=8, verbose=0, return_dict=True)
    run.keep("evaluate", {name: logs[name] for name in ("error", "absolute")})
    run.predict(model, features(ROWS), batch_size=8)


@equals_plain_keras
def two_models_that_train_against_each_other(run: Run) -> None:
    """A generator and a discriminator: two optimizers, and a frozen part."""
    critic = keras.Sequential([keras.Input((2,)), layers.Dense(5, activation="tanh"), layers.Dense(1)])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    critic.compile(keras.optimizers.Adam(0.01), loss)
    maker = keras.Sequential([keras.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(2)])
    critic.trainable = False
    both = keras.Sequential([keras.Input((3,)), maker, critic])
    both.compile(keras.optimizers.Adam(0.02), loss)
    critic, both = run.distribute(critic), run.distribute(both)
    for step in range(4):
        noise, real = features(9, 3, seed=step), targets(8, 2, seed=step)
        made = maker(noise).numpy()
        critic.trainable = True
        answers = np.concatenate([np.ones((8, 1)), np.zeros((9, 1))]).astype(np.float32)
        run.keep("critic", critic.train_on_batch(np.concatenate([real, made]), answers))
        critic.trainable = False
        run.keep("both", both.train_on_batch(noise, np.ones((9, 1), np.float32)))
    run.keep_weights(critic)
    run.keep_weights(both)


@equals_one_worker
def ranks_that_start_with_other_weights(run: Run) -> None:
    """Rank 0's are taken: weights, statistics and slots."""
    keras.utils.set_random_seed(100 + run.rank)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(5), layers.BatchNormalization(), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    model.optimizer.build(model.trainable_variables)
    for variable in [*model.layers[1].non_trainable_variables, *model.optimizer.variables[2:]]:
        variable.assign(np.full(variable.shape, 1.0 + run.rank, np.float32))
    model = run.distribute(model, microbatch=4)
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8, epochs=2)
    run.keep_weights(model)


@equals_plain_keras
def images_of_bytes(run: Run) -> None:
    model = keras.Sequential(
        [
            keras.Input((4, 4, 3), dtype="uint8"),
            layers.Rescaling(1.0 / 255),
            layers.Conv2D(2, 3, activation="tanh"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model = run.distribute(model)
    pixels = np.random.default_rng(71).integers(0, 256, size=(ROWS, 4, 4, 3), dtype=np.uint8)
    run.fit(model, pixels, labels(ROWS), batch_size=8, epochs=2)
    run.keep_weights(model)


@equals_plain_keras
def texts_as_inputs(run: Run) -> None:
    words = ["red", "green", "blue", "grey", "pink"]
    source = np.random.default_rng(72)
    texts = np.array([" ".join(source.choice(words, size=3)) for _ in range(ROWS)], dtype=object)
    vectorize = layers.TextVectorization(max_tokens=10, output_sequence_length=3)
    vectorize.adapt(texts)
    lookup = layers.StringLookup(vocabulary=words[:3])
    text, kind = keras.Input((), dtype="string"), keras.Input((1,), dtype="string")
    embedded = layers.Flatten()(layers.Embedding(10, 2)(vectorize(text)))
    kinds = layers.Flatten()(layers.Embedding(4, 2)(lookup(kind)))
    model = keras.Model([text, kind], layers.Dense(1)(layers.Concatenate()([embedded, kinds])))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model = run.distribute(model)
    samples = tf.data.Dataset.from_tensor_slices(
        ((texts.astype(str), source.choice(words, size=(ROWS, 1))), targets(ROWS, 1))
    )
    run.fit(model, samples.batch(8), epochs=2)
    run.keep_weights(model)


class Counting(layers.Layer):
    """Counts its calls in training, keeps a moving average of its inputs' mean, and has a table that never changes."""

    def build(self, input_shape: Any) -> None:
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")
        self.average = self.add_weight(shape=(), initializer="zeros", trainable=False, name="average")
        self.table = self.add_weight(shape=(3,), initializer="ones", trainable=False, name="table")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(1)
            self.average.assign(0.9 * self.average + 0.1 * keras.ops.mean(inputs))
        return inputs * self.table[0]


@equals_plain_keras
def layers_with_state_of_their_own(run: Run) -> None:
    model = keras.Sequential([keras.Input((6,)), Counting(), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model = run.distribute(model)
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8, epochs=2)
    run.evaluate(model, features(ROWS), targets(ROWS), batch_size=8)
    run.keep_weights(model)


@equals_plain_keras
def many_fits_of_one_model_with_other_shapes(run: Run) -> None:
    """Also other kinds of data: without weights, with weights, then without again."""
    model = dense()
    model.compile(keras.optimizers.SGD(0.02), keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    model = run.distribute(model)
    for rows, batch, weighted in ((5, 3, False), (16, 5, True), (7, 7, False), (16, 5, True)):
        sample_weight = weights(rows) if weighted else None
        run.fit(model, features(rows), targets(rows), sample_weight=sample_weight, batch_size=batch)
    run.keep_weights(model)


@equals_plain_keras
def sequences_of_changing_length(run: Run) -> None:
    """Every batch is padded to its own longest row."""
    model = keras.Sequential(
        [keras.Input((None,), dtype="int32"), layers.Embedding(11, 4, mask_zero=True), layers.Dense(3)]
    )
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model = run.distribute(model)
    source = np.random.default_rng(73)

    def rows() -> Any:
        for _ in range(ROWS):
            length = source.integers(1, 7)
            yield source.integers(1, 11, size=length), source.integers(0, 3, size=length)

    pairs = list(rows())
    kinds = (tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int32))
    samples = tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=kinds).padded_batch(8)
    # Where Keras does not know the length, it counts one step too many at each epoch's end.
    run.fit(model, samples.apply(tf.data.experimental.assert_cardinality(3)), epochs=2)
    run.keep_weights(model)


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@case()
def memory_stays_flat_over_two_hundred_epochs(run: Run) -> None:
    model = dense()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    model = run.distribute(model)
    noted: list[int] = []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: noted.append(_resident_bytes()))
    model.fit(features(9), targets(9), batch_size=8, epochs=200, verbose=0, callbacks=[note])
    grown = noted[-1] - noted[60]
    run.keep_own("grown", grown)
    assert grown < 2_000_000, f"{grown / 140:.0f} bytes for each epoch"
