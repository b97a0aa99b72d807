"""`tf.data` pipelines as passes, and Python generators as the one pass that they are.

The order that a reshuffling pipeline yields depends on how many iterators were made before (its seed generator moves on
with each), so a worker which starts in mid-training makes the same iterators first. What that takes was measured
(TensorFlow 2.21, 2026; `tests/tensorflow/test_datasets.py` repeats it):

- nothing, where no step of the pipeline is random from pass to pass;
- making each iterator (about 1 ms), where one shuffle stands on the way;
- one element of each, where shuffles stand on shuffles: the lower one draws its seed when the upper one first asks;
- all elements of each, where `repeat`, `concatenate` or `cache` begin a shuffle anew in mid-pass, or where Python code
  or variables remember things from pass to pass.

Next file: `datasets.py`.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.data.passes import Plan
from paceline.keras import seam

SOURCES = {"TensorSlice", "Tensor", "Range", "SparseTensorSlice", "TextLine", "FixedLengthRecord"}
RANDOM = {"Shuffle", "Random"}
ONE_TO_ONE = {
    *("TFRecord", "Map", "Filter", "Batch", "PaddedBatch", "Unbatch", "Prefetch", "Options", "Take", "Skip", "Shard"),
    *("Zip", "Window", "Interleave", "FlatMap", "AssertCardinality", "IgnoreErrors", "DenseToRaggedBatch"),
}
"""Kinds of step that begin their inputs once in a pass. Others (`repeat`, `cache`, ...) may begin them anew."""

PYTHON_OPERATIONS = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"}
CALLS = {"StatefulPartitionedCall", "PartitionedCall"}


class Replay(enum.IntEnum):
    """What must be done with the iterator of a pass that is not read."""

    NOTHING = 0
    CREATE = 1
    FIRST = 2
    ALL = 3


@dataclass(frozen=True)
class Nature:
    """What a pipeline is like.

    Attributes:
        replay: what its earlier passes need.
        num_random: the most random steps on any way from its sources to its end.
        caveat: why two workers may see different batches; None where nothing speaks for it.
        inputs_vary: random numbers are drawn in parallel, so that values differ between workers, though the samples
            are the same.
    """

    replay: Replay = Replay.NOTHING
    num_random: int = 0
    caveat: str | None = None
    inputs_vary: bool = False


def examine(dataset: tf.data.Dataset) -> Nature:
    """Walk a pipeline from its end to its sources.

    Stands on `Dataset._inputs()` and `_functions()` and on class names; without them, or for a step that is not known,
    the answer is the careful one.
    """
    if not (hasattr(dataset, "_inputs") and hasattr(dataset, "_functions")):
        return Nature(Replay.ALL, 1)
    inputs = [examine(upstream) for upstream in dataset._inputs()]
    replay = max((nature.replay for nature in inputs), default=Replay.NOTHING)
    num_random = max((nature.num_random for nature in inputs), default=0)
    caveats = [nature.caveat for nature in inputs if nature.caveat is not None]
    inputs_vary = any(nature.inputs_vary for nature in inputs)
    kind = _kind(dataset)
    functions = _examine_functions(dataset)
    if kind in RANDOM:
        num_random += 1
        replay = max(replay, Replay.CREATE if num_random == 1 else Replay.FIRST)
        if _is_unseeded(dataset):
            caveats.append("it shuffles without a seed, so workers agree only if TensorFlow's global seed is set alike")
    elif kind not in SOURCES | ONE_TO_ONE and (num_random or not inputs):
        replay = Replay.ALL
    if (functions.draws or functions.assigns) and "Parallel" in type(dataset).__name__:
        inputs_vary = True
        caveats.append(
            "it draws random numbers in a `map` that runs in parallel, so each worker draws others; use "
            "`tf.random.stateless_...`, or `map` without `num_parallel_calls`"
        )
    elif functions.assigns:
        replay = Replay.ALL
    if functions.runs_python:
        replay = Replay.ALL
        caveats.append("it runs Python code, which may do other things on other workers")
    return Nature(replay, num_random, caveats[0] if caveats else None, inputs_vary)


def is_batched(dataset: tf.data.Dataset) -> bool:
    """Whether the pipeline's last word on the matter is `batch`, so that its elements are whole batches."""
    while hasattr(dataset, "_inputs"):
        kind = _kind(dataset)
        if kind in {"Batch", "PaddedBatch", "DenseToRaggedBatch", "DenseToSparseBatch", "Rebatch"}:
            return True
        inputs = dataset._inputs()
        if kind in {"Unbatch", "FlatMap", "Interleave"} or not inputs:
            return False
        dataset = inputs[0]
    return False


class PipelinePasses:
    """The iterators of a pipeline, made in the order and number in which Keras makes them.

    Args:
        dataset: it yields global batches.
        plan: how epochs are laid over passes.
        description: for people.
    """

    def __init__(self, dataset: tf.data.Dataset, *, plan: Plan, description: str) -> None:
        if dataset.options().deterministic is False:
            options = tf.data.Options()
            options.deterministic = True
            dataset = dataset.with_options(options)
        self._dataset = dataset
        self._plan = plan
        self._nature = examine(dataset)
        self._num_passed = 0
        self._opened = False  # whether the iterator of pass `_num_passed` was made
        self.description = description
        self.caveat = self._nature.caveat
        self.inputs_vary = self._nature.inputs_vary

    def signature(self) -> str:
        return f"{self._dataset.element_spec}, {self._plan.num_batches} batches"

    def pass_over(self, number: int) -> None:
        while self._num_passed < number:
            if not self._opened:
                self._replay()
            if self._keras_makes_another and self._nature.replay > Replay.NOTHING:
                iter(self._dataset)
            self._num_passed += 1
            self._opened = False

    def open(self, number: int) -> Iterator[Any]:
        assert number == self._num_passed, "passes are opened in order"
        assert not self._opened, "a pass is opened once"
        self._opened = True
        return iter(self._dataset)

    def close(self) -> None:
        """Iterators end with the last reference to them."""

    @property
    def _keras_makes_another(self) -> bool:
        """Keras begins one more iterator after a pass of known length, and reads it only if the next epoch is to go on
        where this one stopped. Seeded pipelines give the same order here and there only if we do the same."""
        if self._plan.num_batches is None or not seam.begins_iterator_after_pass():
            return False
        whole_pass = self._plan.steps is None or self._plan.steps >= self._plan.num_batches
        return whole_pass if self._plan.restart else self._plan.steps is None

    def _replay(self) -> None:
        """Do with the iterator of a pass that is not read here what leaves its mark on later passes."""
        if self._nature.replay is Replay.NOTHING:
            return
        iterator = iter(self._dataset)
        if self._nature.replay is Replay.FIRST:
            next(iterator, None)
        elif self._nature.replay is Replay.ALL:
            limit = self._plan.steps if self._plan.restart else None
            for _ in itertools.islice(iterator, limit):
                pass


class GeneratorPasses:
    """A Python generator: it can be read once, and a later pass goes on where the last one ended. A worker that starts
    in mid-training reads it from its start.

    Args:
        first: the element that was taken to see what it looks like.
        rest: the generator.
        plan: how epochs are laid over passes.
        signature: of its batches.
    """

    description = "a Python generator, read once from its start"
    caveat = "a Python generator may yield other things on other workers"
    inputs_vary = False

    def __init__(self, first: Any, rest: Iterator[Any], *, plan: Plan, signature: str) -> None:
        self._iterator = itertools.chain([first], rest)
        self._plan = plan
        self._signature = signature
        self._num_passed = 0
        self._opened = False

    def signature(self) -> str:
        return f"generator of {self._signature}"

    def pass_over(self, number: int) -> None:
        while self._num_passed < number:
            if not self._opened:
                for _ in itertools.islice(self._iterator, self._plan.steps if self._plan.restart else None):
                    pass
            self._num_passed += 1
            self._opened = False

    def open(self, number: int) -> Iterator[Any]:
        self._opened = True
        return self._iterator

    def close(self) -> None:
        """The generator belongs to the user."""


def _kind(dataset: tf.data.Dataset) -> str:
    """The kind of a step, without the words that TensorFlow's versions put around it: "Map" for
    `_ParallelMapDataset`."""
    name = type(dataset).__name__.lstrip("_")
    return name.rstrip("V123").removesuffix("Dataset").removeprefix("Parallel")


@dataclass(frozen=True)
class _Functions:
    """What the functions of a step do: run Python code (or something that cannot be seen from here), change variables
    (as the random layers of Keras do), draw random numbers."""

    runs_python: bool = False
    assigns: bool = False
    draws: bool = False


def _examine_functions(dataset: tf.data.Dataset) -> _Functions:
    runs_python = assigns = draws = False
    for wrapper in dataset._functions():
        function = getattr(wrapper, "function", None)
        if function is None:
            return _Functions(runs_python=True)
        graph = function.graph.as_graph_def()
        names = {node.op for node in graph.node}
        names |= {node.op for inner in graph.library.function for node in inner.node_def}
        captures_pipeline = any(tensor.dtype == tf.variant for tensor in function.captured_inputs)
        runs_python |= bool(names & PYTHON_OPERATIONS) or captures_pipeline
        assigns |= any(name.startswith(("Assign", "Rng", "Stateful")) for name in names - CALLS)
        draws |= any(name.startswith("Random") or name in {"TruncatedNormal", "Multinomial"} for name in names)
    return _Functions(runs_python, assigns, draws)


def _is_unseeded(dataset: tf.data.Dataset) -> bool:
    seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
    return all(seed is not None and int(np.asarray(seed)) == 0 for seed in seeds)
