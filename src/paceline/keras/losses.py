"""What each loss divides by, and how a microbatch's loss is corrected so that the sum over microbatches is exact.

Keras divides a batch's loss by its number of samples, by the sum of its sample weights, by the number of its unmasked
elements, or not at all. Contributions are weighted by `share` = samples here / samples of the global batch; that alone
is right for the first kind. The others need a factor:

    "sum", None          1 / share                      (nothing is divided, so nothing is to be weighted)
    weights or masks     D_i / (share_i * sum_i D_i)    (D_i: what the loss divides by here; see all_reduce.py)
"""

from __future__ import annotations

from typing import Any, Literal

import keras
import tensorflow as tf

from paceline.keras import seam

Kind = Literal["samples", "nothing", "measured"]


class Corrections:
    """The corrections of one model's losses, used while its step is traced.

    `factors` and `share` are the tensors of the step that is being traced.

    Attributes:
        needs_divisors: some trace has met a loss whose divisor only the data tell.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self.needs_divisors = False

    @property
    def num_losses(self) -> int:
        return len(seam.flat_losses(self._model))

    def correct(self, share: tf.Tensor, factors: tf.Tensor) -> Any:
        """A block in which the model's losses are corrected."""
        return seam.replaced_losses(self._model, lambda number, loss: _Corrected(self, number, loss, share, factors))

    def measure(self, divisors: dict[int, tf.Tensor]) -> Any:
        """A block in which the model's losses note what they divide by."""
        return seam.replaced_losses(self._model, lambda number, loss: _Measuring(self, number, loss, divisors))


class _Corrected:
    def __init__(self, owner: Corrections, number: int, loss: Any, share: tf.Tensor, factors: tf.Tensor) -> None:
        self._owner, self._number, self._loss, self._share, self._factors = owner, number, loss, share, factors

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        value = self._loss(y_true, y_pred, sample_weight)
        kind = kind_of(self._loss, y_pred, sample_weight)
        if kind == "samples":
            return value
        if kind == "nothing":
            return tf.math.divide_no_nan(value, tf.cast(self._share, value.dtype))
        self._owner.needs_divisors = True
        return value * tf.cast(self._factors[self._number], value.dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loss, name)


class _Measuring:
    def __init__(self, owner: Corrections, number: int, loss: Any, divisors: dict[int, tf.Tensor]) -> None:
        self._owner, self._number, self._loss, self._divisors = owner, number, loss, divisors

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if kind_of(self._loss, y_pred, sample_weight) == "measured":
            self._divisors[self._number] = divisor_of(self._loss, y_pred, sample_weight)
        return self._loss(y_true, y_pred, sample_weight)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loss, name)


def kind_of(loss: Any, y_pred: Any, sample_weight: Any) -> Kind:
    """What `loss` divides by, as far as it can be told without data."""
    reduction = getattr(loss, "reduction", "sum_over_batch_size")
    if reduction in (None, "none", "sum"):
        return "nothing"
    masked = getattr(y_pred, "_keras_mask", None) is not None
    weighted = reduction == "mean_with_sample_weight" and sample_weight is not None
    return "measured" if masked or weighted else "samples"


def divisor_of(loss: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
    """The number by which `loss` divides on this batch: of unmasked elements, or the sum of weights (unmasked)."""
    mask = getattr(y_pred, "_keras_mask", None)
    if loss.reduction != "mean_with_sample_weight":
        return tf.reduce_sum(tf.cast(mask, tf.float64))
    weights = tf.cast(sample_weight, tf.float64) if sample_weight is not None else None
    if mask is None:
        return tf.reduce_sum(weights)
    mask = tf.cast(mask, tf.float64)
    if weights is None:
        return tf.reduce_sum(mask)
    while len(weights.shape) < len(mask.shape):
        weights = weights[..., tf.newaxis]
    return tf.reduce_sum(mask * weights)
