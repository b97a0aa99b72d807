"""A Keras model's work as compiled functions: one microbatch -> flat buckets, and the sum of buckets -> the model.

`contribute` runs forward and backward on one microbatch and returns everything that it would have changed, as flat
buffers: the gradient of `share * loss`, the change of each state variable (BatchNorm's statistics ...), and what each
metric counted. It puts every variable back, so it leaves no trace. `apply` adopts the sum over all microbatches.

Buffers cross between TensorFlow and numpy without a copy: a result is read in place, and numpy's memory is lent to
TensorFlow through DLPack (measured 2026-12: microseconds for 64 MB, where `tf.constant` takes 56 ms).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paceline.communication.arrays import ALIGNMENT_BYTES
from paceline.communication.buckets import layout_digest, plan_buckets
from paceline.communication.protocols import Communicator
from paceline.keras import seam
from paceline.keras.losses import Corrections
from paceline.keras.means import BatchMeans
from paceline.keras.synchronized import SynchronizedMoments
from paceline.keras.tensors import any_number_of_rows, constant_of, first_leaf, kind_of_data, to_tensors
from paceline.strategies.protocols import Contribution, Layout, Microbatch, SparseRows


class KerasProgram:
    """One model's work in training (`training=True`) or evaluation; see `strategies.protocols.Program`.

    Args:
        model: compiled.
        training: with gradients and the optimizer, or only losses and metrics.
        moments: the group's BatchNorm statistics, when the model asks for them.
    """

    def __init__(self, model: keras.Model, *, training: bool, moments: SynchronizedMoments) -> None:
        self.model = model
        self.training = training
        self._moments = moments
        self._corrections = Corrections(model)
        self._means = BatchMeans()
        self._prepared: set[str] = set()  # kinds of data that were traced
        self._layout: Layout | None = None
        self._gradient_kinds: list[str] = []  # one of "dense", "sparse", "none" for each trainable variable
        self._order: list[int] = []  # trainable variables with a dense gradient, in the order of the buckets
        self.logs: dict[str, Any] = {}  # the model's metrics after the last `apply`
        self._contribute = self._compile(self._contribute_step)
        self._measure = self._compile(self._measure_step)
        self._apply = self._compile(self._apply_step)
        # The traces themselves, where they are known beforehand: finding one by its arguments costs TensorFlow about
        # half a millisecond of Python at each call (measured 2026-12).
        self._contribute_traces: dict[Any, Any] = {}
        self._apply_trace: Any = None

    # -------------------------------------------------------------------------------------------------- the contract

    @property
    def layout(self) -> Layout:
        assert self._layout is not None, "prepare() comes first"
        return self._layout

    @property
    def synchronous(self) -> bool:
        """Whether all members' forward passes talk to each other, so that each must run exactly one microbatch."""
        return self.training and self._moments.active

    @property
    def depends_on_order(self) -> bool:
        """Whether some metric is not a sum over samples, so that it must count one global batch after the other."""
        return any(v.aggregation != "sum" for metric in self.model.metrics for v in metric.variables)

    @property
    def needs_divisors(self) -> bool:
        return self._corrections.needs_divisors

    @property
    def measure_width(self) -> int:
        return self._corrections.num_losses

    def prepare(self, data: Any) -> None:
        tensors = to_tensors(data)
        specs = any_number_of_rows(tensors)
        if repr(specs) in self._prepared:
            return
        self._prepared.add(repr(specs))
        seam.build(self.model, data)
        self._moments.attach()
        self._list_variables()
        arguments = self._arguments(tensors, 1.0, (0, 0), (1.0,) * self.measure_width, (1.0, 1.0))
        if self._runs_eagerly:
            self._contribute(*arguments)  # leaves no trace in the model
        else:
            trace = self._contribute.get_concrete_function(specs, *arguments[1:])
            self._contribute_traces[kind_of_data(tensors)] = trace

    def _list_variables(self) -> None:
        """Everything that a step can change, by what becomes of it."""
        model = self.model
        self._trainable = list(model.trainable_variables) if self.training else []
        if self.training and not model.optimizer.built:
            model.optimizer.build(self._trainable)
        metric_variables = _unique(v for metric in model.metrics for v in metric.variables)
        self._sums = [v for v in metric_variables if v.aggregation == "sum"]
        ignored = {id(v) for v in metric_variables} | {id(v) for v in seam.frozen_weights(model)}
        others = [v for v in model.non_trainable_variables if id(v) not in ignored]
        others += [v for v in metric_variables if v.aggregation != "sum"]
        self._seeds = [v for v in others if seam.is_seed_state(v)]
        self._states = [v for v in others if _is_number(v) and not seam.is_seed_state(v)]

    def measure(self, data: Any) -> np.ndarray:
        return np.asarray(self._measure(to_tensors(data)))

    def contribute(self, microbatch: Microbatch, communicator: Communicator) -> Contribution:
        factors = tuple(microbatch.factors.tolist()) or (1.0,) * self.measure_width
        flags = (float(microbatch.present), float(microbatch.first))
        tensors = to_tensors(microbatch.data)
        arguments = self._arguments(tensors, microbatch.share, microbatch.salt, factors, flags)
        contribute = self._contribute_traces.get(kind_of_data(tensors), self._contribute)
        talking = contextlib.nullcontext()
        if self.synchronous:
            talking = self._moments.talking_through(communicator, present=microbatch.present)
        with talking:
            flats, sparse = contribute(*arguments)
        rows = tuple(SparseRows(np.asarray(ids), np.asarray(values)) for ids, values in sparse)
        return Contribution(tuple(_as_array(flat) for flat in flats), rows, origin=flats)

    def apply(self, total: Contribution) -> None:
        flats = total.origin if total.origin is not None else tuple(_as_tensor(buffer) for buffer in total.buffers)
        sparse = tuple((tf.constant(entry.ids), tf.constant(entry.rows)) for entry in total.sparse)
        if self._apply_trace is None:
            varies = self._runs_eagerly or sparse  # how many rows have a gradient
            self._apply_trace = self._apply if varies else self._apply.get_concrete_function(flats, sparse)
        self.logs = self._apply_trace(flats, sparse)

    def _arguments(self, tensors: Any, share: float, salt: Any, factors: Any, flags: Any) -> tuple[Any, ...]:
        return (
            tensors,
            constant_of(share),
            tf.convert_to_tensor(np.array(salt, np.uint32)),
            constant_of(factors),
            constant_of(flags),
        )

    # ------------------------------------------------------------------------------------------- one microbatch's work

    def _contribute_step(
        self, data: Any, share: tf.Tensor, salt: tf.Tensor, factors: tf.Tensor, flags: tf.Tensor
    ) -> tuple[Any, Any]:
        """`flags` are `Microbatch.present` and `Microbatch.first`."""
        x, y, sample_weight = data
        states = [tf.identity(v.value) for v in self._states]
        with self._untouched(), self._means.watched():
            for variable in self._sums:
                variable.assign(tf.zeros_like(variable.value))
            self._salt_seeds(salt)
            if self.training or not seam.has_own_test_step(self.model):
                gradients = self._forward_and_backward(x, y, sample_weight, share, factors)
            else:
                gradients = []
                with self._corrections.correct(share, factors):
                    self.model.test_step(keras.utils.pack_x_y_sample_weight(x, y, sample_weight))
            counts = [self._weigh_sum(v, share, flags[0]) for v in self._sums]
            changes = [
                _weigh_state(v, tf.convert_to_tensor(v.value) - before, share, flags[1])
                for v, before in zip(self._states, states, strict=True)
            ]
            return self._pack(gradients, changes, counts)

    @contextlib.contextmanager
    def _untouched(self) -> Iterator[None]:
        """While the block runs, variables may change; after it they are what they were."""
        variables = self._sums + self._states + self._seeds
        kept = [tf.identity(v.value) for v in variables]
        yield
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)

    def _salt_seeds(self, salt: tf.Tensor) -> None:
        for variable in self._seeds:
            variable.assign(tf.bitwise.bitwise_xor(tf.cast(variable.value, tf.uint32), salt))

    def _forward_and_backward(self, x: Any, y: Any, sample_weight: Any, share: Any, factors: Any) -> list[Any]:
        model = self.model
        arguments = {"training": self.training} if seam.calls_with_training(model) else {}
        with tf.GradientTape(watch_accessed_variables=self.training) as tape:
            y_pred = model(x, **arguments)
            with self._corrections.correct(share, factors):
                loss = seam.compute_loss(model, x, y, y_pred, sample_weight, training=self.training)
            self._track_loss(loss, x, share)
            scaled = loss * tf.cast(share, loss.dtype)
            if self.training:
                scaled = model.optimizer.scale_loss(scaled)
        gradients = tape.gradient(scaled, self._trainable) if self._trainable else []
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return gradients

    def _track_loss(self, loss: tf.Tensor, x: Any, share: tf.Tensor) -> None:
        """Count this loss in the epoch's average, as Keras does: weighted by samples, or by batches in its older
        versions. A loss without reduction is a vector, of which the average is counted."""
        if len(loss.shape) > 0:
            loss = loss * tf.cast(share, loss.dtype)  # takes back its correction
        num_samples = tf.shape(first_leaf(x))[0] if seam.loss_tracker_counts_samples() else None
        seam.loss_tracker(self.model).update_state(loss, sample_weight=num_samples)

    def _weigh_sum(self, variable: Any, share: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
        """What a metric counted on this microbatch, such that the sum over microbatches is what it counts on the
        whole batch."""
        value = tf.convert_to_tensor(variable.value)
        if self._means.counts_batches(variable):
            value = value * tf.cast(share, value.dtype)
        return value * tf.cast(present, value.dtype)

    def _pack(self, gradients: Sequence[Any], changes: Sequence[Any], counts: Sequence[Any]) -> tuple[Any, Any]:
        """Fuse all tensors into one flat tensor a bucket; gradients in reverse order of use."""
        kinds = [_kind(gradient) for gradient in gradients]
        if self._jit:
            kinds = ["dense" if kind == "sparse" else kind for kind in kinds]  # XLA knows no tensors of unknown size
        order = [number for number in reversed(range(len(kinds))) if kinds[number] == "dense"]
        tensors = [tf.convert_to_tensor(gradients[number]) for number in order] + list(changes) + list(counts)
        sparse = [_merged(gradients[number]) for number, kind in enumerate(kinds) if kind == "sparse"]
        self._plan(kinds, order, tensors)
        flats = []
        for bucket in self.layout.buckets:
            pieces = [tf.reshape(tensors[slot.entry], [-1]) for slot in bucket.slots]
            flats.append(tf.concat(pieces, 0) if len(pieces) > 1 else pieces[0])
        return tuple(flats), tuple(sparse)

    def _plan(self, kinds: list[str], order: list[int], tensors: Sequence[tf.Tensor]) -> None:
        if self._layout is not None:
            assert kinds == self._gradient_kinds, "the same model gave other gradients"
            return
        targets = [self._trainable[number] for number in order] + self._states + self._sums
        entries = [  # a gradient's own shape may be known only when it is computed
            (variable.path, tuple(variable.shape), np.dtype(tensor.dtype.as_numpy_dtype).name)
            for variable, tensor in zip(targets, tensors, strict=True)
        ]
        sparse = [self._trainable[number] for number, kind in enumerate(kinds) if kind == "sparse"]
        buckets = plan_buckets(entries)
        digest = hashlib.sha256(f"{layout_digest(entries, buckets)} {[v.path for v in sparse]}".encode()).hexdigest()
        shapes = tuple((int(v.shape[0]), int(np.prod(v.shape[1:]))) for v in sparse)
        self._gradient_kinds, self._order = kinds, order
        dtypes = tuple(_dtype_of_sums(keras.backend.standardize_dtype(v.dtype)) for v in sparse)
        self._layout = Layout(buckets, shapes, dtypes, digest[:16])

    # ---------------------------------------------------------------------------------------------------- the change

    def _apply_step(self, flats: Sequence[tf.Tensor], sparse: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> dict[str, Any]:
        """Adopt the sums. Returns the model's metrics after it."""
        targets = [self._trainable[number] for number in self._order] + self._states + self._sums
        pieces: dict[int, tf.Tensor] = {}
        for bucket, flat in zip(self.layout.buckets, flats, strict=True):
            split = tf.split(flat, [s.size for s in bucket.slots]) if len(bucket.slots) > 1 else [flat]
            for slot, piece in zip(bucket.slots, split, strict=True):
                pieces[slot.entry] = tf.reshape(piece, targets[slot.entry].shape)
        if self._trainable:
            self._apply_gradients(pieces, sparse)
        for entry in range(len(self._order), len(targets)):
            targets[entry].assign_add(pieces[entry])
        return self.model.get_metrics_result()

    def _apply_gradients(self, pieces: dict[int, tf.Tensor], sparse: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> None:
        gradients: list[Any] = [None] * len(self._trainable)
        for entry, number in enumerate(self._order):
            gradients[number] = pieces[entry]
        numbers = [number for number, kind in enumerate(self._gradient_kinds) if kind == "sparse"]
        for number, (ids, rows) in zip(numbers, sparse, strict=True):
            shape = self._trainable[number].shape
            rows = tf.cast(tf.reshape(rows, [-1, *shape[1:]]), self._trainable[number].dtype)
            slices = tf.IndexedSlices(rows, ids, tf.constant(tuple(shape), tf.int64))
            gradients[number] = tf.convert_to_tensor(slices) if _needs_dense(self.model.optimizer) else slices
        self.model.optimizer.apply_gradients(zip(gradients, self._trainable, strict=True))

    # ------------------------------------------------------------------------------------------------------- measuring

    def _measure_step(self, data: Any) -> tf.Tensor:
        x, y, sample_weight = data
        divisors: dict[int, tf.Tensor] = {}
        arguments = {"training": False} if seam.calls_with_training(self.model) else {}
        with self._untouched(), self._means.silenced():
            y_pred = self.model(x, **arguments)
            with self._corrections.measure(divisors):
                seam.compile_loss(self.model)(y, y_pred, sample_weight)
        one = tf.constant(1.0, tf.float64)
        return tf.stack([divisors.get(number, one) for number in range(self.measure_width)])

    @property
    def _runs_eagerly(self) -> bool:
        return bool(self.model.run_eagerly)

    @property
    def _jit(self) -> bool:
        return bool(self.model.jit_compile) and not self._runs_eagerly

    def _compile(self, step: Callable[..., Any]) -> Any:
        if self._runs_eagerly:
            return step
        # A partial, because TensorFlow warns of retracing when functions with the same code are traced again and again,
        # as those of several models are.
        unique = functools.partial(step)
        return tf.function(unique, jit_compile=self._jit or None, autograph=False, reduce_retracing=True)


def _unique(variables: Any) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())


def _is_number(variable: Any) -> bool:
    return variable.dtype not in ("bool", "string")


def _as_array(tensor: tf.Tensor) -> np.ndarray:
    """The tensor's own memory on the CPU; a copy from elsewhere."""
    return np.asarray(tensor)


def _as_tensor(buffer: np.ndarray) -> tf.Tensor:
    is_aligned = buffer.ctypes.data % ALIGNMENT_BYTES == 0  # TensorFlow aborts on memory that is not
    if is_aligned and buffer.dtype.isbuiltin == 1 and buffer.dtype != np.bool_:
        return tf.experimental.dlpack.from_dlpack(buffer.__dlpack__())
    return tf.constant(buffer)


def _kind(gradient: Any) -> str:
    if gradient is None:
        return "none"
    return "sparse" if isinstance(gradient, tf.IndexedSlices) else "dense"


def _merged(slices: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """Each id once, ascending; rows summed, in float32 or float64, [ids, width]."""
    values = tf.reshape(slices.values, [tf.shape(slices.values)[0], -1])
    values = tf.cast(values, _dtype_of_sums(slices.dtype.name))
    ids, places = tf.unique(tf.cast(slices.indices, tf.int64))
    rows = tf.math.unsorted_segment_sum(values, places, tf.shape(ids)[0])
    order = tf.argsort(ids, stable=True)
    return tf.gather(ids, order), tf.gather(rows, order)


def _dtype_of_sums(dtype: str) -> str:
    """The type in which sparse rows are summed."""
    return "float64" if dtype == "float64" else "float32"


def _weigh_state(variable: Any, change: tf.Tensor, share: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
    """A state variable's change on this microbatch, such that the sum is the change of the round, as the variable's
    `aggregation` declares: a sum, the first microbatch's, or else the mean over samples. Whole numbers (counters)
    have no mean: the first microbatch's change stands for all."""
    if variable.aggregation == "sum":
        return change
    if variable.aggregation == "only_first_replica" or not change.dtype.is_floating:
        return change * tf.cast(first, change.dtype)
    return change * tf.cast(share, change.dtype)


def _needs_dense(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether the optimizer does arithmetic on whole gradients, for which sparse rows have to be laid out."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    names = ("clipnorm", "global_clipnorm", "clipvalue", "gradient_accumulation_steps")
    return any(getattr(inner, name, None) for name in names) or inner is not optimizer
