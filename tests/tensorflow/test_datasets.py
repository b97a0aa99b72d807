"""What users pass to `fit`: the same batches as plain Keras feeds, for every worker, also for one that comes late."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from feeding import (
    FEEDS_AS_TODAY,
    epoch_of,
    first_batch,
    ignore_short_epochs,
    kerass_epochs,
    numbers,
    our_epochs,
    plain,
)
from paceline.data.structure import map_leaves
from paceline.errors import ConfigError
from paceline.keras.datasets import make_batches, split_validation

X = np.arange(60, dtype=np.float64).reshape(20, 3)
Y = np.arange(20) % 3
W = np.linspace(1.0, 2.0, 20)


# ---------------------------------------------------------------------------------------------------------- in memory

IN_MEMORY: dict[str, dict[str, Any]] = {
    "an array": {"x": X},
    "inputs and targets": {"x": X, "y": Y},
    "weights": {"x": X, "y": Y, "sample_weight": W},
    "a batch size": {"x": X, "y": Y, "batch_size": 7},
    "steps alone": {"x": X, "y": Y, "steps_per_epoch": 3},
    "steps that do not fit": {"x": X, "y": Y, "batch_size": 3, "steps_per_epoch": 4},
    "more steps than there are": {"x": X, "y": Y, "batch_size": 8, "steps_per_epoch": 10},
    "nested inputs": {"x": {"b": X, "a": [Y, W]}, "y": (Y, W), "batch_size": 6},
    "a weight for each sample of two outputs": {"x": X, "y": {"p": Y, "q": W}, "sample_weight": W},
    "weights for each output": {"x": X, "y": [Y, W], "sample_weight": [W, W * 2]},
    "whole numbers, booleans, small floats": {
        "x": [X.astype(np.uint8), X > 4, X.astype(np.float16), Y.astype(np.int32)],
        "y": Y.astype(np.int8),
    },
    "tensors": {"x": tf.constant(X), "y": tf.constant(Y, tf.int32), "batch_size": 6},
    "a small float tensor": {"x": tf.constant(X, tf.bfloat16), "y": tf.constant(Y)},
    "strings": {"x": np.array([f"text {number}" for number in Y], dtype=object), "y": Y},
    "string tensors": {"x": tf.constant([["a", str(number)] for number in Y]), "y": Y, "batch_size": 6},
    "class weights": {"x": X, "y": Y, "class_weight": {0: 2.0, 2: 0.5}},
    "class weights of one-hot targets": {"x": X, "y": np.eye(3)[Y], "class_weight": {0: 2.0, 2: 0.5}},
    "class weights of a column": {"x": X, "y": Y[:, None].astype(np.float32), "class_weight": {1: 3}},
    "ragged tensors": {"x": tf.RaggedTensor.from_row_lengths(X.ravel(), [0, 6, *[3] * 18]), "y": Y, "batch_size": 6},
    "sparse tensors": {"x": tf.sparse.from_dense(X * (X % 2)), "y": Y, "batch_size": 6},
}


@ignore_short_epochs
@pytest.mark.parametrize("name", IN_MEMORY)
def test_data_in_memory_is_fed_as_keras_feeds_it(name: str) -> None:
    arguments = {"shuffle": False, **IN_MEMORY[name]}
    assert our_epochs(4, **arguments) == kerass_epochs(4, **arguments)


def test_numpys_own_strings_are_strings_too() -> None:
    strings = IN_MEMORY["strings"]["x"]
    assert our_epochs(1, x=strings.astype(str)) == our_epochs(1, x=strings)


@ignore_short_epochs
@pytest.mark.parametrize("arguments", [{"steps_per_epoch": None}, {"steps_per_epoch": 2}, {"steps_per_epoch": 9}])
def test_evaluations_are_fed_as_keras_feeds_them(arguments: dict[str, Any]) -> None:
    arguments = {"x": X, "y": Y, "batch_size": 8, **arguments}
    assert our_epochs(3, purpose="evaluate", **arguments) == kerass_epochs(3, evaluate=True, **arguments)


def test_predictions_need_inputs_alone() -> None:
    ((first,),) = our_epochs(1, purpose="predict", x=tf.data.Dataset.from_tensor_slices((X, Y)).batch(32))
    assert first == (plain(X), None, None)


def test_pandas_frames_and_series_are_fed_as_keras_feeds_them() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": Y})
    for x in (frame, frame["a"], dict(frame), frame[["b"]]):
        arguments = {"x": x, "y": pandas.Series(Y), "shuffle": False, "batch_size": 6}
        assert our_epochs(1, **arguments) == kerass_epochs(1, **arguments)
    with pytest.raises(ConfigError, match="x has columns that are not numbers"):
        our_epochs(1, x=pandas.DataFrame({"a": [1.0, 2.0], "b": ["u", "v"]}))


def test_scipy_matrices_are_fed_as_keras_feeds_them() -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    arguments = {"x": scipy_sparse.csr_matrix(X * (X % 2)), "y": Y, "shuffle": False, "batch_size": 6}
    assert our_epochs(1, **arguments) == kerass_epochs(1, **arguments)


@pytest.mark.parametrize("name", ["an array", "strings", "ragged tensors", "sparse tensors", "weights"])
def test_shuffled_data_has_each_sample_once_and_the_same_order_everywhere(name: str) -> None:
    arguments = {**IN_MEMORY[name], "batch_size": 1, "shuffle": True}
    epochs = our_epochs(2, **arguments)
    assert our_epochs(2, **arguments) == epochs
    assert epochs[0] != epochs[1]
    unshuffled = our_epochs(1, **{**arguments, "shuffle": False})[0]
    for epoch in epochs:
        assert sorted(map(str, epoch)) == sorted(map(str, unshuffled))


@pytest.mark.parametrize("name", ["strings", "ragged tensors", "sparse tensors"])
def test_tensors_that_numpy_does_not_have_are_cut_and_compared_like_arrays(name: str) -> None:
    x = IN_MEMORY[name]["x"]
    batches = make_batches(x, purpose="fit", seed=1, batch_size=20)
    batches.begin_epoch(0)
    batch = batches.batch(0)
    assert batch is not None
    parts = [plain(batch.take(start, start + 1)[0]) for start in range(20)]
    single = make_batches(x, purpose="fit", seed=1, batch_size=1)
    single.begin_epoch(0)
    assert parts == [plain(one.take(0, 1)[0]) for step in range(20) if (one := single.batch(step))]
    assert make_batches(x, purpose="fit", seed=1).content() == batches.content()
    assert make_batches(x[:19] if name == "strings" else X, purpose="fit", seed=1).content() != batches.content()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": None}, "`x` is None"),
        ({"x": np.zeros((0, 3))}, "no rows"),
        ({"x": [1.0, 2.0]}, r"x\[0\] is of type float"),
        ({"x": X, "y": list(Y[:3].tolist())}, r"y\[0\] is of type int"),
        ({"x": X, "y": Y[:5]}, "20 rows in x; 5 rows in y"),
        ({"x": {"a": X, "b": X[:5]}}, r"5 rows in x\['b'\]"),
        ({"x": np.array([[1], [1, 2]], dtype=object)}, "Python objects"),
        ({"x": np.array(["2020-01-01"], dtype="datetime64[D]")}, "datetime64"),
        ({"x": X, "y": [Y, Y], "sample_weight": {"a": W, "b": W}}, "structure of `y`"),
        ({"x": X, "y": [Y, Y], "sample_weight": X}, "one number per sample"),
        ({"x": X, "y": Y, "sample_weight": W, "class_weight": {0: 1.0}}, "cannot be given together"),
        ({"x": X, "y": [Y, Y], "class_weight": {0: 1.0}}, "single output"),
        ({"x": X, "y": Y, "class_weight": {"a": 1.0}}, "class_weight"),
        ({"x": X, "batch_size": 0}, "batch_size"),
        ({"x": X, "batch_size": 2.5}, "batch_size"),
        ({"x": X, "steps_per_epoch": -1}, "steps_per_epoch"),
        ({"x": tf.data.Dataset.range(4).batch(2), "y": Y}, "`y` must not be given with a tf.data.Dataset"),
        ({"x": iter([(X,)]), "sample_weight": W}, "`sample_weight` must not be given with a generator"),
        ({"x": tf.data.Dataset.range(4)}, "not batched"),
        ({"x": tf.data.Dataset.range(4).batch(2).take(0)}, "empty"),
        ({"x": tf.data.Dataset.from_tensors((X, X, X, X))}, "not 4 parts"),
        ({"x": tf.data.Dataset.range(4).repeat().batch(2), "purpose": "evaluate"}, "give `steps`"),
        ({"x": iter(())}, "yields nothing"),
        ({"x": object()}, "object"),
    ],
)
def test_what_cannot_be_read_is_told_at_the_door(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_batches(**{"purpose": "fit", "seed": 1, **arguments})


# ------------------------------------------------------------------------------------------- PyDatasets and generators


class Slices(keras.utils.PyDataset):
    """Batches of five rows; it notes its hooks."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.hooks: list[str] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(5 * index, 5 * index + (5 if index < 3 else 3))
        return X[rows], Y[rows]

    def on_epoch_begin(self) -> None:
        self.hooks.append("begin")

    def on_epoch_end(self) -> None:
        self.hooks.append("end")


@ignore_short_epochs
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("steps", [None, 3])
def test_py_datasets_are_fed_as_keras_feeds_them(workers: int, steps: int | None) -> None:
    theirs, ours = Slices(), Slices(workers=workers)
    expected = kerass_epochs(3, x=theirs, steps_per_epoch=steps)
    assert our_epochs(3, x=ours, steps_per_epoch=steps) == expected
    if steps is None and FEEDS_AS_TODAY:
        assert ours.hooks == theirs.hooks
    newcomer = make_batches(Slices(), purpose="fit", seed=1, steps_per_epoch=steps)
    assert epoch_of(newcomer, 2, 1) == expected[2][1:]
    newcomer.close()


def test_a_shuffled_py_dataset_gives_each_batch_once_in_an_order_by_the_seed() -> None:
    unshuffled = our_epochs(1, x=Slices())[0]
    epochs = our_epochs(6, x=Slices(), shuffle=True)
    assert our_epochs(6, x=Slices(), shuffle=True) == epochs
    assert any(epoch != unshuffled for epoch in epochs)
    for epoch in epochs:
        assert sorted(map(str, epoch)) == sorted(map(str, unshuffled))


def test_class_weights_of_a_py_dataset_are_those_of_keras() -> None:
    arguments = {"class_weight": {0: 2.0, 1: 0.5}}
    assert our_epochs(1, x=Slices(), **arguments) == kerass_epochs(1, x=Slices(), **arguments)


def test_no_thread_of_a_py_dataset_is_left() -> None:
    before = threading.active_count()
    our_epochs(1, x=Slices(workers=4))
    assert threading.active_count() == before


def some_batches(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number in range(count):
        yield np.full((3, 2), number, dtype=np.float32), np.full(3, number)


@ignore_short_epochs
def test_generators_are_fed_as_keras_feeds_them() -> None:
    assert our_epochs(1, x=some_batches(5)) == kerass_epochs(1, x=some_batches(5))
    expected = kerass_epochs(3, x=some_batches(20), steps_per_epoch=4)
    assert our_epochs(3, x=some_batches(20), steps_per_epoch=4) == expected
    newcomer = make_batches(some_batches(20), purpose="fit", seed=1, steps_per_epoch=4)
    assert epoch_of(newcomer, 2, 1) == expected[2][1:]


def test_a_generator_that_runs_out_gives_no_more() -> None:
    batches = make_batches(some_batches(5), purpose="fit", seed=1)
    assert len(epoch_of(batches, 0)) == 5
    assert epoch_of(batches, 1) == []
    late = make_batches(some_batches(5), purpose="fit", seed=1)
    assert epoch_of(late, 1) == []


def test_generators_that_differ_have_different_fingerprints() -> None:
    def generator(seed: int) -> Iterator[tuple[np.ndarray]]:
        draw = random.Random(seed)
        yield (np.array([[draw.random()] for _ in range(4)]),)

    assert first_batch(generator(1)).fingerprint == first_batch(generator(1)).fingerprint
    assert first_batch(generator(1)).fingerprint != first_batch(generator(2)).fingerprint


# ------------------------------------------------------------------------------------------------------ what is said


def test_each_kind_of_data_says_what_it_is_and_who_reads_what() -> None:
    expected = {
        "20 samples in memory, shuffled with seed 1": (X, "each worker reads its own rows"),
        "a tf.data pipeline of 3 batches": (numbers().batch(5), "every worker reads the same stream"),
        "a tf.data pipeline without end": (numbers().repeat().batch(5), "every worker reads the same stream"),
        "a tf.data pipeline of 3 batches, batched here by 5": (numbers(), "every worker reads the same stream"),
        "a PyDataset of 4 batches, in an order by seed 1": (Slices(), "every worker reads the same batches"),
        "a Python generator, read once from its start": (some_batches(3), "every worker reads the same stream"),
    }
    for description, (x, policy) in expected.items():
        batch_size = 5 if "here" in description else None
        batches = make_batches(x, purpose="fit", seed=1, shuffle=True, batch_size=batch_size)
        assert batches.description == description
        assert batches.policy.startswith(policy)
        batches.close()


def test_signatures_tell_data_of_other_shapes_types_and_sizes_apart() -> None:
    kinds = [
        X,
        X[:19],
        X[:, :2],
        Y,
        numbers().batch(5),
        numbers(20).batch(5),
        numbers().map(lambda x, y: x).batch(5),
        Slices(),
        some_batches(2),
    ]
    assert len({make_batches(x, purpose="fit", seed=1).signature() for x in kinds}) == len(kinds)


# --------------------------------------------------------------------------------------------------------- validation


@pytest.mark.parametrize("name", ["weights", "nested inputs", "tensors", "strings", "a small float tensor"])
def test_a_validation_split_is_that_of_keras(name: str) -> None:
    from keras.src.trainers.data_adapters.array_slicing import train_validation_split

    chosen = IN_MEMORY[name]
    arrays = (chosen["x"], chosen.get("y"), chosen.get("sample_weight"))
    theirs = train_validation_split(arrays, validation_split=0.3)
    for ours, (x, y, sample_weight) in zip(split_validation(arrays, 0.3), theirs, strict=True):
        x, y, sample_weight = map_leaves(lambda _, part: getattr(part, "array", part), (x, y, sample_weight))
        arguments = {"shuffle": False, "batch_size": 6}
        expected = kerass_epochs(1, x=x, y=y, sample_weight=sample_weight, **arguments)
        assert our_epochs(1, x=ours[0], y=ours[1], sample_weight=ours[2], **arguments) == expected


def test_what_cannot_be_split_is_told() -> None:
    with pytest.raises(ConfigError, match="arrays and tensors only"):
        split_validation((numbers(), None, None), 0.2)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        split_validation((X, Y, None), 1.5)
    with pytest.raises(ConfigError, match="leaves no samples"):
        split_validation((X[:2], Y[:2], None), 0.9)
