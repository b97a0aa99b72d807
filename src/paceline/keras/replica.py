"""One distributed model in this process: its compiled programs, its options, and its state as others take it over.

`attach` puts Paceline's `fit`, `evaluate`, `predict` ... in the place of the model's own; the model stays the object
that it was, and its saved files hold plain Keras classes. Next file: `fit.py`.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paceline.communication.arrays import array_checksum
from paceline.errors import ConfigError, RanksDisagree
from paceline.keras import seam
from paceline.keras.program import KerasProgram
from paceline.keras.synchronized import SynchronizedMoments
from paceline.strategies.averaging import Reduction
from paceline.training.calls import Calls
from paceline.training.recovery import State


@dataclass(frozen=True)
class ReplicaOptions:
    """How a model is distributed.

    Attributes:
        microbatch: samples of the unit of work; None: a call's first global batch divided by the workers at the start.
        deterministic: the same bits for any number of workers.
        seed: of the order of samples.
    """

    microbatch: int | None
    deterministic: bool
    seed: int


class Replica:
    """A model and what distributes it."""

    def __init__(self, model: keras.Model, calls: Calls, options: ReplicaOptions) -> None:
        self.model = model
        self.calls = calls
        self.options = options
        self.reduction = Reduction(deterministic=options.deterministic)
        self._moments = SynchronizedMoments(model)
        self._programs: dict[bool, KerasProgram] = {}
        self._made_for: Any = None
        self.forward: Any = None  # of `predict.py`
        # By this process, since all agreed to have come to the same place; it must not grow where they never do.
        self.left_to_rank_zero: deque[Callable[[], None]] = deque(maxlen=100)
        calls.tell_agreements_to(self.do_what_was_left_to_rank_zero)
        calls.parts.append(self)

    @property
    def session(self) -> Any:
        return self.calls.session

    def rank(self) -> int:
        return int(self.session.rank)

    def do_what_was_left_to_rank_zero(self) -> None:
        """All have agreed that a call begins or an epoch has ended. If this process is rank 0 only now, the one that
        was so before did not live to agree, and may not have written what it was to write."""
        if self.rank() == 0:
            for duty in self.left_to_rank_zero:
                duty()
        self.left_to_rank_zero.clear()

    def program(self, data: Any, *, training: bool) -> KerasProgram:
        """The compiled work for this kind of call, built and traced for data like this microbatch; made anew after
        `compile`, as Keras does."""
        model = self.model
        seam.build(model, data)
        # `compile` makes a new tracker each time
        made_for = (seam.loss_tracker(model), model.run_eagerly, model.jit_compile, _trainable(model))
        if self._made_for != made_for:
            self._programs.clear()
            self._made_for = made_for
        if training not in self._programs:
            self._programs[training] = KerasProgram(model, training=training, moments=self._moments)
        self._programs[training].prepare(data)
        return self._programs[training]

    def microbatch_for(self, batch_samples: int) -> int:
        """The unit of work of a call whose first global batch has so many samples."""
        return self.options.microbatch or max(1, -(-batch_samples // self.session.membership.expected_workers))

    # --------------------------------------------------------------------------------------------------------- checks

    def check(self, method: str) -> None:
        """Raise `ConfigError` when this model's training cannot be distributed."""
        seam.assert_compiled(self.model, method)
        if method in ("fit", "train_on_batch") and seam.has_own_train_step(self.model):
            raise ConfigError(
                f"model '{self.model.name}' ({type(self.model).__name__}) has its own train_step, whose gradients "
                "pl.distribute cannot see; move what it computes into compute_loss, which can be overridden"
            )
        if method in ("fit", "train_on_batch") and self.model.optimizer is None:
            raise ConfigError(f"model '{self.model.name}' was compiled without an optimizer: give compile() one")
        if getattr(self.model, "_distribute_strategy", None) is not None:
            raise ConfigError(
                "this model was made under a tf.distribute strategy: make it outside of strategy.scope(), since "
                "pl.distribute takes the strategy's place"
            )

    def describe(self) -> dict[str, str]:
        """What must be equal on all ranks: every variable's path, shape and dtype, and how the model is compiled."""
        model = self.model
        described = {
            "variable": "\n".join(_line(v) for v in model.variables),
            "microbatch": str(self.options.microbatch),
            "deterministic": str(self.options.deterministic),
        }
        if (optimizer := _optimizer_of(model)) is not None:
            described["optimizer"] = type(getattr(optimizer, "inner_optimizer", optimizer)).__name__
            described["optimizer variable"] = "\n".join(_line(v) for v in optimizer.variables)
        losses = seam.flat_losses(model)
        described["loss"] = ", ".join(getattr(loss, "name", str(loss)) for loss in losses)
        return described

    # ---------------------------------------------------------------------------------------------------------- state

    def variables(self) -> list[keras.Variable]:
        """Everything that training changes, each once: the model's, its metrics' and its optimizer's variables."""
        model = self.model
        found = list(model.variables)
        for metric in model.metrics:
            found += metric.variables
        if (optimizer := _optimizer_of(model)) is not None:
            found += optimizer.variables
        return list({id(v): v for v in found}.values())

    def digests(self) -> dict[str, str]:
        """A digest of each variable's value, by its number and description."""
        values = [(_line(v), np.asarray(v.value)) for v in self.variables()]
        return {f"{number}: {line}": f"{array_checksum(value):08x}" for number, (line, value) in enumerate(values)}

    def export_state(self) -> State:
        variables = self.variables()
        return State([_line(v) for v in variables], tuple(np.asarray(v.value) for v in variables))

    def adopt_state(self, state: State) -> None:
        variables = self.variables()
        own = [_line(v) for v in variables]
        if [_kind_of(line) for line in own] != [_kind_of(line) for line in state.values]:
            raise RanksDisagree(
                f"model '{self.model.name}' has {len(own)} variables here and {len(state.values)} on the others, or "
                "variables of other shapes: the script built another model"
            )
        self.left_to_rank_zero.clear()  # it was about a state that this process did not hold
        for variable, array in zip(variables, state.arrays, strict=True):
            variable.assign(tf.constant(array))


def attach(replica: Replica) -> None:
    """Let the model's calls go through `replica`. Attributes of the instance, so that its class, and with it what is
    saved, stays as it is."""
    from paceline.keras import evaluate, fit, on_batch, predict, saving

    replacements = {
        "fit": fit.fit,
        "evaluate": evaluate.evaluate,
        "predict": predict.predict,
        "train_on_batch": on_batch.train_on_batch,
        "test_on_batch": on_batch.evaluate_on_batch,
        "predict_on_batch": on_batch.predict_on_batch,
        "save": saving.save,
        "save_weights": saving.save_weights,
        "export": saving.export,
    }
    for name, function in replacements.items():
        replica.model.__dict__[name] = functools.partial(function, replica)
    replica.model.__dict__["_paceline"] = replica


def replica_of(model: keras.Model) -> Replica | None:
    """The replica that a model was attached to, if any."""
    return model.__dict__.get("_paceline")


def _optimizer_of(model: keras.Model) -> Any:
    """None before `compile` too, when `predict` is all that can be called."""
    return getattr(model, "optimizer", None)


def _line(variable: Any) -> str:
    return f"{variable.path} {tuple(variable.shape)} {keras.backend.standardize_dtype(variable.dtype)}"


def _kind_of(line: str) -> str:
    """Shape and dtype, from what `_line` says."""
    return line.split(" ", 1)[1]


def _trainable(model: keras.Model) -> tuple[int, ...]:
    return tuple(id(v) for v in model.trainable_variables)
