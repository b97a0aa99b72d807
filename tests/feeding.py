"""What plain Keras feeds its train function, and what Paceline feeds, in one form that can be compared."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from paceline.data.protocols import GlobalBatches
from paceline.keras.datasets import make_batches

ignore_short_epochs = pytest.mark.filterwarnings("ignore:the data ended", "ignore:Your input ran out of data")


def plain(structure: Any) -> Any:
    """Nested lists, with the type of each leaf."""
    return keras.tree.map_structure(lambda leaf: None if leaf is None else _plain_leaf(leaf), structure)


def _plain_leaf(leaf: Any) -> str:
    if isinstance(leaf, tf.RaggedTensor):
        return f"ragged {leaf.dtype.name} {leaf.to_list()}"
    if isinstance(leaf, tf.SparseTensor):
        leaf = tf.sparse.to_dense(leaf)
    array = np.asarray(leaf)
    return f"{array.dtype.name} {array.tolist()}"


FEEDS_AS_TODAY = hasattr(TFEpochIterator, "reset")
"""Whether this Keras goes over data in `steps_per_epoch` by the rule that Paceline has for all versions. By the older
one, a pass that ends with an epoch is followed by an empty epoch, and evaluations go on where the last one stopped."""


def kerass_epochs(num_epochs: int, *, evaluate: bool = False, **arguments: Any) -> list[list[Any]]:
    """What plain Keras feeds its train function. Skips the test where an older Keras has another rule."""
    if arguments.get("steps_per_epoch") and not FEEDS_AS_TODAY:
        pytest.skip("an older rule for steps_per_epoch")
    iterator = TFEpochIterator(distribute_strategy=tf.distribute.get_strategy(), steps_per_execution=1, **arguments)
    if FEEDS_AS_TODAY:
        iterator.reset()
    epochs: list[list[Any]] = []
    for _ in range(num_epochs):
        if evaluate and FEEDS_AS_TODAY:
            iterator.reset()
        steps: list[Any] = []
        with iterator.catch_stop_iteration():
            for *_, batches in iterator if FEEDS_AS_TODAY else iterator.enumerate_epoch():
                steps.append(plain(keras.utils.unpack_x_y_sample_weight(next(batches))))
        epochs.append(steps)
    return epochs


def epoch_of(batches: GlobalBatches, epoch: int, first_step: int = 0) -> list[Any]:
    batches.begin_epoch(epoch, first_step)
    steps: list[Any] = []
    while (batch := batches.batch(first_step + len(steps))) is not None:
        steps.append(plain(batch.take(0, batch.num_samples)))
    return steps


def our_epochs(num_epochs: int, **arguments: Any) -> list[list[Any]]:
    batches = make_batches(**{"purpose": "fit", "seed": 1, **arguments})
    epochs = [epoch_of(batches, epoch) for epoch in range(num_epochs)]
    batches.close()
    return epochs


def first_batch(x: Any) -> Any:
    batches = make_batches(x, purpose="fit", seed=1)
    batches.begin_epoch(0)
    return batches.batch(0)


def numbers(count: int = 12) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((np.arange(count, dtype=np.float64), np.arange(count) % 3))
