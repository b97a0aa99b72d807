"""What `fit` and its like tell people and send to other processes."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np

from paceline.data.protocols import GlobalBatches
from paceline.data.shares import assign, cut
from paceline.observability.events import DataSharded, emit

logger = logging.getLogger("paceline.data")


def to_floats(structure: Any) -> Any:
    """Tensors and numpy scalars in a nested structure of logs as plain numbers (arrays, where they have dimensions)."""
    return keras.tree.map_structure(_plain, structure)


def tell_sharding(call: str, batches: GlobalBatches, microbatch: int, session: Any) -> None:
    """Rank 0 says once per call what is sharded how, and how many samples of an epoch each rank takes."""
    if session.rank != 0:
        return
    if batches.caveat is not None:
        logger.warning("%s: %s", call, batches.caveat)
    counts = samples_per_rank(batches, microbatch, session.size)
    event = DataSharded(f"{call}: {batches.description}", batches.policy, batches.num_samples, counts)
    emit(event)
    session.membership.report_event(event)


def samples_per_rank(batches: GlobalBatches, microbatch: int, size: int) -> tuple[int, ...]:
    """How many samples of an epoch each rank takes, with this group; empty where the length is not known."""
    steps, total = batches.steps_per_epoch, batches.num_samples
    first = batches.batch(0)
    if steps is None or total is None or first is None:
        return ()
    counts = [0] * size
    remainder = total - first.num_samples * (steps - 1)
    for samples, times in ((first.num_samples, steps - 1), (remainder, 1)):
        pieces = cut(samples, microbatch) if 0 < samples <= first.num_samples else ()
        for rank, mine in enumerate(assign(len(pieces), size)):
            counts[rank] += times * sum(len(pieces[index]) for index in mine)
    return tuple(counts)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else array
