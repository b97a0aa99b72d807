"""Streams: the batches of an epoch, also for a worker that comes late, without reading more than is needed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.passes import Plan
from paceline.data.streams import StreamBatch, StreamBatches, batch_signature
from paceline.errors import ConfigError


class Reshuffling:
    """Passes that differ from each other: batch b of pass p is [100 p + b]. It notes what was read."""

    description = "numbers"
    caveat = None
    inputs_vary = False

    def __init__(self, num_batches: int, *, rewinds: bool = True) -> None:
        self._num_batches = num_batches
        self._lone = None if rewinds else self._pass(0)
        self.passed = 0
        self.opened: list[int] = []
        self.read: list[int] = []

    def signature(self) -> str:
        return "numbers"

    def pass_over(self, number: int) -> None:
        assert number >= self.passed
        self.passed = number

    def open(self, number: int) -> Iterator[int]:
        assert number not in self.opened
        assert number == self.passed
        self.opened.append(number)
        return self._pass(number) if self._lone is None else self._lone

    def _pass(self, number: int) -> Iterator[int]:
        for batch in range(self._num_batches):
            self.read.append(100 * number + batch)
            yield 100 * number + batch

    def close(self) -> None: ...


def prepare(number: int) -> tuple[object, object, object]:
    return np.array([number, number]), None, None


def stream(num_batches: int, plan: Plan, **options: object) -> StreamBatches:
    return StreamBatches(Reshuffling(num_batches), prepare, plan=plan, **options)


def value(batch: StreamBatch) -> int:
    return int(batch.take(0, 1)[0][0])


def read_epoch(batches: StreamBatches, epoch: int, first_step: int = 0) -> list[int]:
    batches.begin_epoch(epoch, first_step)
    values = []
    while (batch := batches.batch(first_step + len(values))) is not None:
        values.append(value(batch))
    return values


@pytest.mark.filterwarnings("ignore:the data ended")
@given(
    num_batches=st.integers(1, 9),
    known=st.booleans(),
    steps=st.none() | st.integers(1, 11),
    restart=st.booleans(),
    initial_epoch=st.integers(0, 3),
    data=st.data(),
)
def test_a_worker_that_comes_in_the_middle_sees_what_the_others_see(
    num_batches: int, known: bool, steps: int | None, restart: bool, initial_epoch: int, data: st.DataObject
) -> None:
    plan = Plan(num_batches if known else None, steps, restart)
    others = stream(num_batches, plan, initial_epoch=initial_epoch)
    epochs = [read_epoch(others, initial_epoch + epoch) for epoch in range(5)]
    epoch = data.draw(st.integers(0, 4))
    step = data.draw(st.integers(0, max(len(epochs[epoch]) - 1, 0)))
    newcomer = stream(num_batches, plan, initial_epoch=initial_epoch)
    assert read_epoch(newcomer, initial_epoch + epoch, step) == epochs[epoch][step:]
    for later in range(epoch + 1, 5):
        assert read_epoch(newcomer, initial_epoch + later) == epochs[later]


def test_epochs_of_given_steps_go_on_where_the_last_one_stopped() -> None:
    batches = stream(5, Plan(None, 3))
    assert read_epoch(batches, 0) == [0, 1, 2]
    with pytest.warns(UserWarning, match="ended after 2 of 3 steps"):
        assert read_epoch(batches, 1) == [3, 4]
    assert read_epoch(batches, 2) == [100, 101, 102]


def test_a_stream_of_unknown_length_that_ends_with_an_epoch_is_found_out_in_the_next() -> None:
    """As Keras does: the next epoch is empty, and the one after it begins the data anew."""
    batches = stream(6, Plan(None, 3))
    assert read_epoch(batches, 0) == [0, 1, 2]
    assert read_epoch(batches, 1) == [3, 4, 5]
    with pytest.warns(UserWarning, match="ended after 0 of 3 steps"):
        assert read_epoch(batches, 2) == []
    assert read_epoch(batches, 3) == [100, 101, 102]


def test_a_discarded_round_reads_its_batch_again() -> None:
    batches = stream(5, Plan(5, None))
    batches.begin_epoch(0)
    first = batches.batch(0)
    assert first is not None
    assert batches.batch(0) is first
    second = batches.batch(1)
    assert second is not None
    batches.begin_epoch(0, 1)
    assert batches.batch(1) is second
    last = [batches.batch(step) for step in (2, 3, 4)][-1]
    assert batches.batch(5) is None
    batches.begin_epoch(0, 4)
    assert batches.batch(4) is last


def test_what_has_gone_by_is_told_rather_than_guessed() -> None:
    batches = stream(5, Plan(5, None))
    batches.begin_epoch(1, 3)
    with pytest.raises(LookupError, match="step 1 has gone by"):
        batches.batch(1)
    with pytest.raises(LookupError, match="epoch 0 has gone by"):
        batches.begin_epoch(0)


def test_epochs_that_are_passed_over_are_not_read_where_nothing_depends_on_it() -> None:
    passes = Reshuffling(5)
    batches = StreamBatches(passes, prepare, plan=Plan(None, None))
    batches.begin_epoch(7, 2)
    assert passes.opened == [7]
    assert passes.read == [700, 701]


def test_a_call_that_ended_elsewhere_is_passed_over_and_nothing_is_opened() -> None:
    passes = Reshuffling(5)
    StreamBatches(passes, prepare, plan=Plan(None, None)).begin_epoch(4)
    assert passes.passed == 4
    assert passes.opened == []


def test_an_evaluation_may_begin_the_same_epoch_again() -> None:
    batches = stream(5, Plan(5, 3, restart=True))
    assert read_epoch(batches, 0) == [0, 1, 2]
    assert read_epoch(batches, 0) == [100, 101, 102]
    assert read_epoch(batches, 0, 2) == [102]
    assert read_epoch(batches, 1) == [200, 201, 202]


def test_a_generator_that_has_ended_gives_empty_epochs() -> None:
    batches = StreamBatches(Reshuffling(3, rewinds=False), prepare, plan=Plan(None, None))
    assert read_epoch(batches, 0) == [0, 1, 2]
    assert read_epoch(batches, 1) == []


def test_nothing_comes_after_close() -> None:
    batches = stream(5, Plan(5, None))
    batches.begin_epoch(0)
    batches.close()
    batches.close()
    assert batches.batch(0) is None


def test_a_batch_gives_its_rows_as_views() -> None:
    x, y = np.arange(12).reshape(6, 2), np.arange(6)
    batch = StreamBatch(({"a": x}, (y, None), None))
    taken, targets, weights = batch.take(2, 5)
    assert batch.num_samples == 6
    assert np.shares_memory(taken["a"], x)
    assert targets[0].tolist() == [2, 3, 4]
    assert targets[1] is None
    assert weights is None


def test_fingerprints_see_the_first_and_last_rows_and_the_size() -> None:
    x = np.arange(6.0)
    same = StreamBatch((x, None, None)).fingerprint
    assert StreamBatch((x.copy(), None, None)).fingerprint == same
    for other in (x[:5], np.concatenate([x[:5], [7.0]]), np.concatenate([[1.0], x[1:]])):
        assert StreamBatch((other, None, None)).fingerprint != same
    assert StreamBatch((x[:0], None, None)).fingerprint == StreamBatch((x[:0], None, None)).fingerprint


def test_where_inputs_vary_fingerprints_see_all_targets_instead() -> None:
    x, y = np.arange(6.0), np.arange(6)
    same = StreamBatch((x, y, None), inputs_vary=True).fingerprint
    assert StreamBatch((x + 1, y, None), inputs_vary=True).fingerprint == same
    assert StreamBatch((x, y[[0, 2, 1, 3, 4, 5]], None), inputs_vary=True).fingerprint != same
    assert StreamBatch((x, y, x), inputs_vary=True).fingerprint != same


def test_batches_without_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="y of a batch is a single value"):
        StreamBatch((np.zeros(3), np.array(1.0), None))
    with pytest.raises(ConfigError, match="different numbers of rows"):
        StreamBatch((np.zeros(3), np.zeros(2), None))
    with pytest.raises(ConfigError, match="no arrays"):
        StreamBatch((None, None, None))


def test_the_signature_of_a_batch_leaves_the_number_of_rows_open() -> None:
    assert batch_signature((np.zeros((3, 3)), np.zeros(3, np.int32), None)) == "x float64[?,3], y int32[?]"
