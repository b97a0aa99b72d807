"""Class weights become sample weights."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.data.class_weights import check_class_weight, weights_of_labels
from paceline.errors import ConfigError


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 2, 1, 2]),
        np.array([[0], [2], [1], [2]]),
        np.array([0.1, 1.9, 1.0, 2.0], dtype=np.float32),
        np.eye(3)[[0, 2, 1, 2]],
        np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]]),
    ],
)
def test_each_sample_weighs_what_its_class_weighs(labels: np.ndarray) -> None:
    weights = weights_of_labels(labels, {0: 5, 2: 0.5})
    assert weights.dtype == np.float32
    assert weights.tolist() == [5.0, 0.5, 1.0, 0.5]


def test_one_hot_labels_of_sequences_give_a_weight_for_each_place() -> None:
    labels = np.eye(2)[[[0, 1, 1], [1, 0, 0]]]
    assert weights_of_labels(labels, {1: 3.0}).tolist() == [[1, 3, 3], [3, 1, 1]]


def test_no_samples_need_no_weights() -> None:
    assert weights_of_labels(np.zeros((0,), np.int64), {0: 2.0}).shape == (0,)


@pytest.mark.parametrize("class_weight", [{}, {"a": 1.0}, {0.5: 1.0}, {0: "heavy"}, {0: float("nan")}, [1.0, 2.0]])
def test_what_is_not_a_class_weight_is_refused(class_weight: object) -> None:
    with pytest.raises(ConfigError, match="class_weight"):
        check_class_weight(class_weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("labels", [None, {"a": np.zeros(3)}, np.array(["a", "b"])])
def test_targets_without_classes_are_refused(labels: object) -> None:
    with pytest.raises(ConfigError, match="class_weight"):
        weights_of_labels(labels, {0: 1.0})
