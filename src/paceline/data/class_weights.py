"""Class weights as sample weights, as Keras understands them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.data.structure import is_nested
from paceline.errors import ConfigError


def check_class_weight(class_weight: Mapping[int, float]) -> None:
    """Raises `ConfigError` unless it maps whole numbers to numbers."""
    try:
        valid = all(int(label) == label and np.isfinite(float(weight)) for label, weight in class_weight.items())
    except (AttributeError, TypeError, ValueError):
        valid = False
    if not valid or not class_weight:
        raise ConfigError(
            f"`class_weight` must map class numbers to weights, as in {{0: 1.0, 1: 5.0}}, but is {class_weight!r}"
        )


def weights_of_labels(labels: Any, class_weight: Mapping[int, float], dtype: str = "float32") -> np.ndarray[Any, Any]:
    """One weight per sample: that of its class, 1 for classes that are not named.

    Args:
        labels: class numbers, (samples,) or (samples, 1), or one-hot or probabilities, (samples, ..., classes).
    """
    if is_nested(labels):
        raise ConfigError(
            "`class_weight` needs a single output, but the targets are nested; give `sample_weight` for each output"
        )
    if labels is None:
        raise ConfigError("`class_weight` needs targets `y`, and there are none")
    array = np.asarray(labels)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ConfigError(f"`class_weight` needs numbers as targets, not {array.dtype}")
    if array.ndim > 1:
        array = np.squeeze(array, axis=-1) if array.shape[-1] == 1 else np.argmax(array, axis=-1)
    classes, places = np.unique(np.round(array).astype(np.int64), return_inverse=True)
    table = np.array([class_weight.get(int(label), 1.0) for label in classes], dtype=dtype)
    return table[places].reshape(array.shape)
