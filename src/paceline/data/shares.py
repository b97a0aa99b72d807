"""Who takes what of one global batch: it is cut into microbatches of a fixed size, and each member takes a contiguous
range of them. Pure. Next file: `protocols.py`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence


def cut(num_samples: int, microbatch: int) -> tuple[range, ...]:
    """The samples of a batch in microbatches of `microbatch`, in order; the last may be smaller, never padded."""
    if microbatch < 1:
        raise ValueError(f"a microbatch holds at least one sample, not {microbatch}")
    return tuple(
        range(start, min(start + microbatch, num_samples)) for start in range(0, max(num_samples, 0), microbatch)
    )


def assign(num_microbatches: int, size: int, weights: Sequence[float] | None = None) -> tuple[range, ...]:
    """For each of `size` ranks, the microbatches that it takes: contiguous, in rank order, each exactly once.

    Without `weights` the shares differ by at most one. With `weights` (speeds: microbatches per second, any unit),
    each share is within one of its exact proportion. Only sums, products and comparisons of the weights are used, so
    members that hold the same weights assign alike.
    """
    if size < 1:
        raise ValueError(f"a group has at least one member, not {size}")
    if weights is None:
        bounds = [rank * num_microbatches // size for rank in range(size + 1)]
    else:
        bounds = _proportional_bounds(num_microbatches, size, weights)
    return tuple(range(start, stop) for start, stop in itertools.pairwise(bounds))


def _proportional_bounds(num_microbatches: int, size: int, weights: Sequence[float]) -> list[int]:
    if len(weights) != size or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError(f"expected {size} weights, finite and not negative: {list(weights)}")
    sums = list(itertools.accumulate(weights, initial=0.0))
    if not 0 < sums[-1] < math.inf:
        raise ValueError(f"the weights' sum must be positive and finite: {list(weights)}")
    return [math.floor(num_microbatches * (part / sums[-1]) + 0.5) for part in sums]
