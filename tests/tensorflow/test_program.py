"""A model's work as a `Program`: what one microbatch contributes, that it leaves no trace, and what the sum does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from paceline.communication.protocols import Communicator
from paceline.keras.program import KerasProgram
from paceline.keras.synchronized import SynchronizedMoments
from paceline.strategies.protocols import Contribution, Microbatch, SparseRows

X = np.random.default_rng(1).normal(size=(10, 3)).astype(np.float32)
Y = np.random.default_rng(2).normal(size=(10, 2)).astype(np.float32)
NOBODY: Communicator = None  # type: ignore[assignment]  # these programs talk to nobody


def program_of(model: keras.Model, data: Any, *, training: bool = True) -> KerasProgram:
    program = KerasProgram(model, training=training, moments=SynchronizedMoments(model))
    program.prepare(data)
    return program


def simple(**options: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], **options)
    return model


def noisy(**options: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(2)]
    )
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"], **options)
    return model


def cut(start: int, stop: int, *, salt: tuple[int, int] = (1, 2), **options: Any) -> Microbatch:
    share = (stop - start) / len(X)
    return Microbatch((X[start:stop], Y[start:stop], None), stop - start, share, salt, first=start == 0, **options)


def total_of(contributions: Sequence[Contribution]) -> Contribution:
    """Their sum."""
    return Contribution(tuple(sum(parts) for parts in zip(*(c.buffers for c in contributions), strict=True)))


def values(model: keras.Model) -> dict[str, bytes]:
    """The bits of everything that training could change."""
    variables = [*model.variables, *model.optimizer.variables, *(v for m in model.metrics for v in m.variables)]
    return {f"{number} {v.path}": np.asarray(v.value).tobytes() for number, v in enumerate(variables)}


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_a_contribution_leaves_no_trace_in_the_model(eagerly: bool, training: bool) -> None:
    model = noisy(run_eagerly=eagerly)
    program = program_of(model, (X[:4], Y[:4], None), training=training)
    before = values(model)
    program.contribute(cut(0, 4), NOBODY)
    program.measure((X[:4], Y[:4], None))
    assert values(model) == before


def test_the_sum_of_contributions_does_not_depend_on_the_cuts() -> None:
    program = program_of(simple(), (X[:4], Y[:4], None))
    whole = program.contribute(cut(0, 10), NOBODY)
    for bounds in ((0, 5, 10), (0, 1, 2, 9, 10), (0, 3, 6, 9, 10)):
        pieces = [program.contribute(cut(start, stop), NOBODY) for start, stop in itertools.pairwise(bounds)]
        for summed, expected in zip(total_of(pieces).buffers, whole.buffers, strict=True):
            np.testing.assert_allclose(summed, expected, rtol=2e-6, atol=1e-6)


def test_applying_the_sum_is_a_step_of_keras() -> None:
    plain = simple()
    logs = plain.train_on_batch(X, Y, return_dict=True)
    model = simple()
    program = program_of(model, (X[:4], Y[:4], None))
    program.apply(total_of([program.contribute(cut(0, 7), NOBODY), program.contribute(cut(7, 10), NOBODY)]))
    for variable, expected in zip(model.variables, plain.variables, strict=True):
        np.testing.assert_allclose(variable, expected, rtol=1e-6, atol=1e-7)
    assert {name: pytest.approx(float(value), rel=1e-6) for name, value in program.logs.items()} == logs
    assert int(model.optimizer.iterations) == 1


def test_a_single_contribution_is_handed_back_as_it_is() -> None:
    program = program_of(simple(), (X, Y, None))
    contribution = program.contribute(cut(0, 10), NOBODY)
    assert contribution.origin is not None
    program.apply(contribution)
    assert float(program.logs["loss"]) > 0


def test_one_trace_serves_any_number_of_rows() -> None:
    program = program_of(simple(), (X[:4], Y[:4], None))
    for stop in (4, 3, 1, 10):
        program.contribute(cut(0, stop), NOBODY)
    program.prepare((X[:7], Y[:7], None))
    assert program._contribute.experimental_get_tracing_count() == 1
    program.prepare((X[:7], Y[:7], np.ones(7, np.float32)))
    assert program._contribute.experimental_get_tracing_count() == 2


def test_the_number_of_sparse_rows_does_not_trace_again() -> None:
    model = keras.Sequential(
        [keras.Input((2,), dtype="int32"), layers.Embedding(50, 3), layers.Flatten(), layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    program = program_of(model, (np.zeros((4, 2), np.int32), Y[:4, :1], None))
    for distinct in (1, 2, 3, 4, 5, 6):
        ids = (np.arange(8, dtype=np.int32) % distinct).reshape(4, 2)
        contribution = program.contribute(Microbatch((ids, Y[:4, :1], None), 4, 1.0, (0, 0)), NOBODY)
        assert contribution.sparse[0].ids.tolist() == list(range(distinct))
        program.apply(contribution)
    assert program._apply.experimental_get_tracing_count() <= 2


def test_sparse_gradients_name_each_row_once_and_give_the_dense_gradient() -> None:
    table = layers.Embedding(9, 3)
    model = keras.Sequential([keras.Input((4,), dtype="int32"), table, layers.Flatten(), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    ids = np.array([[8, 1, 1, 8], [8, 3, 3, 3]], np.int32)
    before = np.asarray(table.embeddings)
    program = program_of(model, (ids, Y[:2, :1], None))
    rows = program.contribute(Microbatch((ids, Y[:2, :1], None), 2, 1.0, (0, 0)), NOBODY).sparse[0]
    assert rows.ids.tolist() == [1, 3, 8]
    model.train_on_batch(ids, Y[:2, :1])
    np.testing.assert_allclose(before[rows.ids] - rows.rows, np.asarray(table.embeddings)[rows.ids], rtol=1e-6)


def test_random_numbers_belong_to_the_salt() -> None:
    program = program_of(noisy(), (X, Y, None))

    def contributed(salt: tuple[int, int]) -> list[bytes]:
        return [buffer.tobytes() for buffer in program.contribute(cut(0, 10, salt=salt), NOBODY).buffers]

    assert contributed((1, 2)) == contributed((1, 2))
    assert contributed((1, 2)) != contributed((1, 3))
    assert contributed((1, 2)) != contributed((2, 2))


def test_frozen_weights_do_not_travel() -> None:
    model = simple()
    model.layers[0].trainable = False
    model.compile("sgd", "mse", metrics=["mae"])
    program = program_of(model, (X, Y, None))
    assert (
        sum(bucket.num_elements for bucket in program.layout.buckets) == 4 * 2 + 2 + 2 * 2
    )  # and two sums of loss and mae


def test_a_member_without_rows_counts_nothing() -> None:
    program = program_of(noisy(), (X, Y, None))
    absent = Microbatch((X[:1], Y[:1], None), 0, 0.0, (1, 2), first=False, present=False)
    for buffer in program.contribute(absent, NOBODY).buffers:
        np.testing.assert_array_equal(buffer, np.zeros_like(buffer))


def test_weights_that_the_data_tell_are_measured() -> None:
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    program = program_of(model, (X, Y, None))
    assert not program.needs_divisors
    weights = np.arange(10, dtype=np.float32)
    program.prepare((X, Y, weights))
    assert program.needs_divisors
    assert program.measure((X[:4], Y[:4], weights[:4])).tolist() == [6.0]


def test_what_travels_is_what_the_layout_says() -> None:
    program = program_of(noisy(), (X, Y, None))
    contribution = program.contribute(cut(0, 10), NOBODY)
    assert [len(buffer) for buffer in contribution.buffers] == [b.num_elements for b in program.layout.buckets]
    assert contribution.sparse == ()
    assert len(program.layout.digest) == 16


def test_sums_from_numpy_are_adopted() -> None:
    """Memory that is not TensorFlow's own, as it comes from the other workers."""
    model = keras.Sequential(
        [keras.Input((2,), dtype="int32"), layers.Embedding(5, 3), layers.Flatten(), layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(1.0), "mse")
    ids = np.array([[1, 2]], np.int32)
    program = program_of(model, (ids, Y[:1, :1], None))
    before = np.asarray(model.layers[0].embeddings)
    buffers = tuple(np.zeros(bucket.num_elements, np.float32) for bucket in program.layout.buckets)
    program.apply(Contribution(buffers, (SparseRows(np.array([4]), np.full((1, 3), 0.5, np.float32)),)))
    expected = before.copy()
    expected[4] -= 0.5
    np.testing.assert_allclose(model.layers[0].embeddings, expected, rtol=1e-6)
