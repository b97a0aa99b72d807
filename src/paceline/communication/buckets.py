"""Which arrays travel together: fused buffers of one dtype each. Pure plans, the same on every rank by their digest.

Small arrays are fused because each message costs; buckets are limited so that the first can leave while the rest is
still being computed, and the very first is small so that it leaves early. Next file: `selection.py`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.communication.arrays import dtype_of

Entry = tuple[str, tuple[int, ...], str]
"""(name, shape, dtype) of one array."""

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Slot:
    """Where the elements of entry number `entry` lie in their bucket: [offset, offset + size)."""

    entry: int
    offset: int
    size: int


@dataclass(frozen=True)
class Bucket:
    """One fused buffer of `num_elements` elements. Its slots follow each other without a gap."""

    dtype: str
    slots: tuple[Slot, ...]

    @property
    def num_elements(self) -> int:
        return sum(slot.size for slot in self.slots)


def plan_buckets(
    entries: Sequence[Entry],
    *,
    capacity_bytes: int = 25 * MEBIBYTE,
    first_bytes: int = MEBIBYTE,
    alone_bytes: int | None = MEBIBYTE,
) -> tuple[Bucket, ...]:
    """Distribute `entries` over buckets, in the given order (the order in which the arrays become ready).

    Every entry lies in exactly one bucket, whole. A bucket takes more than `capacity_bytes` (the first of all:
    `first_bytes`) only when it holds a single entry. An entry of at least `alone_bytes` always stands alone: it is
    long enough to be sent by itself, and fusing it would cost a copy. Buckets stand in the order in which they become
    complete.
    """
    done: list[Bucket] = []
    filling: dict[str, list[int]] = {}
    num_bytes: dict[str, int] = {}
    sizes = [math.prod(shape) for _, shape, _ in entries]

    def complete(dtype: str) -> None:
        done.append(_bucket(dtype, filling.pop(dtype), sizes))

    for index, (_, _, dtype) in enumerate(entries):
        added = sizes[index] * dtype_of(dtype).itemsize
        if alone_bytes is not None and added >= alone_bytes:
            done.append(_bucket(dtype, [index], sizes))
            continue
        limit = capacity_bytes if done else min(first_bytes, capacity_bytes)
        if dtype in filling and num_bytes[dtype] + added > limit:
            complete(dtype)
        num_bytes[dtype] = num_bytes[dtype] + added if dtype in filling else added
        filling.setdefault(dtype, []).append(index)
    for dtype in sorted(filling, key=lambda dtype: filling[dtype][-1]):
        complete(dtype)
    return tuple(sorted(done, key=lambda bucket: bucket.slots[-1].entry))


def _bucket(dtype: str, indices: Iterable[int], sizes: Sequence[int]) -> Bucket:
    slots, offset = [], 0
    for index in indices:
        slots.append(Slot(index, offset, sizes[index]))
        offset += sizes[index]
    return Bucket(dtype, tuple(slots))


def layout_digest(entries: Sequence[Entry], buckets: Sequence[Bucket]) -> str:
    """The same text on two ranks exactly when their entries and buckets are the same."""
    lines = [f"{name!r} {shape} {dtype}" for name, shape, dtype in entries]
    lines += [f"{bucket.dtype} {[(slot.entry, slot.offset, slot.size) for slot in bucket.slots]}" for bucket in buckets]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
