"""Ring all-reduce (Patarasuk and Yuan, 2009, https://doi.org/10.1016/j.jpdc.2008.09.002) and ring all-gather.

The array is cut into one chunk for each rank. Going round, each chunk is summed on its way past all ranks, then its
sum is copied on its way past all ranks once more; every rank sends 2 (W-1)/W of the array and every element is added
up in one place only, in ring order, so all ranks get the same bits. For stage s on rank r, chunks modulo W:

    reduce-scatter  s = 0 .. W-2      send chunk r - s,       receive chunk r - s - 1 and add
    all-gather      s = 0 .. W-2      send chunk r + 1 - s,   receive chunk r - s

Large arrays are cut into blocks first, and the stages of neighbouring blocks overlap: in tick t, block t is in stage 0,
block t - D in stage 1, block t - 2D in stage 2 and so on. So a segment is sent on while it is still in the cache, and
no rank idles between stages. `lay_out` lays this out as data; the pieces then run through `transfer`.

Next file: `halving.py`, for messages too small for so many stages.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.communication.protocols import ReduceOperation
from paceline.communication.transfer import (
    SEGMENT_BYTES,
    Arrival,
    Consume,
    DuplexLink,
    Incoming,
    Outgoing,
    as_bytes,
    transfer,
)

UFUNCS: dict[ReduceOperation, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum}

# A medium-sized array still wants two blocks to overlap, but not segments so small that their overhead shows.
_BLOCKS_WANTED = 2
_SMALLEST_SEGMENT_BYTES = 512 * 1024
# D: how far a rank may run ahead of its left neighbour. Less keeps segments in the cache; more keeps ranks from waiting
# for each other where they share cores. 1 to 8 are within the noise on quiet cores (2026), 4 is better on busy ones.
DELAY_BLOCKS = 4
_ALIGNMENT = 16  # elements; keeps vector loads within cache lines


@dataclass(frozen=True, slots=True)
class Step:
    """Elements [first, last) move in `stage`; a step that is sent may leave once `needs` steps have arrived."""

    stage: int
    first: int
    last: int
    needs: int


@dataclass(frozen=True)
class Plan:
    """What one rank sends to its right and receives from its left, in order."""

    outgoing: tuple[Step, ...]
    incoming: tuple[Step, ...]


Bounds = tuple[int, int]
Blocks = Sequence[Sequence[Bounds]]
"""Blocks[b][c]: first and last + 1 element of chunk c of block b."""


def lay_out(blocks: Blocks, rank: int, num_stages: int) -> Plan:
    """Order the steps of `num_stages` stages over `blocks`. Pure.

    Steps without elements are left out; neighbours leave out the same ones.
    """
    outgoing: list[Step] = []
    incoming: list[Step] = []
    arrived: dict[tuple[int, int], int] = {}  # (block, stage) -> how many steps have arrived with it
    for tick in range(len(blocks) + (num_stages - 1) * DELAY_BLOCKS):
        for stage in range(num_stages):
            index = tick - stage * DELAY_BLOCKS
            if not 0 <= index < len(blocks):
                continue
            chunks = blocks[index]
            # In the all-gather's s' = s - (W - 1) too, chunk r + 1 - s' is chunk r - s.
            first, last = chunks[(rank - stage) % len(chunks)]
            if first < last:
                outgoing.append(Step(stage, first, last, arrived.get((index, stage - 1), 0)))
            first, last = chunks[(rank - 1 - stage) % len(chunks)]
            if first < last:
                incoming.append(Step(stage, first, last, 0))
            arrived[index, stage] = len(incoming)
    return Plan(tuple(outgoing), tuple(incoming))


@functools.lru_cache(maxsize=64)
def _plan_all_reduce(num_elements: int, size: int, rank: int, segment_elements: int) -> Plan:
    num_blocks = max(1, -(-num_elements // (size * segment_elements)))
    blocks = [split(*part, size) for part in split(0, num_elements, num_blocks)]
    return lay_out(blocks, rank, 2 * size - 2)


def split(first: int, last: int, num_parts: int) -> list[Bounds]:
    """Cut [first, last) into parts of nearly equal size, at multiples of 16 elements from `first`."""
    units = -(-(last - first) // _ALIGNMENT)
    cuts = [min(last, first + units * part // num_parts * _ALIGNMENT) for part in range(num_parts + 1)]
    return list(itertools.pairwise(cuts))


def all_reduce(
    source: np.ndarray,
    out: np.ndarray,
    *,
    rank: int,
    size: int,
    left: DuplexLink,
    right: DuplexLink,
    operation: ReduceOperation = "sum",
) -> None:
    """Combine `source` of all ranks into `out`, which may be `source`."""
    layout = _plan_all_reduce(len(source), size, rank, _segment_elements(source, size))
    sent, target, ufunc = as_bytes(source), as_bytes(out), UFUNCS[operation]
    width = source.itemsize

    def add(step: Step) -> Arrival:
        mine, total = source[step.first : step.last], out[step.first : step.last]
        return Consume(
            (step.last - step.first) * width, lambda view: ufunc(np.frombuffer(view, source.dtype), mine, out=total)
        )

    pieces = [(sent if step.stage == 0 else target)[step.first * width : step.last * width] for step in layout.outgoing]
    arrivals = [
        add(step) if step.stage < size - 1 else target[step.first * width : step.last * width]
        for step in layout.incoming
    ]
    _run(layout, pieces, arrivals, left, right)


def all_gather(out: np.ndarray, parts: Sequence[Bounds], *, rank: int, left: DuplexLink, right: DuplexLink) -> None:
    """Rank r holds the elements `parts[r]` of `out` and receives all others'."""
    width = out.itemsize
    largest = max(last - first for first, last in parts)
    num_blocks = max(1, -(-largest // _aligned_elements(SEGMENT_BYTES, width)))
    blocks = list(zip(*(split(first, last, num_blocks) for first, last in parts), strict=True))
    layout = lay_out(blocks, rank, len(parts) - 1)
    target = as_bytes(out)
    pieces = [target[step.first * width : step.last * width] for step in layout.outgoing]
    arrivals = [target[step.first * width : step.last * width] for step in layout.incoming]
    _run(layout, pieces, arrivals, left, right)


def _run(
    layout: Plan, pieces: Sequence[memoryview], arrivals: Sequence[Arrival], left: DuplexLink, right: DuplexLink
) -> None:
    transfer([Outgoing(right, pieces, [step.needs for step in layout.outgoing])], [Incoming(left, arrivals)])


def _segment_elements(array: np.ndarray, size: int) -> int:
    wanted = max(_SMALLEST_SEGMENT_BYTES, array.nbytes // (size * _BLOCKS_WANTED))
    return _aligned_elements(min(SEGMENT_BYTES, wanted), array.itemsize)


def _aligned_elements(num_bytes: int, itemsize: int) -> int:
    return max(1, num_bytes // itemsize // _ALIGNMENT) * _ALIGNMENT
