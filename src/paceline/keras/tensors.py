"""Nested structures of tensors, as compiled functions take them."""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf


def to_tensors(data: Any) -> Any:
    """Arrays as tensors; None, ragged and sparse tensors stay."""

    def to_tensor(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
            return leaf
        return tf.convert_to_tensor(leaf)

    return keras.tree.map_structure(to_tensor, data)


def any_number_of_rows(data: Any) -> Any:
    """The types of these tensors, of any batch size: one trace serves full and remaining microbatches."""

    def spec(leaf: Any) -> Any:
        if leaf is None:
            return None
        exact = tf.type_spec_from_value(leaf)
        if isinstance(leaf, tf.RaggedTensor):
            shape = [None, *exact.shape[1:]]
            return tf.RaggedTensorSpec(shape, exact.dtype, exact.ragged_rank, exact.row_splits_dtype)
        return type(exact)([None, *exact.shape[1:]], exact.dtype)

    return keras.tree.map_structure(spec, data)


def kind_of_data(tensors: Any) -> Any:
    """Equal for tensors that one trace serves: the same but for the number of rows. Cheap."""
    leaves = keras.tree.flatten(tensors)
    return tuple(None if leaf is None else (type(leaf), leaf.dtype, tuple(leaf.shape)[1:]) for leaf in leaves)


@functools.lru_cache(maxsize=1024)
def constant_of(value: float | tuple[float, ...]) -> tf.Tensor:
    """A float64 tensor; those that come back in every step are made once."""
    return tf.constant(value, tf.float64)


def first_leaf(structure: Any) -> tf.Tensor:
    return next(leaf for leaf in keras.tree.flatten(structure) if leaf is not None)
