"""Synchronous data parallelism: N members take the step of one, whatever the shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.communication.communicator import GroupCommunicator
from paceline.strategies.all_reduce import AllReduceRound, salt_of
from paceline.strategies.averaging import Reduction
from paceline.strategies.protocols import Ballot
from paceline.testing.cluster import run_group
from unit.strategies.linear import LinearProgram, Rows, group_for, make_rows, train

BATCHES = [make_rows(23, seed=1), make_rows(23, seed=2), make_rows(5, seed=3)]
WEIGHTED = [make_rows(23, seed=1, weighted=True), make_rows(4, seed=2, weighted=True)]


def reference(batches: list[Rows], *, weighted: bool = False) -> LinearProgram:
    """One process that takes each batch whole."""
    (program,) = train(1, batches, microbatch=1000, weighted=weighted, sparse=True)
    return program


def assert_close(program: LinearProgram, expected: LinearProgram) -> None:
    np.testing.assert_allclose(program.w, expected.w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(program.loss_sum, expected.loss_sum, rtol=1e-5)
    np.testing.assert_allclose(program.table, expected.table, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_n_members_take_the_step_of_one(size: int, weighted: bool, deterministic: bool) -> None:
    batches = WEIGHTED if weighted else BATCHES
    programs = train(size, batches, microbatch=4, weighted=weighted, sparse=True, deterministic=deterministic)
    for program in programs:
        assert_close(program, reference(batches, weighted=weighted))
        assert program.w.tobytes() == programs[0].w.tobytes()
        assert program.table.tobytes() == programs[0].table.tobytes()


@settings(max_examples=20, deadline=None)
@given(num_samples=st.integers(1, 40), microbatch=st.integers(1, 9))
def test_deterministic_bits_do_not_depend_on_the_number_of_members(num_samples: int, microbatch: int) -> None:
    batches = [make_rows(num_samples, seed=5), make_rows(num_samples, seed=6)]
    found = {
        (program.w.tobytes(), program.loss_sum.tobytes(), program.table.tobytes())
        for size in (1, 2, 3, 4)
        for program in train(size, batches, microbatch=microbatch, sparse=True, deterministic=True)
    }
    assert len(found) == 1


def test_without_it_the_bits_depend_on_the_number_of_members() -> None:
    batches = [make_rows(64, seed=seed) for seed in range(3)]
    found = {train(size, batches, microbatch=2)[0].w.tobytes() for size in (1, 2, 3, 4)}
    assert len(found) > 1  # or the test above would show nothing


def test_a_batch_smaller_than_the_group_leaves_members_with_nothing_to_do() -> None:
    programs = train(4, [make_rows(2)], microbatch=1, sparse=True)
    assert sorted(len(program.units) for program in programs) == [0, 0, 1, 1]
    for program in programs:
        assert_close(program, reference([make_rows(2)]))


def test_a_weighted_batch_without_any_weight_changes_nothing() -> None:
    rows = make_rows(6)
    rows = Rows(rows.x, rows.y, np.zeros(6, np.float32), rows.ids)
    before = LinearProgram().w
    for program in train(2, [rows], microbatch=2, weighted=True):
        assert program.w.tolist() == before.tolist()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_unit_of_work_has_the_same_salt_whoever_does_it(size: int) -> None:
    programs = train(size, [make_rows(10), make_rows(10)], microbatch=3)
    salts = [unit.salt for program in programs for unit in program.units]
    assert sorted(salts) == sorted(salt_of(0, number, 0, index) for number in (0, 1) for index in range(4))
    assert len(set(salts)) == 8


def test_exactly_one_unit_of_a_round_is_the_first() -> None:
    programs = train(3, [make_rows(10)], microbatch=2)
    firsts = [(rank, unit.first) for rank, program in enumerate(programs) for unit in program.units]
    assert [rank for rank, first in firsts if first] == [0]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_members_that_talk_in_the_forward_pass_run_one_unit_each(size: int) -> None:
    programs = train(size, [make_rows(7)], microbatch=2, synchronous=True)
    assert [len(program.units) for program in programs] == [1] * size
    shares = [program.units[0].share for program in programs]
    assert sum(shares) == pytest.approx(1.0)
    for program in programs:
        (unit,) = program.units
        assert unit.present == (unit.num_samples > 0)
        assert len(unit.data[0]) >= 1, "a member without samples keeps the others company with one of theirs"
        np.testing.assert_allclose(program.w, reference([make_rows(7)]).w, rtol=1e-5)


def test_an_evaluation_covers_several_batches_in_one_round() -> None:
    batches = [make_rows(9, seed=1, weighted=True), make_rows(4, seed=2, weighted=True)]

    def body(communicator: GroupCommunicator) -> LinearProgram:
        program = LinearProgram(weighted=True)
        activity = AllReduceRound(
            program,
            batches,
            name="evaluate",
            step=None,
            microbatch=2,
            salt=(),
            reduction=Reduction(deterministic=False),
        )
        assert activity.samples == 13
        work = activity.work(group_for(communicator.size), communicator.rank, communicator)
        activity.change(activity.talk(work, communicator))
        return program

    expected = sum(
        float((rows.weights * (rows.x @ LinearProgram().w - rows.y) ** 2).sum() / rows.weights.sum())
        for rows in batches
    )
    for program in run_group(3, body):
        assert float(program.loss_sum[0]) == pytest.approx(expected, rel=1e-5)


def test_the_ballot_tells_other_data_and_other_sums_apart() -> None:
    def body(communicator: GroupCommunicator) -> Ballot:
        rows = make_rows(8)
        batch = Rows(rows.x, rows.y, rows.weights, rows.ids, fingerprint=7 + communicator.rank // 2)
        activity = AllReduceRound(
            LinearProgram(sparse=True),
            [batch],
            name="fit",
            step=0,
            microbatch=2,
            salt=(),
            reduction=Reduction(deterministic=False),
            halt=communicator.rank == 1,
        )
        work = activity.work(group_for(3), communicator.rank, communicator)
        return activity.ballot(work, activity.talk(work, communicator))

    first, second, third = run_group(3, body)
    assert first.digest == second.digest == third.digest != 0
    assert first.fingerprint == second.fingerprint != third.fingerprint
    assert [first.halt, second.halt, third.halt] == [False, True, False]


@given(st.lists(st.integers(-(2**70), 2**70), max_size=6))
def test_a_salt_is_two_words_and_depends_on_every_number(numbers: list[int]) -> None:
    low, high = salt_of(*numbers)
    assert 0 <= low < 2**32
    assert 0 <= high < 2**32
    for place in range(len(numbers)):
        changed = [*numbers[:place], numbers[place] + 1, *numbers[place + 1 :]]
        assert salt_of(*changed) != (low, high)
    assert salt_of(*numbers, 0) != (low, high)
    assert salt_of(*numbers) == (low, high)
