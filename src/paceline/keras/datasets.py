"""Whatever users pass to `fit`, `evaluate` and `predict`, made into the global batches that all workers share.

`batch_size` is that of the global batch, and the batches of a `tf.data.Dataset`, a `keras.utils.PyDataset` or a
generator *are* global batches. Checks are made here, at the door; `ConfigError` says what to change.
Start of the tour: `data/structure.py`; beside this file: `columns.py`, `tf_data.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from paceline.data.batches import ArrayBatches
from paceline.data.class_weights import check_class_weight, weights_of_labels
from paceline.data.fetching import FetchedBatches, Fetching
from paceline.data.passes import Plan
from paceline.data.protocols import Column, GlobalBatches, Sample
from paceline.data.sources.arrays import ArraySource
from paceline.data.streams import StreamBatches, batch_signature
from paceline.data.structure import Structure, is_nested, leaves, map_leaves, same_structure
from paceline.errors import ConfigError
from paceline.keras.columns import batch_columns, memory_columns, slice_columns
from paceline.keras.tf_data import GeneratorPasses, PipelinePasses, is_batched

Purpose = Literal["fit", "evaluate", "predict"]
DEFAULT_BATCH_SIZE = 32  # as in Keras


def make_batches(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    purpose: Purpose,
    seed: int,
    batch_size: int | None = None,
    shuffle: bool | Literal["batch"] = False,
    class_weight: dict[int, float] | None = None,
    steps_per_epoch: int | None = None,
    initial_epoch: int = 0,
) -> GlobalBatches:
    """The global batches of one call.

    Args:
        x: inputs: arrays, tensors, pandas frames or nested structures of them; a `tf.data.Dataset`; a
            `keras.utils.PyDataset`; or a generator.
        y: targets, where `x` is data in memory.
        sample_weight: likewise.
        purpose: a pass goes on over epochs of `steps_per_epoch` only in "fit"; "predict" drops targets and weights.
        seed: of the order of samples; the same on all ranks.
        batch_size: of the global batch. A dataset that is not batched yet is batched by it.
        shuffle: as Keras has it: data in memory and PyDatasets only; "batch" keeps batches together.
        class_weight: class -> weight.
        steps_per_epoch: steps of an epoch, or of an evaluation.
        initial_epoch: the first epoch that will be asked for by a worker that starts with the others.

    Raises:
        ConfigError: for what cannot be read, or does not fit together.
    """
    _check_count("batch_size", batch_size)
    _check_count("steps_per_epoch" if purpose == "fit" else "steps", steps_per_epoch)
    if class_weight is not None:
        check_class_weight(class_weight)
    maximum = getattr(keras.config, "max_steps_per_epoch", lambda: None)()
    if maximum is not None:
        steps_per_epoch = min(maximum, steps_per_epoch or maximum)
    door = _Door(purpose, seed, batch_size, shuffle, class_weight, steps_per_epoch, initial_epoch)
    if isinstance(x, tf.data.Dataset):
        _refuse_targets(y, sample_weight, "a tf.data.Dataset")
        return door.pipeline(x)
    if isinstance(x, keras.utils.PyDataset):
        _refuse_targets(y, sample_weight, "a PyDataset")
        return door.py_dataset(x)
    if isinstance(x, Iterator):
        _refuse_targets(y, sample_weight, "a generator")
        return door.generator(x)
    if isinstance(x, (tf.distribute.DistributedDataset, tf.distribute.Strategy)):
        raise ConfigError("give the plain tf.data.Dataset: Paceline shares out its batches itself")
    return door.memory(x, y, sample_weight)


def split_validation(arrays: tuple[Any, Any, Any], fraction: float) -> tuple[Sample, Sample]:
    """(x, y, sample_weight) for training and for validation: the last `fraction` of the rows, before any shuffling."""
    if not 0 < fraction < 1:
        raise ConfigError(f"`validation_split` must lie between 0 and 1, but is {fraction}")
    x = arrays[0]
    if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset, Iterator)):
        raise ConfigError(
            f"`validation_split` works for arrays and tensors only, not for a {type(x).__name__}; "
            "split it yourself and give `validation_data`"
        )
    names = ("x", "y", "sample_weight")
    columns = tuple(memory_columns(part, name) for name, part in zip(names, arrays, strict=True))
    num_samples = ArraySource(dict(zip(names, columns, strict=True))).num_samples
    split = math.floor(num_samples * (1.0 - fraction))
    if split in (0, num_samples):
        raise ConfigError(
            f"`validation_split={fraction}` leaves no samples on one side: there are {num_samples} in all"
        )
    first = tuple(slice_columns(part, 0, split) for part in columns)
    last = tuple(slice_columns(part, split, num_samples) for part in columns)
    return (first[0], first[1], first[2]), (last[0], last[1], last[2])


class _Door:
    """The arguments of one call; a method for each kind of data."""

    def __init__(
        self,
        purpose: Purpose,
        seed: int,
        batch_size: int | None,
        shuffle: bool | Literal["batch"],
        class_weight: dict[int, float] | None,
        steps: int | None,
        initial_epoch: int,
    ) -> None:
        self._purpose = purpose
        self._seed = seed
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._class_weight = class_weight
        self._steps = steps
        self._initial_epoch = initial_epoch
        self._restart = purpose != "fit"

    # -------------------------------------------------------------------------------------------------- kinds of data

    def memory(self, x: Any, y: Any, sample_weight: Any) -> ArrayBatches:
        if x is None:
            raise ConfigError(f"{self._purpose} needs data: `x` is None")
        if self._purpose == "predict":
            y = sample_weight = None
        columns = (
            memory_columns(x, "x"),
            memory_columns(y, "y"),
            memory_columns(sample_weight, "sample_weight"),
        )
        num_samples = ArraySource(dict(zip(("x", "y", "sample_weight"), columns, strict=True))).num_samples
        if num_samples == 0:
            raise ConfigError(f"{self._purpose} needs data: the arrays have no rows")
        batch_size = self._batch_size
        if batch_size is None:
            batch_size = -(-num_samples // self._steps) if self._steps else DEFAULT_BATCH_SIZE
        return ArrayBatches(
            self._weighted(columns[0], columns[1], _weight_of_each_output(columns[2], columns[1])),
            batch_size=batch_size,
            shuffle=self._shuffle if self._shuffle == "batch" else bool(self._shuffle),
            seed=self._seed,
            steps=self._steps,
            restart=self._restart,
            initial_epoch=self._initial_epoch,
        )

    def pipeline(self, dataset: tf.data.Dataset) -> StreamBatches:
        spec = dataset.element_spec
        if isinstance(spec, tuple):
            _check_parts(spec, "a tf.data.Dataset's elements")
        note = ""
        if self._batch_size is not None and not is_batched(dataset):
            dataset = dataset.batch(self._batch_size)
            note = f", batched here by {self._batch_size}"
        lone = [
            name
            for name, leaf in leaves(dataset.element_spec, "element")
            if getattr(leaf, "shape", tf.TensorShape(None)).rank == 0
        ]
        if lone:
            raise ConfigError(
                f"the dataset is not batched: {lone[0]} is a single value. Batch it by the global batch, as in "
                "`dataset.batch(256)`, or give `batch_size`"
            )
        cardinality = int(dataset.cardinality())
        if cardinality == 0:
            raise ConfigError("the tf.data.Dataset is empty")
        if cardinality == tf.data.INFINITE_CARDINALITY and self._restart and self._steps is None:
            raise ConfigError("the tf.data.Dataset has no end; give `steps`")
        plan = Plan(cardinality if cardinality > 0 else None, self._steps, self._restart)
        length = {
            tf.data.INFINITE_CARDINALITY: "without end",
            tf.data.UNKNOWN_CARDINALITY: "of unknown length",
        }.get(cardinality, f"of {cardinality:,} batches")
        passes = PipelinePasses(dataset, plan=plan, description=f"a tf.data pipeline {length}{note}")
        return StreamBatches(passes, self._prepare, plan=plan, initial_epoch=self._initial_epoch)

    def py_dataset(self, dataset: keras.utils.PyDataset) -> FetchedBatches:
        num_batches = dataset.num_batches
        if num_batches == 0:
            raise ConfigError("the PyDataset has length 0")
        if num_batches is None and self._restart and self._steps is None:
            raise ConfigError("the PyDataset has no end; give `steps`")
        first = self._prepare(dataset[0])
        fetching = Fetching(
            dataset.__getitem__,
            self._prepare,
            begin_epoch=getattr(dataset, "on_epoch_begin", lambda: None),
            end_epoch=dataset.on_epoch_end,
            end_before={"fit": "first", "evaluate": "every", "predict": "none"}[self._purpose],
            readers=max(1, dataset.workers),
        )
        length = "without end" if num_batches is None else f"of {num_batches:,} batches"
        order = f", in an order by seed {self._seed}" if self._shuffle and num_batches is not None else ""
        return FetchedBatches(
            fetching,
            plan=Plan(num_batches, self._steps, self._restart),
            shuffle=bool(self._shuffle),
            seed=self._seed,
            description=f"a PyDataset {length}{order}",
            signature=f"PyDataset of {batch_signature(first)}",
            initial_epoch=self._initial_epoch,
        )

    def generator(self, generator: Iterator[Any]) -> StreamBatches:
        try:
            first = next(generator)
        except StopIteration:
            raise ConfigError("the generator yields nothing; it must yield at least one batch") from None
        plan = Plan(None, self._steps, self._restart)
        signature = batch_signature(self._prepare(first))
        passes = GeneratorPasses(first, generator, plan=plan, signature=signature)
        return StreamBatches(passes, self._prepare, plan=plan, initial_epoch=self._initial_epoch)

    # --------------------------------------------------------------------------------------------------- one batch

    def _prepare(self, element: Any) -> Sample:
        """A batch as a dataset gives it -> columns of (x, y, sample_weight)."""
        if isinstance(element, list):
            element = tuple(element)
        if not isinstance(element, tuple):
            element = (element,)
        _check_parts(element, "a batch")
        x, y, sample_weight = (*element, None, None)[:3]
        if self._purpose == "predict":
            return batch_columns(x, "x"), None, None
        return self._weighted(
            batch_columns(x, "x"), batch_columns(y, "y"), batch_columns(sample_weight, "sample_weight")
        )

    def _weighted(self, x: Structure, y: Structure, sample_weight: Structure) -> Sample:
        """With the weights of classes, where they were given."""
        if self._class_weight is None:
            return x, y, sample_weight
        if sample_weight is not None:
            raise ConfigError(
                "`class_weight` and `sample_weight` cannot be given together: multiply each sample's weight by that of "
                "its class, and give the product as `sample_weight`"
            )
        if not is_nested(y) and y is not None and not isinstance(y, np.ndarray):
            raise ConfigError(f"`class_weight` needs numbers as targets, not {y.dtype}")
        return x, y, weights_of_labels(y, self._class_weight, keras.config.floatx())


def _weight_of_each_output(sample_weight: Structure, y: Structure) -> Structure:
    """Data in memory: one array of weights counts for every output, as Keras has it."""
    if sample_weight is None or not is_nested(y):
        return sample_weight
    if is_nested(sample_weight):
        if not same_structure(y, sample_weight):
            raise ConfigError(
                f"`sample_weight` must be one array, or have the structure of `y`, but `y` has "
                f"{', '.join(name for name, _ in leaves(y, 'y'))} and `sample_weight` has "
                f"{', '.join(name for name, _ in leaves(sample_weight, 'sample_weight'))}"
            )
        return sample_weight
    column: Column = sample_weight
    if not (len(column.shape) == 1 or (len(column.shape) == 2 and column.shape[1] == 1)):
        raise ConfigError(
            f"one `sample_weight` for several outputs needs one number per sample, but its shape is {column.shape}; "
            "give weights for each output to weigh more finely"
        )
    return map_leaves(lambda _, __: column, y)


def _check_parts(element: tuple[Any, ...], what: str) -> None:
    if not 1 <= len(element) <= 3:
        raise ConfigError(f"{what} must be x, (x,), (x, y) or (x, y, sample_weight), not {len(element)} parts")


def _check_count(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ConfigError(f"`{name}` must be a whole number from 1 on, or None, but is {value!r}")


def _refuse_targets(y: Any, sample_weight: Any, what: str) -> None:
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ConfigError(f"`{name}` must not be given with {what}: let it yield (x, y) or (x, y, sample_weight)")
