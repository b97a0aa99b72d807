"""Metrics: counted over all rows once, whatever they count. Next file: `callbacks.py`."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, metrics

from numerics.catalogue.data import dense, features, labels, targets, weights
from numerics.catalogue.registry import Run, equals_plain_keras

ROWS = 31


def _fit(run: Run, model: keras.Model, y: Any) -> None:
    model = run.distribute(model)
    options = {"sample_weight": weights(ROWS), "batch_size": 8}
    run.fit(model, features(ROWS), y, epochs=2, validation_data=(features(ROWS, seed=51), y), **options)
    run.evaluate(model, features(ROWS), y, **options)
    run.keep_weights(model)


@equals_plain_keras
def metrics_of_two_classes(run: Run) -> None:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1, activation="sigmoid")])
    names = [
        metrics.BinaryAccuracy(),
        metrics.AUC(),
        metrics.Precision(),
        metrics.Recall(),
        metrics.F1Score(threshold=0.4),
    ]
    weighted = [
        metrics.AUC(num_thresholds=20, name="weighted_auc"),
        metrics.FalsePositives(),
        metrics.BinaryCrossentropy(),
    ]
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=names, weighted_metrics=weighted)
    _fit(run, model, labels(ROWS, 2)[:, None].astype("float32"))


@equals_plain_keras
def metrics_of_several_classes(run: Run) -> None:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="softmax")])
    names = ["accuracy", metrics.SparseTopKCategoricalAccuracy(k=2), metrics.MeanIoU(4, sparse_y_pred=False)]
    weighted = ["accuracy", metrics.MeanIoU(4, sparse_y_pred=False, name="weighted_iou")]
    model.compile(
        keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=names, weighted_metrics=weighted
    )
    _fit(run, model, labels(ROWS, 4))


class Largest(metrics.Metric):
    """The mean of each row's largest output: a metric of one's own, which counts rows."""

    def __init__(self, name: str = "largest") -> None:
        super().__init__(name=name)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.rows = self.add_weight(name="rows", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        largest = keras.ops.max(y_pred, axis=-1)
        self.total.assign_add(keras.ops.sum(largest))
        self.rows.assign_add(keras.ops.cast(keras.ops.shape(largest)[0], "float32"))

    def result(self) -> Any:
        return self.total / self.rows

    def reset_state(self) -> None:
        self.total.assign(0.0)
        self.rows.assign(0.0)


class Smoothed(metrics.Metric):
    """An exponential average over batches, whose variable asks for the mean over replicas."""

    def __init__(self) -> None:
        super().__init__(name="smoothed")
        self.value = self.add_variable((), initializer="zeros", aggregation="mean", name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(0.9 * self.value + 0.1 * keras.ops.mean(y_pred))

    def result(self) -> Any:
        return 1.0 * self.value


class Watched(layers.Layer):
    """Notes the mean of its inputs: one number for each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = metrics.Mean(name="mean_input")

    def call(self, inputs: Any) -> Any:
        self.mean.update_state(keras.ops.mean(inputs))
        return inputs


def batch_error(y_true: Any, y_pred: Any) -> Any:
    """One number for the whole batch."""
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


@equals_plain_keras
def metrics_of_ones_own(run: Run) -> None:
    """Batches of 8, and a last one of 7, cut into shares of different size."""
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="tanh"), Watched(), layers.Dense(2)])
    names = [
        Largest(),
        Smoothed(),
        batch_error,
        metrics.RootMeanSquaredError(),
        metrics.R2Score(),
        metrics.CosineSimilarity(),
    ]
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=names)
    _fit(run, model, targets(ROWS))


@equals_plain_keras
def metrics_changed_by_compiling_again(run: Run) -> None:
    model = dense()
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(optimizer, "mse", metrics=["mae"])
    model = run.distribute(model)
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8)
    model.compile(optimizer, metrics=["mse", "cosine_similarity"])
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8)
    run.keep_weights(model)
