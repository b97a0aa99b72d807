"""Layers that look at the batch, draw random numbers, or have sparse, missing or frozen gradients.

Next file: `precision.py`.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

from numerics.catalogue.data import REMAINDERS, dense, features, images, labels, targets
from numerics.catalogue.registry import Run, equals_one_worker, equals_plain_keras

# ---------------------------------------------------------------------------------------------- the batch's statistics


def convolutional(**options: Any) -> keras.Model:
    """A small convolutional network with BatchNormalization."""
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 3, activation="tanh"),
            layers.BatchNormalization(momentum=0.7, **options),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def _fit_images(run: Run, model: keras.Model) -> None:
    for rows, batch in REMAINDERS:
        run.fit(model, images(rows), labels(rows), batch_size=batch, epochs=1)
    run.evaluate(model, images(13), labels(13), batch_size=8)
    run.keep_weights(model)


@equals_one_worker
def batch_normalization_of_each_microbatch(run: Run) -> None:
    model = convolutional()
    model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    _fit_images(run, run.distribute(model, microbatch=4))


@equals_plain_keras
def synchronized_batch_normalization(run: Run) -> None:
    """Last batches of one row, and batches with fewer rows than workers, whose shares are empty."""
    model = convolutional(synchronized=True)
    model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model = run.distribute(model)
    _fit_images(run, model)
    run.fit(model, images(2), labels(2), batch_size=2, epochs=2)
    run.keep_weights(model)


@equals_plain_keras
def synchronized_batch_normalization_frozen_then_not(run: Run) -> None:
    model = convolutional(synchronized=True)
    for trainable in (False, True):
        model.layers[1].trainable = trainable
        model.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        if not trainable:
            model = run.distribute(model)
        run.fit(model, images(9), labels(9), batch_size=8, epochs=1)
    run.keep_weights(model)


# ---------------------------------------------------------------------------------------------------- random numbers


def _noisy() -> keras.Model:
    """Two inputs go through the same noisy layers."""
    noise = keras.Sequential([layers.SpatialDropout1D(0.3), layers.GaussianNoise(0.2), layers.Dropout(0.4)])
    entries = [keras.Input((5, 4)) for _ in range(2)]
    joined = layers.Concatenate()([layers.Flatten()(noise(entry)) for entry in entries])
    return keras.Model(entries, layers.Dense(2)(layers.Dropout(0.2)(joined)))


@equals_one_worker
def random_layers_draw_for_the_microbatch(run: Run) -> None:
    model = _noisy()
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model = run.distribute(model, microbatch=4)
    source = np.random.default_rng(31)
    x = [source.normal(size=(31, 5, 4)).astype(np.float32) for _ in range(2)]
    run.fit(model, x, targets(31), batch_size=8, epochs=2, validation_split=0.2)
    run.keep_weights(model)


class AlwaysDropout(layers.Layer):
    """Drops in inference too."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = layers.Dropout(0.5)

    def call(self, inputs: Any) -> Any:
        return self.dropout(inputs, training=True)


@equals_one_worker
def random_layers_that_are_active_in_inference(run: Run) -> None:
    model = keras.Sequential([keras.Input((6,)), AlwaysDropout(), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model = run.distribute(model, microbatch=3)
    run.fit(model, features(9), targets(9), batch_size=8, epochs=1, validation_data=(features(9), targets(9)))
    run.evaluate(model, features(9), targets(9), batch_size=8)
    first = run.predict(model, features(9), batch_size=8)
    second = run.predict(model, features(9), batch_size=8)
    assert np.any(first != second), "each call draws anew"
    run.keep_weights(model)


# ------------------------------------------------------------------------------------------------- unusual gradients


def _few_ids(rows: int, seed: int) -> np.ndarray:
    """Of 1,000 ids, a dozen; many of them in every batch."""
    return np.random.default_rng(seed).choice([0, 1, 5, 77, 400, 401, 402, 900, 995, 998, 999, 3], size=(rows, 4))


class DenseEmbedding(layers.Embedding):
    """Has a dense gradient. For plain Keras, whose optimizers treat each occurrence of an id in a batch as a gradient
    of its own: Adam adds up their squares, where it squares the sum of a dense gradient, and norms likewise. What we
    promise is the dense result."""

    def call(self, inputs: Any) -> Any:
        return keras.ops.take(self.embeddings * 1.0, inputs, axis=0)


def _table(run: Run, rows: int, width: int) -> layers.Embedding:
    return (DenseEmbedding if run.plain else layers.Embedding)(rows, width, name="embedding")


def _embedding(run: Run, optimizer: keras.optimizers.Optimizer) -> keras.Model:
    """One table, used for two inputs."""
    table = _table(run, 1000, 3)
    entries = [keras.Input((4,), dtype="int32") for _ in range(2)]
    joined = layers.Concatenate()([layers.Flatten()(table(entry)) for entry in entries])
    model = keras.Model(entries, layers.Dense(2)(joined))
    model.compile(optimizer, "mse")
    return model


def _fit_embedding(run: Run, optimizer: keras.optimizers.Optimizer) -> None:
    model = run.distribute(_embedding(run, optimizer))
    for rows, batch in ((31, 8), (9, 8)):
        run.fit(model, [_few_ids(rows, 1), _few_ids(rows, 2)], targets(rows), batch_size=batch, epochs=2)
    run.keep_weights(model)


@equals_plain_keras
def sparse_gradients_with_sgd(run: Run) -> None:
    _fit_embedding(run, keras.optimizers.SGD(0.3))


@equals_plain_keras
def sparse_gradients_with_momentum(run: Run) -> None:
    _fit_embedding(run, keras.optimizers.SGD(0.1, momentum=0.9))


@equals_plain_keras
def sparse_gradients_with_adam(run: Run) -> None:
    _fit_embedding(run, keras.optimizers.Adam(0.01))


@equals_plain_keras
def sparse_gradients_with_clipping_of_the_global_norm(run: Run) -> None:
    _fit_embedding(run, keras.optimizers.SGD(0.3, global_clipnorm=0.05))


@equals_plain_keras
def sparse_gradients_of_a_small_table(run: Run) -> None:
    """More ids in a batch than rows in the table, which is then exchanged whole."""
    model = keras.Sequential([keras.Input((4,), dtype="int32"), _table(run, 3, 2), layers.Flatten(), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model = run.distribute(model)
    run.fit(model, labels(31 * 4).reshape(31, 4), targets(31, 1), batch_size=8, epochs=2)
    run.keep_weights(model)


class WithUnusedWeight(layers.Layer):
    """Has a trainable weight that no output depends on."""

    def build(self, input_shape: Any) -> None:
        self.unused = self.add_weight(shape=(3,), initializer="ones", name="unused")
        self.used = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="used")

    def call(self, inputs: Any) -> Any:
        return inputs * self.used


@equals_plain_keras
def weights_without_gradient(run: Run) -> None:
    model = keras.Sequential([keras.Input((6,)), WithUnusedWeight(), layers.Dense(2)])
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), "mse")
    model = run.distribute(model)
    run.fit(model, features(17), targets(17), batch_size=8, epochs=2)
    run.keep_weights(model)


@equals_plain_keras
def layers_frozen_then_trained_then_frozen(run: Run) -> None:
    model = dense()
    model.layers[0].trainable = False
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model = run.distribute(model)
    for trainable in (False, True, False):
        model.layers[0].trainable = trainable
        model.compile(keras.optimizers.Adam(0.01), "mse")
        run.fit(model, features(17), targets(17), batch_size=8, epochs=1)
        run.keep_weights(model)
