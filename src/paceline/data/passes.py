"""Which part of which pass over the data an epoch reads. Pure.

Without `steps_per_epoch` an epoch is one pass. With it, Keras does not begin a new pass at each epoch: it goes on where
the last epoch stopped, and an epoch in which the pass ends is cut short. So ten batches at four steps per epoch
give epochs of 4, 4 and 2 steps, then a new pass. `evaluate` and `predict` begin a new pass each time.
Next file: `batches.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """How epochs are laid over passes.

    Attributes:
        num_batches: batches of one pass, at least one; None where only reading tells.
        steps: `steps_per_epoch`, or None.
        restart: whether every epoch begins a new pass, whatever `steps` says.
    """

    num_batches: int | None
    steps: int | None
    restart: bool = False

    @property
    def one_pass_per_epoch(self) -> bool:
        return self.restart or self.steps is None

    @property
    def computable(self) -> bool:
        """Whether `span` can tell without reading."""
        return self.one_pass_per_epoch or self.num_batches is not None


@dataclass(frozen=True)
class Span:
    """The batches first..first+length-1 of pass number `number`; length None: until the pass ends."""

    number: int
    first: int
    length: int | None


def span(plan: Plan, epoch: int) -> Span:
    """What the `epoch`-th epoch (from zero) reads."""
    if plan.one_pass_per_epoch:
        limits = [limit for limit in (plan.num_batches, plan.steps) if limit is not None]
        return Span(epoch, 0, min(limits, default=None))
    if plan.num_batches is None or plan.steps is None:
        raise ValueError(f"only reading can tell what epoch {epoch} of {plan} reads")
    epochs_per_pass = -(-plan.num_batches // plan.steps)
    number, place = divmod(epoch, epochs_per_pass)
    first = place * plan.steps
    return Span(number, first, min(plan.steps, plan.num_batches - first))


def out_of_data(step: int, steps: int) -> str:
    """What to tell when an epoch ends before its `steps`."""
    return (
        f"the data ended after {step} of {steps} steps, so this epoch is cut short. To have whole epochs, give data "
        "with at least `steps_per_epoch` x `epochs` batches (for a `tf.data.Dataset`: `.repeat()`), or a smaller "
        "`steps_per_epoch`."
    )
