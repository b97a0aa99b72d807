"""What users pass as inputs, targets and weights, made into columns: numpy arrays, and rows of tensors for what numpy
does not have (strings, ragged, sparse).

Data in memory is converted once, as Keras does: floats become `floatx` (float32), whole numbers and booleans stay, a
pandas Series becomes one column, Python strings become string tensors. Batches of streams keep their types.
Next file: `tf_data.py`.
"""

from __future__ import annotations

import sys
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paceline.data.order import Indices
from paceline.data.protocols import Column
from paceline.data.sources.arrays import take_rows
from paceline.data.structure import Structure, map_leaves
from paceline.errors import ConfigError


def memory_columns(structure: Structure, name: str) -> Structure:
    """Columns of data in memory. Raises `ConfigError` that names the leaf which cannot be one."""
    return map_leaves(lambda leaf_name, leaf: _in_floatx(to_column(leaf, leaf_name)), structure, name)


def batch_columns(structure: Structure, name: str) -> Structure:
    """Columns of one batch of a stream: types stay as they are, and numeric tensors are read in place."""
    return map_leaves(lambda leaf_name, leaf: to_column(leaf, leaf_name), structure, name)


def to_column(leaf: Any, name: str) -> Column:
    """`leaf` as a column, without a copy where that is possible."""
    if isinstance(leaf, tf.SparseTensor):
        return SparseRows(leaf)
    if isinstance(leaf, tf.RaggedTensor):
        return TensorRows(leaf)
    if _is_from(leaf, "scipy") and hasattr(leaf, "tocoo"):
        return SparseRows.of_scipy(leaf)
    if _is_from(leaf, "pandas") and hasattr(leaf, "to_numpy"):
        return _of_numpy(_of_pandas(leaf, name), name)
    if tf.is_tensor(leaf) and leaf.dtype == tf.string:
        return TensorRows(leaf)
    if isinstance(leaf, np.ndarray):
        return _of_numpy(leaf, name)
    if hasattr(leaf, "__array__"):
        return _of_numpy(np.asarray(leaf), name)
    raise ConfigError(
        f"{name} is of type {type(leaf).__name__}, which is not an array; give numpy arrays, tensors, pandas frames or "
        "series, or nested structures of them (a list of numbers is a structure, not an array: use `numpy.array(...)`)"
    )


def slice_columns(structure: Structure, start: int, stop: int) -> Structure:
    """Rows start..stop-1 of each column."""
    return map_leaves(lambda _, column: take_rows(column, slice(start, stop)), structure)


class TensorRows:
    """Rows of a string tensor or a ragged tensor."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype

    def take(self, index: slice | Indices) -> Any:
        return self._tensor[index] if isinstance(index, slice) else tf.gather(self._tensor, index)

    def checksum(self, index: slice | Indices) -> int:
        rows = self.take(index)
        parts = [rows]
        if isinstance(rows, tf.RaggedTensor):
            parts = [rows.flat_values, *rows.nested_row_lengths()]
        result = 0
        for part in parts:
            values = np.asarray(part)
            if values.dtype == object:
                values = np.frombuffer(b"".join(len(v).to_bytes(8, "little") + v for v in values.ravel()), np.uint8)
            result = zlib.crc32(np.ascontiguousarray(values).tobytes(), result)
        return result

    def cast(self, dtype: str) -> TensorRows:
        return TensorRows(tf.cast(self._tensor, dtype))


class SparseRows:
    """Rows of a sparse tensor, found by where each row's entries begin."""

    def __init__(self, tensor: tf.SparseTensor) -> None:
        tensor = tf.sparse.reorder(tensor)
        self.shape = tuple(int(size) for size in tensor.dense_shape)
        self._indices = np.asarray(tensor.indices)
        self._values = tensor.values
        self.dtype = tensor.dtype
        self._begins = np.searchsorted(self._indices[:, 0], np.arange(self.shape[0] + 1))

    @classmethod
    def of_scipy(cls, matrix: Any) -> SparseRows:
        matrix = matrix.tocoo()
        indices = np.stack([matrix.row, matrix.col], axis=1).astype(np.int64)
        return cls(tf.SparseTensor(indices, matrix.data, matrix.shape))

    def take(self, index: slice | Indices) -> tf.SparseTensor:
        rows = np.arange(self.shape[0])[index]
        counts = self._begins[rows + 1] - self._begins[rows]
        ends = np.cumsum(counts)
        entries = np.arange(counts.sum()) + np.repeat(self._begins[rows] - (ends - counts), counts)
        indices = self._indices[entries]
        indices[:, 0] = np.repeat(np.arange(len(rows)), counts)
        return tf.SparseTensor(indices, tf.gather(self._values, entries), (len(rows), *self.shape[1:]))

    def checksum(self, index: slice | Indices) -> int:
        rows = self.take(index)
        return zlib.crc32(np.asarray(rows.values).tobytes(), zlib.crc32(np.asarray(rows.indices).tobytes()))

    def cast(self, dtype: str) -> SparseRows:
        return SparseRows(tf.SparseTensor(self._indices, tf.cast(self._values, dtype), self.shape))


def _of_numpy(array: np.ndarray[Any, Any], name: str) -> Column:
    if array.dtype.kind in "US" or (
        array.dtype == object and all(isinstance(value, (str, bytes)) for value in array.ravel())
    ):
        return TensorRows(tf.convert_to_tensor(array, dtype=tf.string))
    if array.dtype == object:
        kinds = sorted({type(value).__name__ for value in array.ravel()[:1000]})
        raise ConfigError(
            f"{name} is an array of Python objects ({', '.join(kinds)}), which no tensor can hold; convert it to "
            "numbers or strings (and see that rows have one length)"
        )
    if array.dtype.kind in "mMV" and not _is_ml_type(array.dtype):
        raise ConfigError(f"{name} has type {array.dtype}, which no tensor can hold; convert it to numbers")
    return array


def _of_pandas(frame: Any, name: str) -> np.ndarray[Any, Any]:
    """The values of a frame; those of a series as one column, as Keras has them."""
    dtypes = list(frame.dtypes) if frame.ndim == 2 else []
    if any(np.issubdtype(dtype, np.floating) for dtype in dtypes if isinstance(dtype, np.dtype)):
        try:
            frame = frame.astype(keras.config.floatx())
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{name} has columns that are not numbers: {dict(frame.dtypes)}") from error
    values = np.asarray(frame.to_numpy())
    return values if values.ndim > 1 else values[:, np.newaxis]


def _in_floatx(column: Column) -> Column:
    floatx = keras.config.floatx()
    name = getattr(column.dtype, "name", str(column.dtype))
    is_float = name == "bfloat16" or name.startswith("float")
    if not is_float or name == floatx:
        return column
    if not isinstance(column, np.ndarray):
        return column.cast(floatx)
    return column.astype(tf.as_dtype(floatx).as_numpy_dtype)


def _is_ml_type(dtype: np.dtype[Any]) -> bool:
    """Whether it is one of the small floats that numpy itself does not know (bfloat16, float8)."""
    return dtype.name.startswith(("bfloat", "float", "int", "uint"))


def _is_from(leaf: Any, package: str) -> bool:
    """Whether its class comes from `package`, which need not be installed."""
    return package in sys.modules and type(leaf).__module__.split(".")[0] == package
