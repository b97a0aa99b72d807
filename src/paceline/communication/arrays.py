"""Numpy arrays as the other floors need them: names of dtypes that travel, and memory that TensorFlow takes over."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.wire.frames import checksum

ALIGNMENT_BYTES = 64  # what TensorFlow asks of memory that it takes over without a copy


def dtype_name(dtype: np.dtype[Any]) -> str:
    """A name that `dtype_of` turns back, for numpy's own dtypes and for ml_dtypes' (bfloat16, float8 ...)."""
    return str(dtype.str if dtype.isbuiltin == 1 else dtype.name)


def dtype_of(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # bfloat16 and its family; comes with TensorFlow

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended


def array_checksum(array: np.ndarray) -> int:
    """The checksum of an array's elements, in row-major order."""
    return checksum(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def aligned_empty(num_elements: int, dtype: str) -> np.ndarray:
    """An uninitialised one-dimensional array that starts at a multiple of 64 bytes."""
    resolved = dtype_of(dtype)
    num_bytes = num_elements * resolved.itemsize
    memory = np.empty(num_bytes + ALIGNMENT_BYTES, np.uint8)
    offset = -memory.ctypes.data % ALIGNMENT_BYTES
    return memory[offset : offset + num_bytes].view(resolved)
