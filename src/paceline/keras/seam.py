"""Every private name of Keras that Paceline needs, in one place.

Each function says what it stands on; `tests/tensorflow/test_seam.py` tells when Keras moves one of them. Everything
else in this package uses Keras' public surface.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from paceline.errors import ConfigError


def build(model: keras.Model, data: tuple[Any, Any, Any]) -> None:
    """Create all variables of the model, its losses, metrics and optimizer, as the first training step would.

    Stands on `Trainer._symbolic_build(data_batch=...)` and `CompileLoss.build`.
    """
    model._symbolic_build(data_batch=keras.tree.map_structure(_of_any_batch_size, data))
    losses = compile_loss(model)
    if losses is not None and not losses.built:  # older versions of Keras build the losses at their first call
        x, y, _ = data
        arguments = {"training": False} if calls_with_training(model) else {}
        losses.build(y, model(keras.tree.map_structure(tf.convert_to_tensor, x), **arguments))


def _of_any_batch_size(leaf: Any) -> Any:
    """So that the saved model does not tell how its first batch was cut."""
    if leaf is None:
        return None
    return keras.KerasTensor((None, *leaf.shape[1:]), keras.backend.standardize_dtype(leaf.dtype))


def loss_tracker(model: keras.Model) -> keras.metrics.Mean:
    """The metric that averages the total loss. Stands on `Trainer._loss_tracker`."""
    return model._loss_tracker


def compute_loss(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> Any:
    """The total loss of a batch. Stands on `Trainer._compute_loss`, which calls a user's own `compute_loss` with the
    arguments that it takes; older versions of Keras have only the public method."""
    compute = getattr(model, "_compute_loss", None)
    if compute is None:
        return model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
    return compute(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)


def compile_loss(model: keras.Model) -> Any | None:
    """What `compile(loss=...)` became, or None. Stands on `Trainer._compile_loss`."""
    return getattr(model, "_compile_loss", None)


def flat_losses(model: keras.Model) -> list[keras.losses.Loss]:
    """The loss of each output, in order. Stands on `CompileLoss._flat_losses`, or `flat_losses` in older Keras."""
    losses = compile_loss(model)
    if losses is None or not losses.built:
        return []
    entries = getattr(losses, "_flat_losses", None)
    if entries is not None:
        return [entry.loss for entry in entries]
    return [loss for loss in losses.flat_losses if loss is not None]


@contextlib.contextmanager
def replaced_losses(model: keras.Model, wrap: Callable[[int, Any], Any]) -> Iterator[None]:
    """While the block runs, each output's loss is `wrap(number, loss)`. Stands on what `flat_losses` does."""
    losses = compile_loss(model)
    if losses is None:
        yield
        return
    name = "_flat_losses" if hasattr(losses, "_flat_losses") else "flat_losses"
    entries = getattr(losses, name)
    wrapped = []
    number = 0
    for entry in entries:
        loss = getattr(entry, "loss", entry) if name == "_flat_losses" else entry
        if loss is None:
            wrapped.append(entry)
            continue
        changed = wrap(number, loss)
        wrapped.append(entry._replace(loss=changed) if name == "_flat_losses" else changed)
        number += 1
    setattr(losses, name, wrapped)
    try:
        yield
    finally:
        setattr(losses, name, entries)


@contextlib.contextmanager
def intercepted_means(update: Callable[[Any, Any, Any], bool]) -> Iterator[None]:
    """While the block runs, each update of a `keras.metrics.Mean` (or of a subclass) asks `update(metric, values,
    sample_weight)` first, and is left out when that says False. Stands on subclasses calling `Mean.update_state`."""
    original = keras.metrics.Mean.update_state

    def update_state(metric: Any, values: Any, sample_weight: Any = None) -> None:
        if update(metric, values, sample_weight):
            original(metric, values, sample_weight=sample_weight)

    keras.metrics.Mean.update_state = update_state
    try:
        yield
    finally:
        keras.metrics.Mean.update_state = original


def loss_tracker_counts_samples() -> bool:
    """Whether Keras weights the loss of each batch by its samples in the epoch's average (newer versions), or all
    batches alike (older ones). Stands on the text of `TensorFlowTrainer.train_step`."""
    return "sample_weight=tf.shape" in inspect.getsource(keras.Model.train_step)


def calls_with_training(model: keras.Model) -> bool:
    """Whether the model's `call` takes `training`. Stands on `Layer._call_has_training_arg`."""
    return bool(getattr(model, "_call_has_training_arg", True))


def is_seed_state(variable: keras.Variable) -> bool:
    """Whether this is the state of a `keras.random.SeedGenerator`. Stands on the variable's name."""
    return variable.path.rsplit("/", 1)[-1] == "seed_generator_state"


def frozen_weights(model: keras.Model) -> list[Any]:
    """Weights that could be trained but are frozen: no forward pass changes them. Stands on
    `Layer._trainable_variables`, which keeps them when the layer is frozen."""
    weights = [v for layer in all_layers(model) for v in getattr(layer, "_trainable_variables", ())]
    return [v for v in weights if not v.trainable]


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The model and every layer in it, at any depth. Stands on `Layer._flatten_layers`."""
    return list(model._flatten_layers())


def replace_moments(layer: keras.layers.BatchNormalization, moments: Callable[[Any, Any], Any]) -> None:
    """Let `layer` take its mean and variance from `moments(inputs, mask)`. Stands on `BatchNormalization._moments`."""
    if not hasattr(layer, "_moments"):
        raise ConfigError(
            f"layer '{layer.name}': BatchNormalization(synchronized=True) needs a newer Keras than {keras.__version__}"
        )
    layer.__dict__["_moments"] = moments


def metrics_in_order(model: keras.Model, logs: dict[str, Any]) -> Any:
    """Logs as the list that `evaluate` returns. Stands on `Trainer._flatten_metrics_in_order`."""
    return model._flatten_metrics_in_order(logs)


def assert_compiled(model: keras.Model, method: str) -> None:
    """Stands on `Trainer._assert_compile_called`."""
    model._assert_compile_called(method)


def has_own_train_step(model: keras.Model) -> bool:
    """Whether a subclass overrides `train_step`."""
    return _overrides(model, "train_step")


def has_own_test_step(model: keras.Model) -> bool:
    return _overrides(model, "test_step")


def has_own_predict_step(model: keras.Model) -> bool:
    return _overrides(model, "predict_step")


def _overrides(model: keras.Model, name: str) -> bool:
    owner = next(base for base in type(model).__mro__ if name in base.__dict__)
    return not owner.__module__.startswith("keras.")


def begins_iterator_after_pass() -> bool:
    """Whether Keras makes one more iterator of a dataset of known length after each pass over it. It came together with
    `EpochIterator.reset`, by which it is told; `tests/tensorflow/test_tf_data.py` compares what is fed."""
    from keras.src.trainers.epoch_iterator import EpochIterator

    return hasattr(EpochIterator, "reset")
