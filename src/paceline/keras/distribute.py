"""`pl.distribute`: checks a model at the door and attaches it to this process's session."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from paceline.errors import ConfigError
from paceline.keras import seam
from paceline.keras.replica import Replica, ReplicaOptions, attach, replica_of
from paceline.training.process import Process


def distribute_model(
    model: keras.Model, process: Process, *, microbatch: int | None, deterministic: bool, seed: int | None
) -> keras.Model:
    """See `paceline.distribute`."""
    if keras.config.backend() != "tensorflow":
        raise ConfigError(
            f"Keras runs on the '{keras.config.backend()}' backend; Paceline needs KERAS_BACKEND=tensorflow"
        )
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"distribute() takes a keras.Model (Keras 3), got {type(model).__module__}.{type(model).__name__}"
        )
    if replica_of(model) is not None:
        raise ConfigError(f"model '{model.name}' is distributed already; call distribute() once for each model")
    if seam.has_own_train_step(model):
        raise ConfigError(
            f"model '{model.name}' ({type(model).__name__}) has its own train_step, whose gradients distribute() "
            "cannot see; move what it computes into compute_loss, which can be overridden"
        )
    if seed is None:
        seed = process.environment.seed
    if seed is None:
        seed = int(np.random.randint(0, 2**31 - 1))
    attach(Replica(model, process.calls, ReplicaOptions(microbatch, deterministic, seed)))
    return model


def as_tensor(array: np.ndarray) -> tf.Tensor:
    return tf.constant(array)
