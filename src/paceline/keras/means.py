"""Averages that count batches rather than samples: a `keras.metrics.Mean` that is given one number for a whole batch.

Keras does so for the loss of each output, and so do layers that note a statistic, or functions that return one number
as a metric. Such a number is taken to be a mean over the samples that it was made from: weighted by a microbatch's
share, the microbatches of a global batch count as that one batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from paceline.keras import seam


class BatchMeans:
    """Which variables of a model belong to such averages; noticed while a step is traced."""

    def __init__(self) -> None:
        self._variables: set[int] = set()

    def counts_batches(self, variable: Any) -> bool:
        return id(variable) in self._variables

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While the block runs, updates of averages are looked at."""
        with seam.intercepted_means(self._note):
            yield

    @contextlib.contextmanager
    def silenced(self) -> Iterator[None]:
        """While the block runs, averages are not updated."""
        with seam.intercepted_means(lambda metric, values, sample_weight: False):
            yield

    def _note(self, metric: Any, values: Any, sample_weight: Any) -> bool:
        if len(getattr(values, "shape", ())) == 0 and sample_weight is None:
            self._variables |= {id(variable) for variable in metric.variables}
        return True
