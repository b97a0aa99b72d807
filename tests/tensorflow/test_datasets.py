"""What users pass to `fit`: the same batches as plain Keras feeds, for every worker, also for one that comes late."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from paceline.data.protocols import GlobalBatches
from paceline.errors import ConfigError
from paceline.keras.datasets import make_batches, split_validation
from paceline.keras.tf_data import Replay, examine, is_batched

X = np.arange(60, dtype=np.float64).reshape(20, 3)
Y = np.arange(20) % 3
W = np.linspace(1.0, 2.0, 20)

ignore_short_epochs = pytest.mark.filterwarnings("ignore:the data ended", "ignore:Your input ran out of data")


def plain(structure: Any) -> Any:
    """Nested lists, with the type of each leaf."""
    return keras.tree.map_structure(lambda leaf: None if leaf is None else _plain_leaf(leaf), structure)


def _plain_leaf(leaf: Any) -> str:
    if isinstance(leaf, tf.RaggedTensor):
        return f"ragged {leaf.dtype.name} {leaf.to_list()}"
    if isinstance(leaf, tf.SparseTensor):
        leaf = tf.sparse.to_dense(leaf)
    array = np.asarray(leaf)
    return f"{array.dtype.name} {array.tolist()}"


def kerass_epochs(num_epochs: int, *, evaluate: bool = False, **arguments: Any) -> list[list[Any]]:
    """What plain Keras feeds its train function."""
    iterator = TFEpochIterator(distribute_strategy=tf.distribute.get_strategy(), steps_per_execution=1, **arguments)
    iterator.reset()
    epochs: list[list[Any]] = []
    for _ in range(num_epochs):
        if evaluate:
            iterator.reset()
        steps: list[Any] = []
        with iterator.catch_stop_iteration():
            for _, _, batches in iterator:
                steps.append(plain(keras.utils.unpack_x_y_sample_weight(next(batches))))
        epochs.append(steps)
    return epochs


def epoch_of(batches: GlobalBatches, epoch: int, first_step: int = 0) -> list[Any]:
    batches.begin_epoch(epoch, first_step)
    steps: list[Any] = []
    while (batch := batches.batch(first_step + len(steps))) is not None:
        steps.append(plain(batch.take(0, batch.num_samples)))
    return steps


def our_epochs(num_epochs: int, **arguments: Any) -> list[list[Any]]:
    batches = make_batches(**{"purpose": "fit", "seed": 1, **arguments})
    epochs = [epoch_of(batches, epoch) for epoch in range(num_epochs)]
    batches.close()
    return epochs


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


# ---------------------------------------------------------------------------------------------------------- pipelines


def numbers(count: int = 12) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((np.arange(count, dtype=np.float64), np.arange(count) % 3))


def noisy(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return x + tf.random.uniform([], dtype=tf.float64), y


PIPELINES: dict[str, tuple[Callable[[], tf.data.Dataset], Replay]] = {
    "batched": (lambda: numbers().batch(5), Replay.NOTHING),
    "shuffled": (lambda: numbers().shuffle(12, seed=3).batch(5), Replay.CREATE),
    "shuffled by the global seed": (lambda: numbers().shuffle(12).batch(5).prefetch(2), Replay.CREATE),
    "mapped in parallel": (
        lambda: numbers().shuffle(12).map(lambda x, y: (x * 2, y), num_parallel_calls=2).batch(5).prefetch(1),
        Replay.CREATE,
    ),
    "cached, then shuffled": (lambda: numbers().cache().shuffle(12).batch(5), Replay.CREATE),
    "repeated, then shuffled": (lambda: numbers().repeat(2).shuffle(30).batch(5), Replay.CREATE),
    "filtered": (lambda: numbers().shuffle(12).filter(lambda x, y: y > 0).batch(3), Replay.CREATE),
    "padded": (
        lambda: tf.data.Dataset.range(7).shuffle(7).map(lambda v: tf.range(v)).padded_batch(3),
        Replay.CREATE,
    ),
    "shuffled twice": (lambda: numbers().shuffle(12).shuffle(4).batch(5), Replay.FIRST),
    "batches shuffled": (lambda: numbers().shuffle(12).batch(2).shuffle(6), Replay.FIRST),
    "files interleaved": (
        lambda: (
            tf.data.Dataset.range(4)
            .shuffle(4)
            .interleave(lambda f: tf.data.Dataset.range(3).map(lambda v: f * 10 + v), num_parallel_calls=2)
            .shuffle(10)
            .batch(5)
        ),
        Replay.FIRST,
    ),
    "random values": (lambda: numbers().map(noisy).batch(5), Replay.NOTHING),
    "shuffled, random values": (lambda: numbers().shuffle(12).map(noisy).batch(5), Replay.CREATE),
    "shuffled, then cached": (lambda: numbers().shuffle(12).cache().batch(5), Replay.ALL),
    "shuffled, then repeated": (lambda: numbers().shuffle(12).repeat(2).batch(5), Replay.ALL),
    "two shuffles one after the other": (
        lambda: numbers().shuffle(12).concatenate(numbers().shuffle(12)).batch(5),
        Replay.ALL,
    ),
    "one order for all epochs": (
        lambda: numbers().shuffle(12, reshuffle_each_iteration=False).batch(5),
        Replay.CREATE,
    ),
    "without end": (lambda: numbers().shuffle(12).repeat().batch(5), Replay.ALL),
}


def built(name: str) -> tf.data.Dataset:
    """A pipeline as a fresh process builds it."""
    tf.random.set_seed(7)
    return PIPELINES[name][0]()


@ignore_short_epochs
@pytest.mark.parametrize("steps", [None, 2, 4])
@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_are_fed_as_keras_feeds_them_and_alike_to_a_worker_that_comes_late(
    name: str, steps: int | None
) -> None:
    if steps is None and name == "without end":
        pytest.skip("an epoch without end")
    expected = kerass_epochs(4, x=built(name), steps_per_epoch=steps)
    assert our_epochs(4, x=built(name), steps_per_epoch=steps) == expected
    for epoch, step in ((2, 1), (3, 0)):
        newcomer = make_batches(built(name), purpose="fit", seed=1, steps_per_epoch=steps)
        assert epoch_of(newcomer, epoch, step) == expected[epoch][step:]
        newcomer.close()


@ignore_short_epochs
@pytest.mark.parametrize("steps", [None, 2])
@pytest.mark.parametrize("name", ["shuffled", "filtered", "shuffled twice", "without end"])
def test_evaluations_of_pipelines_are_fed_as_keras_feeds_them(name: str, steps: int | None) -> None:
    if steps is None and name == "without end":
        pytest.skip("an epoch without end")
    expected = kerass_epochs(3, evaluate=True, x=built(name), steps_per_epoch=steps)
    arguments: dict[str, Any] = {"purpose": "evaluate", "steps_per_epoch": steps, "seed": 1}
    assert our_epochs(3, x=built(name), **arguments) == expected
    assert epoch_of(make_batches(built(name), **arguments), 2, 1) == expected[2][1:]


@pytest.mark.parametrize("name", PIPELINES)
def test_a_look_at_a_pipeline_tells_what_its_earlier_passes_need(name: str) -> None:
    assert examine(built(name)).replay is PIPELINES[name][1]


def test_python_code_in_a_pipeline_is_found() -> None:
    outer = numbers().shuffle(12)
    for dataset in (
        tf.data.Dataset.from_generator(lambda: iter([1, 2]), output_signature=tf.TensorSpec((), tf.int32)),
        numbers().map(lambda x, y: (tf.numpy_function(lambda v: v, [x], tf.float64), y)),
        tf.data.Dataset.range(2).flat_map(lambda _: outer),
    ):
        nature = examine(dataset.batch(2))
        assert nature.replay is Replay.ALL
        assert nature.caveat is not None


@pytest.mark.parametrize("parallel", [None, 2])
def test_variables_that_a_pipeline_changes_are_found(parallel: int | None) -> None:
    """Keras' random layers count in a variable. In sequence that can be replayed, in parallel it cannot."""
    counter = tf.Variable(0, dtype=tf.int64)
    layer = keras.layers.RandomFlip(seed=3)
    images = tf.data.Dataset.from_tensors((tf.zeros((2, 4, 4, 3)), tf.zeros(2)))
    for dataset in (
        images.map(lambda x, y: (layer(x, training=True), y), num_parallel_calls=parallel),
        numbers().map(lambda x, y: (x, tf.cond(y > 1, lambda: counter.assign_add(1), lambda: y)), parallel),
    ):
        nature = examine(dataset.batch(2))
        assert nature.inputs_vary == (parallel is not None)
        assert nature.replay is (Replay.ALL if parallel is None else Replay.NOTHING)


def test_what_may_differ_between_workers_is_told() -> None:
    tf.random.set_seed(7)
    assert examine(numbers().shuffle(4)).caveat is None
    parallel = examine(numbers().map(noisy, num_parallel_calls=2).batch(2))
    assert "in parallel" in str(parallel.caveat)
    assert parallel.inputs_vary
    assert not examine(numbers().map(noisy).batch(2)).inputs_vary
    tf.random.set_seed(None)
    assert "without a seed" in str(examine(numbers().shuffle(4).batch(2)).caveat)
    assert examine(numbers().shuffle(4, seed=1).batch(2)).caveat is None


def test_augmentation_in_parallel_differs_between_workers_and_still_counts_as_the_same_samples() -> None:
    """TensorFlow draws such numbers in whatever order its threads come by; the order of samples stays."""

    def fingerprints(seed: int) -> list[int]:
        tf.random.set_seed(seed)
        batches = make_batches(numbers(50).map(noisy, num_parallel_calls=4).batch(10), purpose="fit", seed=1)
        batches.begin_epoch(0)
        return [batch.fingerprint for step in range(5) if (batch := batches.batch(step))]

    assert fingerprints(1) == fingerprints(2)


def test_a_fresh_process_finds_the_order_of_a_later_epoch() -> None:
    """The same with a real process: the fourth pass of a pipeline that shuffles twice, begun at its second batch."""
    script = (
        "import tensorflow as tf\n"
        "from paceline.keras.datasets import make_batches\n"
        "tf.random.set_seed(7)\n"
        "batches = make_batches(tf.data.Dataset.range(12).shuffle(12).shuffle(5).batch(5), purpose='fit', seed=1)\n"
        "batches.begin_epoch(3, 1)\n"
        "print([batches.batch(step).take(0, 2)[0].tolist() for step in (1, 2)])\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, check=True)
    tf.random.set_seed(7)
    batches = make_batches(tf.data.Dataset.range(12).shuffle(12).shuffle(5).batch(5), purpose="fit", seed=1)
    for epoch in range(3):
        assert len(epoch_of(batches, epoch)) == 3
    batches.begin_epoch(3)
    expected = [batch.take(0, 2)[0].tolist() for step in (1, 2) if (batch := batches.batch(step))]
    assert process.stdout.strip() == str(expected)


def test_a_pipeline_that_is_not_batched_is_batched_here() -> None:
    expected = kerass_epochs(2, x=numbers().batch(5))
    assert our_epochs(2, x=numbers(), batch_size=5) == expected
    assert our_epochs(2, x=numbers().batch(5), batch_size=3) == expected


def test_batching_is_found_wherever_it_stands() -> None:
    assert is_batched(numbers().batch(5).map(lambda x, y: (x, y)).prefetch(1).repeat())
    assert is_batched(numbers().padded_batch(5).shuffle(3))
    assert not is_batched(numbers().shuffle(3).repeat())
    assert not is_batched(numbers().batch(5).unbatch().shuffle(3))


@pytest.mark.parametrize("label_rank", [1, 2])
def test_class_weights_of_a_pipeline_are_those_of_keras(label_rank: int) -> None:
    def dataset() -> tf.data.Dataset:
        return numbers().map(lambda x, y: (x, tf.one_hot(y, 3) if label_rank == 2 else y)).batch(5)

    arguments = {"class_weight": {0: 2.0, 1: 0.5, 2: 4.0}}
    assert our_epochs(1, x=dataset(), **arguments) == kerass_epochs(1, x=dataset(), **arguments)


def test_a_nondeterministic_pipeline_is_made_deterministic() -> None:
    options = tf.data.Options()
    options.deterministic = False
    dataset = numbers(200).map(lambda x, y: (x, y), num_parallel_calls=4).batch(5).with_options(options)
    assert our_epochs(1, x=dataset) == our_epochs(1, x=numbers(200).batch(5))


def test_pipelines_of_dictionaries_strings_and_ragged_rows_are_cut() -> None:
    ragged = tf.RaggedTensor.from_row_lengths(np.arange(10), [1, 2, 3, 4])
    text = tf.constant(["a", "b", "c", "d"])
    dataset = tf.data.Dataset.from_tensor_slices({"text": text, "ragged": ragged}).ragged_batch(4)
    batches = make_batches(dataset, purpose="fit", seed=1)
    batches.begin_epoch(0)
    batch = batches.batch(0)
    assert batch is not None
    assert plain(batch.take(1, 3)[0]) == {"text": plain(text[1:3]), "ragged": plain(ragged[1:3])}
    assert batch.fingerprint == make_and_first(dataset).fingerprint


def make_and_first(x: Any) -> Any:
    batches = make_batches(x, purpose="fit", seed=1)
    batches.begin_epoch(0)
    return batches.batch(0)


def test_the_values_of_a_numeric_pipeline_are_read_in_place() -> None:
    tensor = tf.zeros((1000, 1000))
    taken = make_and_first(tf.data.Dataset.from_tensors(tensor)).take(10, 20)[0]
    assert isinstance(taken, np.ndarray)
    assert taken.base is not None


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
    if steps is None:
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

    assert make_and_first(generator(1)).fingerprint == make_and_first(generator(1)).fingerprint
    assert make_and_first(generator(1)).fingerprint != make_and_first(generator(2)).fingerprint


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
        x, y, sample_weight = keras.tree.map_structure(
            lambda part: getattr(part, "array", part), (x, y, sample_weight), none_is_leaf=False
        )
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
