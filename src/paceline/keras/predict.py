"""`predict` in a group: each rank computes its share, and every rank gets the whole result."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paceline.communication.protocols import Communicator
from paceline.data.shares import assign, cut
from paceline.errors import ConfigError
from paceline.keras import seam
from paceline.keras.callbacks import prepare_callbacks
from paceline.keras.datasets import make_batches
from paceline.keras.replica import Replica
from paceline.strategies.protocols import Ballot
from paceline.training.codec import decode, encode
from paceline.training.recovery import State
from paceline.training.round import run
from paceline.types import Group
from paceline.wire.frames import checksum

STRETCH = 8  # global batches in a round


class PredictProgress:
    """What a newcomer takes over: the rows predicted so far."""

    def __init__(self) -> None:
        self.step = 0
        self.outputs: list[list[np.ndarray]] = []  # for each piece, the leaves of the model's output

    def export_state(self) -> State:
        leaves = [leaf for piece in self.outputs for leaf in piece]
        return State([self.step, [len(piece) for piece in self.outputs]], tuple(leaves))

    def adopt_state(self, state: State) -> None:
        self.step, lengths = state.values
        leaves = iter(state.arrays)
        self.outputs = [[next(leaves) for _ in range(length)] for length in lengths]


def predict(
    replica: Replica,
    x: Any,
    batch_size: int | None = None,
    verbose: Any = "auto",
    steps: int | None = None,
    callbacks: Any = None,
) -> Any:
    """Predict, as `keras.Model.predict`. Every rank passes the same arguments and gets the whole result."""
    batches = make_batches(
        x,
        None,
        None,
        batch_size=batch_size,
        shuffle=False,
        class_weight=None,
        seed=replica.options.seed,
        steps_per_epoch=steps,
        purpose="predict",
    )
    try:
        return _predict_batches(replica, batches, verbose, callbacks)
    finally:
        batches.close()


def _predict_batches(replica: Replica, batches: Any, verbose: Any, callbacks: Any) -> Any:
    model, progress = replica.model, PredictProgress()
    batches.begin_epoch(0)
    first = batches.batch(0)
    if first is None or first.num_samples == 0:
        raise ConfigError("predict was given no data: the first batch is empty")
    microbatch = replica.microbatch_for(first.num_samples)
    seam.build_for_inference(model, first.take(0, 1)[0])
    forward = Forward(model)
    prepared = prepare_callbacks(
        callbacks,
        model=model,
        rank=replica.rank,
        verbose=verbose,
        epochs=1,
        steps=batches.steps_per_epoch,
        add_history=False,
    )
    described = {"data": batches.signature(), **replica.describe()}
    with replica.calls.call("predict", described, progress=progress) as opened:
        if not opened.replayed:
            opened.result = _run_rounds(replica, batches, forward, microbatch, prepared, progress)
        leaves = [np.asarray(leaf) for leaf in opened.result]
    return forward.restore(first.take(0, 1)[0], leaves)


def _run_rounds(
    replica: Replica, batches: Any, forward: Forward, microbatch: int, prepared: Any, progress: PredictProgress
) -> list[np.ndarray]:
    """Predict from `progress` on. Returns the leaves of the whole output."""
    model = replica.model
    prepared.on_predict_begin()
    model.stop_predicting = False
    batches.begin_epoch(0, progress.step)
    while (batch := batches.batch(progress.step)) is not None and not model.stop_predicting:
        stretch = [batch]
        while len(stretch) < STRETCH and (batch := batches.batch(progress.step + len(stretch))) is not None:
            stretch.append(batch)
        for number in range(len(stretch)):
            prepared.on_predict_batch_begin(progress.step + number)
        activity = PredictRound(forward, stretch, microbatch)
        run(replica.session, activity)
        progress.outputs += activity.outputs
        for number in range(len(stretch)):
            prepared.on_predict_batch_end(progress.step + number, {"outputs": activity.outputs_of(number)})
        progress.step += len(stretch)
    prepared.on_predict_end()
    return [np.concatenate(parts) for parts in zip(*progress.outputs, strict=True)]


class Forward:
    """The model's compiled forward pass, one microbatch in, flat leaves out."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        own = seam.has_own_predict_step(model)
        arguments = {"training": False} if seam.calls_with_training(model) else {}
        step = (lambda x: model.predict_step((x,))) if own else (lambda x: model(x, **arguments))
        cached = model.__dict__.get("_paceline_forward")
        if cached is not None and cached[0] is model.run_eagerly:
            self._function = cached[1]
        else:
            self._function = step if model.run_eagerly else tf.function(step, reduce_retracing=True, autograph=False)
            model.__dict__["_paceline_forward"] = (model.run_eagerly, self._function)

    def leaves(self, x: Any) -> list[np.ndarray]:
        tensors = keras.tree.map_structure(lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf), x)
        return [np.asarray(leaf) for leaf in keras.tree.flatten(self._function(tensors))]

    def restore(self, x: Any, leaves: list[np.ndarray]) -> Any:
        """`leaves` in the structure of the model's output."""
        tensors = keras.tree.map_structure(lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf), x)
        return keras.tree.pack_sequence_as(self._function(tensors), leaves)


class PredictRound:
    """One stretch of global batches."""

    name = "predict"
    step = None

    def __init__(self, forward: Forward, batches: list[Any], microbatch: int) -> None:
        self._forward = forward
        self._batches = batches
        self._pieces = [
            (number, rows.start, rows.stop)
            for number, batch in enumerate(batches)
            for rows in cut(batch.num_samples, microbatch)
        ]
        self.samples = sum(batch.num_samples for batch in batches)
        self.outputs: list[list[np.ndarray]] = []

    def work(self, group: Group, rank: int, communicator: Communicator) -> list[Any]:
        mine = assign(len(self._pieces), group.size)[rank]
        return [self._forward.leaves(self._rows(index)) for index in mine]

    def talk(self, work: list[Any], communicator: Communicator) -> list[bytes]:
        return communicator.all_gather_bytes(encode(work))

    def ballot(self, work: list[Any], proposal: list[bytes]) -> Ballot:
        return Ballot(digest=checksum(b"".join(proposal)))

    def change(self, proposal: list[bytes]) -> None:
        self.outputs = [piece for payload in proposal for piece in decode(payload)]

    def outputs_of(self, batch: int) -> list[np.ndarray]:
        """The leaves of one global batch's outputs, for callbacks."""
        parts = [leaves for (number, _, _), leaves in zip(self._pieces, self.outputs, strict=True) if number == batch]
        return [np.concatenate(leaf) for leaf in zip(*parts, strict=True)]

    def _rows(self, index: int) -> Any:
        number, start, stop = self._pieces[index]
        return self._batches[number].take(start, stop)[0]
