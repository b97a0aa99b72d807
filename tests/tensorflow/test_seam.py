"""Each private name of Keras that `paceline.keras.seam` stands on exists, and does what the seam says of it.

When one of these fails on a new version of Keras, the seam is the only file to change.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from paceline.errors import ConfigError
from paceline.keras import seam

X = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
Y = np.linspace(0.0, 1.0, 8, dtype=np.float32).reshape(4, 2)


def two_outputs() -> keras.Model:
    entry = keras.Input((3,))
    model = keras.Model(entry, [layers.Dense(2)(entry), layers.Dense(1)(entry)])
    model.compile(
        keras.optimizers.SGD(0.1),
        [keras.losses.MeanSquaredError(), keras.losses.MeanAbsoluteError()],
        loss_weights=[1.0, 0.5],
        metrics=[["mae"], []],
    )
    return model


def one_output(**options: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], **options)
    return model


def test_build_makes_all_variables_for_any_number_of_rows() -> None:
    model = keras.Sequential([layers.Dense(2)])
    model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
    seam.build(model, (X, Y, None))
    assert model.built
    assert model.input_shape == (None, 3)
    assert model.optimizer.built
    assert len(model.optimizer.variables) > 2
    assert seam.compile_loss(model).built
    assert [v for metric in model.metrics for v in metric.variables]


def test_build_leaves_what_is_built_alone() -> None:
    model = one_output()
    seam.build(model, (X, Y, None))
    variables = [id(v) for v in model.variables]
    seam.build(model, (X, Y, np.ones(4, np.float32)))
    assert [id(v) for v in model.variables] == variables


def test_compile_makes_a_new_loss_tracker_each_time() -> None:
    model = one_output()
    first = seam.loss_tracker(model)
    assert isinstance(first, keras.metrics.Mean)
    assert first in model.metrics
    model.compile(model.optimizer, "mse")
    assert seam.loss_tracker(model) is not first


def test_compute_loss_is_the_total_of_losses_and_regularizers() -> None:
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.5))])
    model.compile("sgd", "mse")
    seam.build(model, (X, Y, None))
    y_pred = model(X)
    total = seam.compute_loss(model, X, Y, y_pred, None, training=True)
    expected = np.mean((np.asarray(y_pred) - Y) ** 2) + 0.5 * np.sum(np.square(model.layers[0].kernel))
    np.testing.assert_allclose(total, expected, rtol=1e-6)


def test_compute_loss_gives_training_only_to_those_who_take_it() -> None:
    class Takes(keras.Model):
        def call(self, x: Any) -> Any:
            return x

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):  # type: ignore[no-untyped-def]
            return tf.constant(1.0 if training else 2.0)

    class TakesNot(Takes):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):  # type: ignore[no-untyped-def]
            return tf.constant(3.0)

    assert float(seam.compute_loss(Takes(), X, Y, Y, None, training=False)) == 2.0
    assert float(seam.compute_loss(TakesNot(), X, Y, Y, None, training=False)) == 3.0


def test_flat_losses_are_those_of_the_outputs_in_order() -> None:
    model = two_outputs()
    assert seam.flat_losses(model) == []
    seam.build(model, (X, [Y, Y[:, :1]], None))
    assert [loss.name for loss in seam.flat_losses(model)] == ["mean_squared_error", "mean_absolute_error"]


def test_replaced_losses_are_called_in_the_places_of_the_originals() -> None:
    model = two_outputs()
    seam.build(model, (X, [Y, Y[:, :1]], None))
    before = seam.flat_losses(model)
    with seam.replaced_losses(model, lambda number, loss: lambda y, y_pred, weight=None: tf.constant(10.0 + number)):
        total = seam.compute_loss(model, X, [Y, Y[:, :1]], model(X), None, training=True)
    assert float(total) == 10.0 + 0.5 * 11.0
    assert seam.flat_losses(model) == before


def test_intercepted_means_see_subclasses_and_can_leave_updates_out() -> None:
    seen: list[tuple[str, int, bool]] = []

    def note(metric: Any, values: Any, sample_weight: Any) -> bool:
        seen.append((metric.name, len(values.shape), sample_weight is None))
        return metric.name != "left_out"

    mean = keras.metrics.Mean(name="mean")
    error = keras.metrics.MeanAbsoluteError(name="error")
    left_out = keras.metrics.Mean(name="left_out")
    with seam.intercepted_means(note):
        mean.update_state(tf.constant(2.0))
        error.update_state(Y, Y + 1.0, sample_weight=np.ones(4))
        left_out.update_state(tf.constant(5.0))
    assert seen == [("mean", 0, True), ("error", 1, False), ("left_out", 0, True)]
    assert (float(mean.result()), float(error.result()), float(left_out.result())) == (2.0, 1.0, 0.0)
    left_out.update_state(5.0)
    assert float(left_out.result()) == 5.0


def test_the_loss_tracker_counts_as_the_seam_says() -> None:
    model = one_output()
    model.fit(np.concatenate([X, X[:1]]), np.concatenate([Y, Y[:1] + 9.0]), batch_size=4, verbose=0, shuffle=False)
    count = float(seam.loss_tracker(model).count)
    assert count == (5.0 if seam.loss_tracker_counts_samples() else 2.0)


@pytest.mark.parametrize("takes", [True, False])
def test_calls_with_training_tells_whether_call_takes_it(takes: bool) -> None:
    class Takes(keras.Model):
        def call(self, x: Any, training: bool = False) -> Any:
            return x

    class TakesNot(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    assert seam.calls_with_training(Takes() if takes else TakesNot()) is takes


def test_seed_states_are_told_by_their_names() -> None:
    model = keras.Sequential([keras.Input((3,)), layers.Dropout(0.5), layers.GaussianNoise(0.1), layers.Dense(1)])
    seeds = [v for v in model.variables if seam.is_seed_state(v)]
    assert [tuple(v.shape) for v in seeds] == [(2,), (2,)]
    assert all(keras.backend.standardize_dtype(v.dtype) in ("uint32", "int64") for v in seeds)
    before = [np.asarray(v.value) for v in seeds]
    model(X, training=True)
    assert all((np.asarray(v.value) != old).any() for v, old in zip(seeds, before, strict=True))


def test_frozen_weights_are_those_that_could_be_trained() -> None:
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(2, name="frozen"), layers.BatchNormalization(name="norm"), layers.Dense(1)]
    )
    model.get_layer("frozen").trainable = False
    model.get_layer("norm").trainable = False
    names = sorted(v.path.split("/", 1)[1] for v in seam.frozen_weights(model))
    assert names == ["frozen/bias", "frozen/kernel", "norm/beta", "norm/gamma"]


def test_all_layers_are_found_at_any_depth() -> None:
    inner = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="deep")])
    model = keras.Sequential([keras.Input((3,)), inner])
    found = seam.all_layers(model)
    assert model in found
    assert any(layer.name == "deep" for layer in found)


def test_batch_normalization_takes_its_moments_from_where_it_is_told() -> None:
    layer = layers.BatchNormalization(momentum=0.0, epsilon=0.0, synchronized=True)
    layer.build((None, 3))
    seam.replace_moments(layer, lambda inputs, mask: (tf.constant([1.0, 2.0, 3.0]), tf.constant([4.0, 4.0, 4.0])))
    normalised = layer(X, training=True)
    np.testing.assert_allclose(normalised, (X - [1.0, 2.0, 3.0]) / 2.0, rtol=1e-6)
    np.testing.assert_allclose(layer.moving_mean, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(layer.moving_variance, [4.0, 4.0, 4.0])


def test_a_layer_without_that_seam_is_refused() -> None:
    with pytest.raises(ConfigError, match="newer Keras"):
        seam.replace_moments(layers.Dense(1), lambda inputs, mask: None)  # type: ignore[arg-type]


def test_metrics_come_in_the_order_of_evaluate() -> None:
    model = one_output()
    logs = model.evaluate(X, Y, verbose=0, return_dict=True)
    assert seam.metrics_in_order(model, logs) == [logs["loss"], logs["mae"]]
    assert seam.metrics_in_order(model, dict(reversed(logs.items()))) == model.evaluate(X, Y, verbose=0)


def test_a_model_that_is_not_compiled_is_refused() -> None:
    with pytest.raises(ValueError, match="compile"):
        seam.assert_compiled(keras.Sequential([layers.Dense(1)]), "fit")
    seam.assert_compiled(one_output(), "fit")


def test_overridden_steps_are_seen_through_subclasses() -> None:
    class Own(keras.Model):
        def train_step(self, data: Any) -> Any: ...

        def test_step(self, data: Any) -> Any: ...

        def predict_step(self, data: Any) -> Any: ...

    class Below(Own): ...

    for model in (Own(), Below()):
        assert seam.has_own_train_step(model)
        assert seam.has_own_test_step(model)
        assert seam.has_own_predict_step(model)
    for model in (one_output(), keras.Sequential()):
        assert not seam.has_own_train_step(model)
        assert not seam.has_own_test_step(model)
        assert not seam.has_own_predict_step(model)


def test_iterators_are_begun_as_the_seam_says() -> None:
    """Each iterator of a seeded shuffle has its own order, so the next order tells how many were made before."""

    def orders(count: int) -> list[list[int]]:
        return [[int(row) for row in samples] for _ in range(count)]

    keras.utils.set_random_seed(1)
    samples = tf.data.Dataset.range(9).shuffle(9, seed=3)
    _, second, third = orders(3)
    keras.utils.set_random_seed(1)
    samples = tf.data.Dataset.range(9).shuffle(9, seed=3)
    one_output().fit(samples.map(lambda row: (tf.fill([1, 3], 1.0), tf.fill([1, 2], 1.0))), verbose=0)
    assert orders(1) == [third if seam.begins_iterator_after_pass() else second]


def test_every_function_of_the_seam_is_tried_here() -> None:
    names = [
        name for name, value in vars(seam).items() if inspect.isfunction(value) and value.__module__ == seam.__name__
    ]
    text = inspect.getsource(inspect.getmodule(two_outputs))  # type: ignore[arg-type]
    assert [name for name in names if not name.startswith("_") and f"seam.{name}(" not in text] == []
