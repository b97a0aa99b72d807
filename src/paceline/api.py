"""The doors: what scripts call. Everything here works without a launcher too, as a group of one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from paceline.errors import ConfigError

if TYPE_CHECKING:
    import keras
    import numpy as np

Model = TypeVar("Model", bound="keras.Model")


def init() -> None:
    """Join the job: wait until every worker has started. Implicit in every other call; a second call does nothing.

    Raises `StartTimeout` when a worker does not come, and `ConfigError` when the environment is not a launcher's.
    """
    from paceline.training import process

    process.current()


def shutdown() -> None:
    """Leave the job well, after all ranks have come here. Implicit at the end of a script."""
    from paceline.training import process

    process.leave()


def rank() -> int:
    """This worker's place in the group, from 0. It can become smaller when workers are lost. A restarted worker
    counts as the last one until it has caught up."""
    from paceline.training import process

    return process.current().session.rank


def size() -> int:
    """How many workers the group has now."""
    from paceline.training import process

    return process.current().session.size


def local_rank() -> int:
    """This worker's place among those on its own machine."""
    from paceline.training import process

    return process.current().session.local_rank


def barrier() -> None:
    """Wait until every rank has come here."""
    from paceline.training import eager, process

    eager.barrier(process.current().calls)


def allreduce(value: Any, operation: Literal["mean", "sum", "max", "min"] = "mean") -> Any:
    """Combine `value` over all ranks: an array, a number, or a TensorFlow tensor (which comes back as one), of the same
    shape and dtype on every rank. Returns the same on every rank. For eager code, not inside `tf.function`."""
    from paceline.training import eager, process

    return _like(value, eager.allreduce(process.current().calls, _as_array(value), operation))


def allgather(value: Any) -> Any:
    """All ranks' arrays joined along the first dimension, in rank order. First dimensions may differ."""
    from paceline.training import eager, process

    return _like(value, eager.allgather(process.current().calls, _as_array(value)))


def broadcast(value: Any, root: int = 0) -> Any:
    """The value of rank `root`, on every rank; same shape and dtype everywhere."""
    from paceline.training import eager, process

    return _like(value, eager.broadcast(process.current().calls, _as_array(value), root))


def distribute(
    model: Model,
    *,
    microbatch: int | None = None,
    deterministic: bool | None = None,
    seed: int | None = None,
) -> Model:
    """Let a Keras model train, evaluate and predict with all workers of the job. Returns the same model.

    Every rank runs the same script. `batch_size` in `fit` is that of the global batch. The model may be compiled
    before or after. Saved files hold plain Keras classes.

    Args:
        model: a `keras.Model` whose `train_step` is Keras' own.
        microbatch: samples of the unit of work, into which each global batch is cut. Results of models with dropout or
            plain BatchNormalization depend on it, and not on the number of workers. Default: the first global batch
            divided by the number of workers at the start.
        deterministic: the same bits for any number of workers and any fault; needs `microbatch` and a fixed number of
            threads (`paceline run --deterministic` sets it, and makes this the default).
        seed: of the order of samples in `fit`; default: the job's (`paceline run --seed`), or without a launcher one
            drawn from numpy, so that `keras.utils.set_random_seed` fixes it.

    Raises `ConfigError` for a model that cannot be distributed.
    """
    from paceline.training import process

    current = process.current()  # before keras is touched, so that a wrong environment is told at once
    from paceline.keras.distribute import distribute_model

    if microbatch is not None and (not isinstance(microbatch, int) or microbatch < 1):
        raise ConfigError(f"microbatch must be a whole number of samples, at least 1, got {microbatch!r}")
    if deterministic is None:
        deterministic = current.environment.deterministic
    if deterministic and not os.environ.get("TF_NUM_INTRAOP_THREADS"):
        raise ConfigError(
            "deterministic=True needs a fixed number of TensorFlow threads, which can only be set before TensorFlow "
            "starts: run 'paceline run --deterministic ...', or set TF_NUM_INTRAOP_THREADS=1 (and keep it for all runs "
            "that are to be compared)"
        )
    distribute_model(model, current, microbatch=microbatch, deterministic=deterministic, seed=seed)
    return model


def _as_array(value: Any) -> np.ndarray:
    import numpy as np

    array = np.asarray(value)
    if array.dtype.hasobject:
        raise ConfigError(f"only arrays of numbers travel, not {type(value).__name__}")
    return array


def _like(value: Any, result: np.ndarray) -> Any:
    """`result` as what `value` was: a tensor, a number, or an array."""
    if hasattr(value, "graph") or type(value).__module__.startswith("tensorflow"):
        import importlib

        return importlib.import_module("paceline.keras.distribute").as_tensor(result)
    return result if hasattr(value, "__array__") else result.tolist()
