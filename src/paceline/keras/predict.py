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
from paceline.keras.tensors import any_number_of_rows, to_tensors
from paceline.strategies.all_reduce import salt_of
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
    forward = _forward_of(replica)
    forward.prepare(first.take(0, min(microbatch, first.num_samples))[0])
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
    while (batch := batches.batch(progress.step)) is not None:
        stretch = [batch]
        while len(stretch) < STRETCH and (batch := batches.batch(progress.step + len(stretch))) is not None:
            stretch.append(batch)
        for number in range(len(stretch)):
            prepared.on_predict_batch_begin(progress.step + number)
        salt = (replica.calls.session.call, progress.step)
        activity = PredictRound(forward, stretch, microbatch, salt, halt=bool(model.stop_predicting))
        if not run(replica.session, activity):
            model.stop_predicting = True
            break
        progress.outputs += activity.outputs
        for number in range(len(stretch)):
            prepared.on_predict_batch_end(progress.step + number, {"outputs": activity.outputs_of(number)})
        progress.step += len(stretch)
    prepared.on_predict_end()
    return [np.concatenate(parts) for parts in zip(*progress.outputs, strict=True)]


def _forward_of(replica: Replica) -> Forward:
    """The compiled forward pass, made anew after `compile`, as Keras does."""
    made_for = (seam.loss_tracker(replica.model), replica.model.run_eagerly)
    if replica.forward is None or replica.forward[0] != made_for:
        replica.forward = (made_for, Forward(replica.model))
    return replica.forward[1]


class Forward:
    """The model's compiled forward pass, one microbatch in, flat leaves out. Random layers that are active in inference
    draw for the microbatch, and leave their seeds as they were."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._own = seam.has_own_predict_step(model)
        self._arguments = {"training": False} if seam.calls_with_training(model) else {}
        self._step = self._salted
        if not model.run_eagerly:
            self._step = tf.function(self._salted, reduce_retracing=True, autograph=False)

    def prepare(self, x: Any) -> None:
        """Build the model and trace for data like this microbatch's."""
        tensors = to_tensors(x)
        if self._model.run_eagerly:
            self._outputs(tensors)
            return
        specs = any_number_of_rows(tensors)
        if not all(layer.built for layer in seam.all_layers(self._model)):
            tf.function(self._outputs, autograph=False).get_concrete_function(specs)
        self._step.get_concrete_function(specs, tf.TensorSpec([2], tf.uint32))

    def leaves(self, x: Any, salt: tuple[int, int]) -> list[np.ndarray]:
        outputs = self._step(to_tensors(x), tf.constant(salt, tf.uint32))
        return [np.asarray(leaf) for leaf in keras.tree.flatten(outputs)]

    def restore(self, x: Any, leaves: list[np.ndarray]) -> Any:
        """`leaves` in the structure of the model's output."""
        return keras.tree.pack_sequence_as(self._step(to_tensors(x), tf.zeros([2], tf.uint32)), leaves)

    def _salted(self, x: Any, salt: tf.Tensor) -> Any:
        seeds = [v for v in self._model.variables if seam.is_seed_state(v)]
        kept = [tf.identity(v.value) for v in seeds]
        for variable in seeds:
            variable.assign(tf.bitwise.bitwise_xor(tf.cast(variable.value, tf.uint32), salt))
        outputs = self._outputs(x)
        for variable, value in zip(seeds, kept, strict=True):
            variable.assign(value)
        return outputs

    def _outputs(self, x: Any) -> Any:
        if self._own:
            return self._model.predict_step(keras.utils.pack_x_y_sample_weight(x))
        return self._model(x, **self._arguments)


class PredictRound:
    """One stretch of global batches."""

    name = "predict"
    step = None

    def __init__(
        self, forward: Forward, batches: list[Any], microbatch: int, salt: tuple[int, ...], *, halt: bool
    ) -> None:
        self._forward = forward
        self._batches = batches
        self._salt = salt
        self._halt = halt
        self._pieces = [
            (number, rows.start, rows.stop)
            for number, batch in enumerate(batches)
            for rows in cut(batch.num_samples, microbatch)
        ]
        self.samples = sum(batch.num_samples for batch in batches)
        self.outputs: list[list[np.ndarray]] = []

    def work(self, group: Group, rank: int, communicator: Communicator) -> list[Any]:
        mine = assign(len(self._pieces), group.size)[rank]
        return [self._forward.leaves(self._rows(index), salt_of(*self._salt, index)) for index in mine]

    def talk(self, work: list[Any], communicator: Communicator) -> list[bytes]:
        return communicator.all_gather_bytes(encode(work))

    def ballot(self, work: list[Any], proposal: list[bytes]) -> Ballot:
        return Ballot(digest=checksum(b"".join(proposal)), halt=self._halt)

    def change(self, proposal: list[bytes]) -> None:
        self.outputs = [piece for payload in proposal for piece in decode(payload)]

    def outputs_of(self, batch: int) -> list[np.ndarray]:
        """The leaves of one global batch's outputs, for callbacks."""
        parts = [leaves for (number, _, _), leaves in zip(self._pieces, self.outputs, strict=True) if number == batch]
        return [np.concatenate(leaf) for leaf in zip(*parts, strict=True)]

    def _rows(self, index: int) -> Any:
        number, start, stop = self._pieces[index]
        return self._batches[number].take(start, stop)[0]
