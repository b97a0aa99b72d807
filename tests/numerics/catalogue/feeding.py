"""Kinds of data and of calls. Next file: `metrics.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from numerics.catalogue.data import dense, features, targets, weights
from numerics.catalogue.registry import Run, equals_one_worker, equals_plain_keras

ROWS = 19  # with batches of 8: a last one of three rows


def _model() -> keras.Model:
    model = dense()
    model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse", metrics=["mae"])
    return model


@equals_one_worker
def arrays_shuffled_by_the_seed(run: Run) -> None:
    model = run.distribute(_model())
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8, epochs=3, shuffle=True)
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8, epochs=2, shuffle="batch")
    run.keep_weights(model)


@equals_plain_keras
def tf_data(run: Run) -> None:
    """With weights; batched already, batched by us, and without end."""
    model = run.distribute(_model())
    samples = tf.data.Dataset.from_tensor_slices((features(ROWS), targets(ROWS), weights(ROWS)))
    run.fit(model, samples.batch(8), epochs=2, validation_data=samples.batch(5))
    run.fit(model, samples.repeat().batch(8), epochs=2, steps_per_epoch=2)
    run.evaluate(model, samples.batch(4))
    run.predict(model, samples.map(lambda x, y, w: x).batch(4))
    run.keep_weights(model)


@equals_plain_keras
def tf_data_shuffled_with_a_seed(run: Run) -> None:
    model = run.distribute(_model())
    samples = tf.data.Dataset.from_tensor_slices((features(ROWS), targets(ROWS)))
    run.fit(model, samples.shuffle(ROWS, seed=5).batch(8), epochs=3)
    run.keep_weights(model)


class Numbered(keras.utils.PyDataset):
    """Batches of very different sizes."""

    bounds = (0, 8, 9, 16, 19)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> Any:
        rows = slice(self.bounds[index], self.bounds[index + 1])
        return features(ROWS)[rows], targets(ROWS)[rows], weights(ROWS)[rows]


@equals_plain_keras
def py_dataset(run: Run) -> None:
    model = run.distribute(_model())
    run.fit(model, Numbered(), epochs=2, validation_data=Numbered())
    run.evaluate(model, Numbered())
    run.keep_weights(model)


def _batches() -> Iterator[Any]:
    while True:
        for start in range(0, ROWS, 8):
            yield features(ROWS)[start : start + 8], targets(ROWS)[start : start + 8]


@equals_plain_keras
def generator(run: Run) -> None:
    model = run.distribute(_model())
    run.fit(model, _batches(), epochs=3, steps_per_epoch=2)
    run.evaluate(model, _batches(), steps=3)
    run.keep_weights(model)


@equals_plain_keras
def validation_split_and_frequency(run: Run) -> None:
    model = run.distribute(_model())
    x, y, sample_weight = features(ROWS), targets(ROWS), weights(ROWS)
    run.fit(model, x, y, sample_weight=sample_weight, batch_size=8, epochs=5, validation_split=0.3, validation_freq=2)
    run.fit(model, x, y, batch_size=8, epochs=3, validation_data=(x, y), validation_freq=[1, 3])
    run.keep_weights(model)


@equals_plain_keras
def validation_data_with_weights_and_rows_that_do_not_divide(run: Run) -> None:
    model = run.distribute(_model())
    validation = (features(13, seed=41), targets(13, seed=42), weights(13, seed=43))
    x, y = features(ROWS), targets(ROWS)
    run.fit(model, x, y, batch_size=8, epochs=2, validation_data=validation, validation_batch_size=6)
    run.fit(model, x, y, batch_size=8, epochs=2, validation_data=validation, validation_steps=2)
    for batch_size in (1, 4, 100):
        run.evaluate(model, *validation[:2], sample_weight=validation[2], batch_size=batch_size)
    run.keep_weights(model)


@equals_plain_keras
def calls_on_one_batch(run: Run) -> None:
    model = run.distribute(_model())
    for rows in (9, 8, 1):
        x, y = features(rows, seed=rows), targets(rows, seed=rows)
        run.keep("train", model.train_on_batch(x, y))
        run.keep("weighted", model.train_on_batch(x, y, sample_weight=weights(rows, seed=3), return_dict=True))
        run.keep("test", model.test_on_batch(x, y, return_dict=True))
        run.keep("predict", model.predict_on_batch(x))
    run.keep_weights(model)


@equals_plain_keras
def predictions_with_several_outputs_and_uneven_rows(run: Run) -> None:
    """Also of a model that was never compiled."""
    entry = keras.Input((6,))
    outputs = {"wide": layers.Dense(3)(entry), "pair": [layers.Dense(1)(entry), layers.Reshape((2, 3))(entry)]}
    model = run.distribute(keras.Model(entry, outputs))
    for rows, batch_size in ((19, 8), (3, 8), (1, 1)):
        run.predict(model, features(rows), batch_size=batch_size)
    run.keep("one batch", model.predict_on_batch(features(5)))


@equals_plain_keras
def microbatches_that_do_not_divide_anything(run: Run) -> None:
    model = run.distribute(_model(), microbatch=3)
    run.fit(model, features(ROWS), targets(ROWS), sample_weight=weights(ROWS), batch_size=8, epochs=2)
    run.evaluate(model, features(ROWS), targets(ROWS), batch_size=7)
    run.predict(model, features(ROWS), batch_size=7)
    run.keep_weights(model)


class Sevens(keras.callbacks.Callback):
    """Stops an evaluation and a prediction after some batches."""

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_evaluating = True

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_predicting = True


@equals_one_worker
def evaluations_and_predictions_that_rank_zero_stops(run: Run) -> None:
    model = run.distribute(_model())
    callbacks = [Sevens()] if run.rank == 0 else []
    run.evaluate(model, features(50), targets(50), batch_size=2, callbacks=callbacks)
    outputs = run.predict(model, features(50), batch_size=2, callbacks=callbacks)
    assert len(outputs) < 50


@equals_plain_keras
def arrays_of_many_kinds(run: Run) -> None:
    """Lists of arrays, tensors, float64 and whole numbers as inputs."""
    entries = [keras.Input((2,)), keras.Input((2,)), keras.Input((2,))]
    model = keras.Model(entries, layers.Dense(1)(layers.Concatenate()(entries)))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model = run.distribute(model)
    source = np.random.default_rng(44)
    x = [source.normal(size=(ROWS, 2)), tf.constant(features(ROWS, 2)), source.integers(0, 3, size=(ROWS, 2))]
    run.fit(model, x, tf.constant(targets(ROWS, 1)), batch_size=8, epochs=2)
    run.keep_weights(model)
