"""Batches that are asked for by number."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from paceline.data.fetching import FetchedBatches, Fetching
from paceline.data.passes import Plan


class Numbers:
    """Batch b is [b]; it notes what was asked for and when epochs begin and end."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.hooks: list[str] = []

    def fetch(self, number: int) -> int:
        if number == 13:
            raise RuntimeError("batch 13 is bad")
        self.asked.append(number)
        return number

    def batches(self, plan: Plan, *, shuffle: bool = False, end_before: str = "first", readers: int = 1, **options):
        fetching = Fetching(
            self.fetch,
            lambda number: (np.array([number]), None, None),
            lambda: self.hooks.append("begin"),
            lambda: self.hooks.append("end"),
            end_before,
            readers,
        )
        return FetchedBatches(
            fetching, plan=plan, shuffle=shuffle, seed=5, description="numbers", signature="numbers", **options
        )


def read_epoch(batches: FetchedBatches, epoch: int, first_step: int = 0) -> list[int]:
    batches.begin_epoch(epoch, first_step)
    values: list[int] = []
    while (batch := batches.batch(first_step + len(values))) is not None:
        values.append(int(batch.take(0, 1)[0][0]))
    return values


@pytest.mark.parametrize("readers", [1, 3])
def test_each_batch_comes_once_in_an_order_of_its_own_for_each_epoch(readers: int) -> None:
    batches = Numbers().batches(Plan(9, None), shuffle=True, readers=readers)
    first, second = read_epoch(batches, 0), read_epoch(batches, 1)
    assert sorted(first) == sorted(second) == list(range(9))
    assert first != second
    newcomer = Numbers().batches(Plan(9, None), shuffle=True)
    assert read_epoch(newcomer, 1, 4) == second[4:]
    batches.close()
    newcomer.close()


def test_epochs_begin_and_end_as_keras_says_also_for_those_that_are_passed_over() -> None:
    present, newcomer = Numbers(), Numbers()
    batches = present.batches(Plan(2, None))
    for epoch in range(3):
        read_epoch(batches, epoch)
    assert present.hooks == ["end", "begin", "end", "begin", "end", "begin", "end"]
    batches.close()
    late = newcomer.batches(Plan(2, None))
    assert read_epoch(late, 2, 1) == [1]
    assert newcomer.hooks == present.hooks
    assert newcomer.asked == [1]
    late.close()


def test_evaluations_reset_the_data_each_time() -> None:
    numbers = Numbers()
    batches = numbers.batches(Plan(2, None, restart=True), end_before="every")
    read_epoch(batches, 0)
    read_epoch(batches, 1)
    assert numbers.hooks == ["end", "begin", "end"] * 2
    batches.close()


def test_an_epoch_that_is_begun_again_after_a_fault_calls_no_hook() -> None:
    numbers = Numbers()
    batches = numbers.batches(Plan(4, None))
    batches.begin_epoch(0)
    first = batches.batch(0)
    batches.begin_epoch(0, 0)
    assert batches.batch(0) is first
    assert numbers.hooks == ["end", "begin"]
    batches.close()


def test_batches_without_an_end_go_on_over_epochs() -> None:
    batches = Numbers().batches(Plan(None, 3))
    assert read_epoch(batches, 0) == [0, 1, 2]
    assert read_epoch(batches, 1) == [3, 4, 5]
    newcomer = Numbers().batches(Plan(None, 3))
    assert read_epoch(newcomer, 3, 1) == [10, 11]
    batches.close()
    newcomer.close()


def test_nothing_is_fetched_beyond_the_epoch() -> None:
    numbers = Numbers()
    batches = numbers.batches(Plan(6, 2), readers=4)
    assert read_epoch(batches, 0) == [0, 1]
    assert sorted(numbers.asked) == [0, 1]
    batches.close()


def test_an_error_of_the_data_set_comes_out_as_it_is() -> None:
    batches = Numbers().batches(Plan(20, None))
    batches.begin_epoch(0, 13)
    with pytest.raises(RuntimeError, match="batch 13 is bad"):
        batches.batch(13)
    batches.close()


def test_no_thread_is_left_after_close() -> None:
    before = threading.active_count()
    batches = Numbers().batches(Plan(9, None), readers=3)
    batches.begin_epoch(0)
    batches.batch(0)
    assert threading.active_count() > before
    batches.close()
    batches.close()
    assert threading.active_count() == before
