"""`train_on_batch`, `test_on_batch` and `predict_on_batch`: one global batch, given alike on every rank."""

from __future__ import annotations

from typing import Any

from paceline.errors import ConfigError
from paceline.keras import predict as predicting
from paceline.keras import seam
from paceline.keras.datasets import make_batches
from paceline.keras.replica import Replica
from paceline.keras.reporting import to_floats
from paceline.strategies.all_reduce import AllReduceRound
from paceline.training.round import run


def train_on_batch(
    replica: Replica,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    class_weight: dict[int, float] | None = None,
    return_dict: bool = False,
) -> Any:
    """One optimizer step on one global batch, as `keras.Model.train_on_batch`."""
    if class_weight is not None and sample_weight is not None:
        raise ConfigError("train_on_batch takes sample_weight or class_weight, not both")
    logs = _one_round(replica, "train_on_batch", x, y, sample_weight, class_weight, training=True)
    return logs if return_dict else seam.metrics_in_order(replica.model, logs)


def evaluate_on_batch(
    replica: Replica, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
) -> Any:
    """Losses and metrics of one global batch, as `keras.Model.test_on_batch`."""
    logs = _one_round(replica, "test_on_batch", x, y, sample_weight, None, training=False)
    return logs if return_dict else seam.metrics_in_order(replica.model, logs)


def predict_on_batch(replica: Replica, x: Any) -> Any:
    """Predictions for one global batch, whole on every rank."""
    return predicting.predict(replica, x, batch_size=_num_rows(x), verbose=0)


def _one_round(
    replica: Replica, name: str, x: Any, y: Any, sample_weight: Any, class_weight: Any, *, training: bool
) -> dict[str, Any]:
    replica.check(name)
    batches = make_batches(
        x,
        y,
        sample_weight,
        batch_size=_num_rows(x),
        shuffle=False,
        class_weight=class_weight,
        seed=replica.options.seed,
        steps_per_epoch=None,
        purpose="fit" if training else "evaluate",
    )
    batches.begin_epoch(0)
    batch = batches.batch(0)
    if batch is None or batch.num_samples == 0:
        raise ConfigError(f"{name} was given an empty batch")
    microbatch = replica.microbatch_for(batch.num_samples)
    program = replica.program(batch.take(0, min(microbatch, batch.num_samples)), training=training)
    with replica.calls.call(name, {"data": batches.signature(), **replica.describe()}) as opened:
        if not opened.replayed:
            if not opened.resumed:
                replica.model.reset_metrics()
            opened.result = _round_logs(replica, program, batch, name, microbatch)
        return dict(opened.result)


def _round_logs(replica: Replica, program: Any, batch: Any, name: str, microbatch: int) -> dict[str, Any]:
    activity = AllReduceRound(
        program,
        [batch],
        name=name,
        step=replica.calls.session.call if program.training else None,
        microbatch=microbatch,
        salt=(replica.calls.session.call, 0, 0),
        reduction=replica.reduction,
    )
    run(replica.session, activity)
    return dict(to_floats(program.logs))


def _num_rows(structure: Any) -> int:
    import keras

    return int(next(leaf for leaf in keras.tree.flatten(structure) if leaf is not None).shape[0])
