"""`BatchNormalization(synchronized=True)`: mean and variance over the whole global batch, across the workers.

Each such layer sums x, x^2 and the number of elements over its own rows; one all-reduce of these inside the forward
pass makes them the global batch's, and one more in the backward pass carries the gradient of the sums to everyone.
The members therefore run in step: each takes all its rows as one microbatch, and one without rows runs along with a
row that counts nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paceline.communication.protocols import Communicator
from paceline.errors import CommunicationError, ConfigError
from paceline.keras import seam


class SynchronizedMoments:
    """The statistics of one model's synchronized layers."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._communicator: Communicator | None = None
        self._present = 1.0
        self._lost: CommunicationError | None = None
        self._attached = False

    @property
    def active(self) -> bool:
        return any(_is_synchronized(layer) for layer in seam.all_layers(self._model))

    def attach(self) -> None:
        """Let the model's synchronized layers take their statistics from here. Once is enough."""
        if self._attached or not self.active:
            return
        if self._model.jit_compile:
            raise ConfigError(
                "BatchNormalization(synchronized=True) talks to the other workers inside the model, which "
                "jit_compile=True cannot do: compile the model with jit_compile=False"
            )
        for layer in seam.all_layers(self._model):
            if _is_synchronized(layer):
                seam.replace_moments(layer, lambda inputs, mask, layer=layer: self._moments(layer, inputs, mask))
        self._attached = True

    @contextlib.contextmanager
    def talking_through(self, communicator: Communicator, *, present: bool = True) -> Iterator[None]:
        """While the block runs, statistics are shared with this group. Raises the `CommunicationError` that cut the
        forward or backward pass, rather than the error that TensorFlow makes of it."""
        self._communicator, self._present, self._lost = communicator, float(present), None
        try:
            yield
        except tf.errors.OpError:
            if self._lost is not None:
                raise self._lost from None
            raise
        finally:
            self._communicator = None

    def _moments(self, layer: Any, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        axis = layer.axis % len(inputs.shape)
        others = [dimension for dimension in range(len(inputs.shape)) if dimension != axis]
        if mask is None:
            weights = tf.ones_like(inputs)
        else:
            weights = tf.cast(mask, inputs.dtype)[..., tf.newaxis] * tf.ones_like(inputs)
        width = inputs.shape[axis]
        count = tf.reduce_sum(weights, others)
        total = tf.reduce_sum(weights * inputs, others)
        squares = tf.reduce_sum(weights * tf.square(inputs), others)
        present = tf.numpy_function(lambda: np.float32(self._present), [], tf.float32, stateful=True)
        present = tf.cast(tf.reshape(present, []), inputs.dtype)
        sums = self._sum_over_group(tf.concat([count, total, squares], 0) * present)
        count, total, squares = tf.split(sums, [width, width, width])
        mean = tf.math.divide_no_nan(total, count)
        return mean, tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)

    def _sum_over_group(self, sums: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def all_reduced(values: tf.Tensor) -> tuple[tf.Tensor, Any]:
            return self._all_reduce(values), self._all_reduce

        return all_reduced(sums)

    def _all_reduce(self, values: tf.Tensor) -> tf.Tensor:
        reduced = tf.numpy_function(self._talk, [values], values.dtype, stateful=True)
        reduced.set_shape(values.shape)
        return reduced

    def _talk(self, values: np.ndarray) -> np.ndarray:
        if self._communicator is None:  # a plain call of the model, outside a round: this process's rows alone
            return values
        try:
            out = np.empty_like(values)
            self._communicator.all_reduce(np.ascontiguousarray(values), out)
            return out
        except CommunicationError as lost:
            self._lost = lost
            raise


def _is_synchronized(layer: Any) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization) and bool(getattr(layer, "synchronized", False))
