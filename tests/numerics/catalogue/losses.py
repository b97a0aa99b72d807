"""Losses: whatever they divide by, the sum over all shares is what one process has. Next file: `masks.py`."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from numerics.catalogue.data import dense, features, labels, targets, weights
from numerics.catalogue.registry import Run, equals_plain_keras

ROWS = 17  # with batches of 8: two whole ones, and one of a single row


def _reduction(run: Run, reduction: str | None) -> None:
    """Without and with sample weights."""
    for sample_weight in (None, weights(ROWS)):
        model = dense()
        model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError(reduction=reduction))
        model = run.distribute(model)
        run.fit(model, features(ROWS), targets(ROWS), sample_weight=sample_weight, batch_size=8, epochs=2)
        run.keep_weights(model)
    run.evaluate(model, features(ROWS), targets(ROWS), sample_weight=weights(ROWS, seed=9), batch_size=8)


@equals_plain_keras
def reduction_sum_over_batch_size(run: Run) -> None:
    _reduction(run, "sum_over_batch_size")


@equals_plain_keras
def reduction_sum(run: Run) -> None:
    _reduction(run, "sum")


@equals_plain_keras
def reduction_mean(run: Run) -> None:
    _reduction(run, "mean")


@equals_plain_keras
def reduction_mean_with_sample_weight(run: Run) -> None:
    _reduction(run, "mean_with_sample_weight")


@equals_plain_keras
def reduction_none(run: Run) -> None:
    _reduction(run, None)


@equals_plain_keras
def class_weight(run: Run) -> None:
    model = dense(outputs=3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    model = run.distribute(model)
    run.fit(model, features(ROWS), labels(ROWS), class_weight={0: 1.0, 1: 5.0}, batch_size=8, epochs=2)
    run.keep_weights(model)


@equals_plain_keras
def class_weight_of_one_hot_targets_in_a_loss_over_weights(run: Run) -> None:
    model = dense(outputs=3)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.SGD(0.1), loss)
    model = run.distribute(model)
    one_hot = keras.utils.to_categorical(labels(ROWS), 3)
    run.fit(model, features(ROWS), one_hot, class_weight={0: 0.0, 1: 5.0, 2: 0.5}, batch_size=8, epochs=2)
    run.keep_weights(model)


def _two_heads() -> tuple[dict[str, Any], dict[str, Any]]:
    """Dictionaries of inputs and outputs."""
    inputs = {"left": keras.Input((6,), name="left"), "right": keras.Input((4,), name="right")}
    hidden = layers.Dense(5, activation="tanh")(layers.Concatenate()([inputs["left"], inputs["right"]]))
    return inputs, {"size": layers.Dense(2, name="size")(hidden), "kind": layers.Dense(3, name="kind")(hidden)}


@equals_plain_keras
def dictionaries_of_inputs_and_outputs_with_losses_weights_and_metrics(run: Run) -> None:
    model = keras.Model(*_two_heads())
    model.compile(
        keras.optimizers.Adam(0.01),
        loss={"size": "mse", "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")},
        loss_weights={"size": 0.7, "kind": 0.05},
        metrics={"size": ["mae"], "kind": ["accuracy"]},
        weighted_metrics={"size": ["mse"]},
    )
    model = run.distribute(model)
    x = {"left": features(ROWS), "right": features(ROWS, 4, seed=11)}
    y = {"size": targets(ROWS), "kind": labels(ROWS)}
    sample_weight = {"size": weights(ROWS), "kind": weights(ROWS, seed=12)}
    run.fit(model, x, y, sample_weight=sample_weight, batch_size=8, epochs=2, validation_data=(x, y, sample_weight))
    run.predict(model, x, batch_size=8)
    run.keep_weights(model)


@equals_plain_keras
def lists_of_outputs_of_which_one_has_no_loss(run: Run) -> None:
    entry = keras.Input((6,))
    hidden = layers.Dense(5, activation="tanh")(entry)
    model = keras.Model(entry, [layers.Dense(2)(hidden), layers.Dense(1)(hidden), layers.Dense(3)(hidden)])
    model.compile(keras.optimizers.SGD(0.05), loss=["mse", None, "mae"], loss_weights=[1.0, None, 0.3])
    model = run.distribute(model)
    y = [targets(ROWS), targets(ROWS, 1), targets(ROWS, 3)]
    run.fit(model, features(ROWS), y, batch_size=8, epochs=2)
    run.keep_weights(model)


@equals_plain_keras
def nested_outputs(run: Run) -> None:
    entry = keras.Input((6,))
    hidden = layers.Dense(5, activation="tanh")(entry)
    outputs = {"pair": (layers.Dense(2)(hidden), layers.Dense(1)(hidden)), "single": layers.Dense(3)(hidden)}
    model = keras.Model(entry, outputs)
    model.compile(keras.optimizers.SGD(0.05), loss={"pair": ("mse", "mae"), "single": "mse"})
    model = run.distribute(model)
    y = {"pair": (targets(ROWS), targets(ROWS, 1)), "single": targets(ROWS, 3)}
    run.fit(model, features(ROWS), y, batch_size=8, epochs=2)
    run.predict(model, features(ROWS), batch_size=5)
    run.keep_weights(model)


@equals_plain_keras
def regularizers_count_once(run: Run) -> None:
    model = dense(kernel_regularizer=keras.regularizers.L1L2(0.02, 0.03), bias_regularizer="l2")
    model.compile(keras.optimizers.SGD(0.05), keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    model = run.distribute(model)
    run.fit(model, features(ROWS), targets(ROWS), sample_weight=weights(ROWS), batch_size=8, epochs=2)
    run.evaluate(model, features(ROWS), targets(ROWS), batch_size=8)
    run.keep_weights(model)


class Penalty(layers.Layer):
    """A loss of its own, a mean over the batch."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


@equals_plain_keras
def added_losses_and_activity_regularizers(run: Run) -> None:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(5, activation="tanh", activity_regularizer=keras.regularizers.L2(0.1)),
            Penalty(),
            layers.Dense(2),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model = run.distribute(model)
    run.fit(model, features(ROWS), targets(ROWS), batch_size=8, epochs=2)
    run.evaluate(model, features(ROWS), targets(ROWS), batch_size=8)
    run.keep_weights(model)
