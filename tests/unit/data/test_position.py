"""The position moves step by step."""

from __future__ import annotations

from paceline.data.position import Position


def test_a_position_counts_steps_and_samples_and_starts_again_at_each_epoch() -> None:
    position = Position().after_step(32).after_step(7)
    assert position == Position(epoch=0, step=2, samples=39)
    assert position.next_epoch() == Position(epoch=1, step=0, samples=0)
    assert position < position.next_epoch()
