"""Masks: losses that divide by the number of elements that count, which only the data tell. Next file: `layers.py`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

from numerics.catalogue.data import labels, sequences
from numerics.catalogue.registry import Run, equals_plain_keras

ROWS = 17
LENGTH = 5


def _labels(seed: int = 21) -> np.ndarray:
    return labels(ROWS * LENGTH, seed=seed).reshape(ROWS, LENGTH)


def _weights(seed: int = 22) -> np.ndarray:
    source = np.random.default_rng(seed)
    return (source.exponential(size=(ROWS, LENGTH)) * (source.random((ROWS, LENGTH)) > 0.2)).astype(np.float32)


def _loss(reduction: str) -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


@equals_plain_keras
def masked_sequences(run: Run) -> None:
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(11, 4, mask_zero=True),
            layers.GRU(4, return_sequences=True, reset_after=True),
            layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), _loss("sum_over_batch_size"), metrics=["accuracy"])
    model = run.distribute(model)
    run.fit(model, sequences(ROWS), _labels(), batch_size=8, epochs=2, validation_data=(sequences(ROWS), _labels(23)))
    run.keep_weights(model)


@equals_plain_keras
def mask_that_ends_in_one_state(run: Run) -> None:
    """The mask is used up inside the model, and each row has a weight."""
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(11, 4, mask_zero=True),
            layers.SimpleRNN(4),
            layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), _loss("sum_over_batch_size"), weighted_metrics=["accuracy"])
    model = run.distribute(model)
    run.fit(model, sequences(ROWS), labels(ROWS), sample_weight=_weights()[:, 0], batch_size=8, epochs=2)
    run.keep_weights(model)


def _two_masks(first: str, second: str) -> keras.Model:
    entries = [keras.Input((LENGTH,), dtype="int32") for _ in range(2)]
    outputs = [layers.Dense(3)(layers.Embedding(11, 4, mask_zero=True)(entry)) for entry in entries]
    model = keras.Model(entries, outputs)
    model.compile(
        keras.optimizers.SGD(0.1),
        loss=[_loss(first), _loss(second)],
        loss_weights=[0.3, 0.7],
        metrics=[["accuracy"], []],
        weighted_metrics=[[], ["accuracy"]],
    )
    return model


def _fit_two_masks(run: Run, model: keras.Model, sample_weight: Any) -> None:
    x = [sequences(ROWS), sequences(ROWS, seed=24)]
    y = [_labels(), _labels(25)]
    run.fit(model, x, y, sample_weight=sample_weight, batch_size=8, epochs=2)
    run.evaluate(model, x, y, sample_weight=sample_weight, batch_size=8)
    run.keep_weights(model)


@equals_plain_keras
def two_outputs_with_different_masks(run: Run) -> None:
    model = run.distribute(_two_masks("sum_over_batch_size", "mean_with_sample_weight"))
    _fit_two_masks(run, model, None)


@equals_plain_keras
def two_outputs_with_different_masks_and_weights(run: Run) -> None:
    model = run.distribute(_two_masks("mean_with_sample_weight", "sum_over_batch_size"))
    _fit_two_masks(run, model, [_weights(), _weights(26)])


@equals_plain_keras
def masked_sum(run: Run) -> None:
    model = run.distribute(_two_masks("sum", "sum"))
    _fit_two_masks(run, model, [_weights(), _weights(26)])
