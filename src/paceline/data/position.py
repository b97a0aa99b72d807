"""How far the committed rounds have read into the global order of samples. Next file: `order.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Position:
    """A place between two steps. It moves only when a round is committed, so a discarded round reads its batch again.

    Attributes:
        epoch: passes that are complete.
        step: steps committed in this epoch; the next step takes global batch number `step`.
        samples: samples that the committed steps of this epoch have used.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0

    def after_step(self, num_samples: int) -> Position:
        """The position once a step of `num_samples` samples is committed."""
        return Position(self.epoch, self.step + 1, self.samples + num_samples)

    def next_epoch(self) -> Position:
        """The start of the epoch that follows."""
        return Position(self.epoch + 1)
