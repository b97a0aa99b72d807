"""Which batches an epoch reads, against a plain reading of the rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.passes import Plan, Span, span


def read_on(num_batches: int, steps: int, num_epochs: int) -> list[list[tuple[int, int]]]:
    """The (pass, batch) pairs of each epoch, by going on with one iterator as long as it lasts."""
    epochs: list[list[tuple[int, int]]] = []
    number, batch = 0, 0
    for _ in range(num_epochs):
        epoch: list[tuple[int, int]] = []
        while len(epoch) < steps and batch < num_batches:
            epoch.append((number, batch))
            batch += 1
        if batch == num_batches:
            number, batch = number + 1, 0
        epochs.append(epoch)
    return epochs


@given(num_batches=st.integers(1, 12), steps=st.integers(1, 15))
def test_epochs_of_given_steps_go_on_through_a_pass(num_batches: int, steps: int) -> None:
    plan = Plan(num_batches, steps)
    for epoch, expected in enumerate(read_on(num_batches, steps, 10)):
        part = span(plan, epoch)
        assert part.length is not None
        assert [(part.number, part.first + place) for place in range(part.length)] == expected


def test_without_steps_an_epoch_is_a_pass() -> None:
    assert span(Plan(10, None), 3) == Span(3, 0, 10)
    assert span(Plan(None, None), 3) == Span(3, 0, None)


def test_evaluations_begin_anew_each_time() -> None:
    assert span(Plan(10, 4, restart=True), 3) == Span(3, 0, 4)
    assert span(Plan(10, 40, restart=True), 3) == Span(3, 0, 10)
    assert span(Plan(None, 4, restart=True), 3) == Span(3, 0, 4)


def test_a_stream_of_unknown_length_must_be_read() -> None:
    assert not Plan(None, 4).computable
    with pytest.raises(ValueError, match="only reading"):
        span(Plan(None, 4), 1)
