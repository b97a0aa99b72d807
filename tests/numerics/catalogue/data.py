"""Small data and models that many cases share. Seeded, the same in every process."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

REMAINDERS = ((65, 64), (9, 8), (31, 8))  # (rows, batch): a last batch of one row, fewer rows than workers, neither


def features(rows: int, width: int = 6, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def targets(rows: int, width: int = 2, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def labels(rows: int, classes: int = 3, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, size=rows)


def weights(rows: int, seed: int = 4) -> np.ndarray:
    """Sample weights of very different size, some of them zero."""
    source = np.random.default_rng(seed)
    return (source.exponential(size=rows) * (source.random(rows) > 0.3)).astype(np.float32)


def images(rows: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 6, 6, 2)).astype(np.float32)


def sequences(rows: int, length: int = 5, vocabulary: int = 11, seed: int = 6) -> np.ndarray:
    """Numbers from 1 on, padded with 0 to very different lengths; a few rows are all padding."""
    source = np.random.default_rng(seed)
    tokens = source.integers(1, vocabulary, size=(rows, length))
    lengths = source.integers(0, length + 1, size=rows)
    tokens[np.arange(length) >= lengths[:, np.newaxis]] = 0
    return tokens


def dense(width: int = 6, outputs: int = 2, **options: Any) -> keras.Model:
    """A smooth model: no kinks at which rounding decides."""
    return keras.Sequential(
        [
            keras.Input((width,)),
            keras.layers.Dense(5, activation="tanh", **options),
            keras.layers.Dense(outputs, **options),
        ]
    )
