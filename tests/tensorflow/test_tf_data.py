"""`tf.data` pipelines: fed as Keras feeds them, and alike to a worker that comes in the middle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from feeding import epoch_of, first_batch, ignore_short_epochs, kerass_epochs, numbers, our_epochs, plain
from paceline.keras.datasets import make_batches
from paceline.keras.tf_data import Replay, examine, is_batched


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


@pytest.mark.slow
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
    assert batch.fingerprint == first_batch(dataset).fingerprint


def test_the_values_of_a_numeric_pipeline_are_read_in_place() -> None:
    tensor = tf.zeros((1000, 1000))
    taken = first_batch(tf.data.Dataset.from_tensors(tensor)).take(10, 20)[0]
    assert isinstance(taken, np.ndarray)
    assert taken.base is not None
