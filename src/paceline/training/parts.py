"""The distributed models of a script, numbered in the order in which it made them: alike on every rank.

A model that the script has let go of is let go of here too. Python frees it when it likes, on each rank at another
moment, so ranks exchange states by number, and only of what both sides still have. Next file: `recovery.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from paceline.communication.arrays import dtype_name
from paceline.errors import RanksDisagree
from paceline.training.codec import encode
from paceline.training.recovery import Recoverable, State
from paceline.wire.frames import checksum

Digests = Mapping[int, Sequence[int]]


class Parts:
    """Numbered things that have a state. Does not keep them alive."""

    def __init__(self) -> None:
        self._alive: weakref.WeakValueDictionary[int, Recoverable] = weakref.WeakValueDictionary()
        self._count = 0

    def append(self, part: Recoverable) -> None:
        self._alive[self._count] = part
        self._count += 1

    def __len__(self) -> int:
        """How many there ever were."""
        return self._count

    def items(self) -> Iterator[tuple[int, Recoverable]]:
        """Those that are left, by number."""
        yield from sorted(self._alive.items())

    def digests(self) -> dict[int, tuple[int, int]]:
        """For each that is left, digests of its arrays' types and shapes, and of its state."""
        states = [(number, part.export_state()) for number, part in self.items()]
        return {number: (_digest_of_shapes(state), state.digest()) for number, state in states}


def differ(answers: Sequence[Digests]) -> bool:
    """Whether something that several ranks have, and that looks alike, has different states."""
    seen: dict[tuple[int, int], int] = {}
    for answer in answers:
        for number, (looks, state) in answer.items():
            if seen.setdefault((number, looks), state) != state:
                return True
    return False


def _digest_of_shapes(state: State) -> int:
    return checksum(encode([(dtype_name(array.dtype), array.shape) for array in state.arrays]))


def pack(parts: Sequence[tuple[int, Recoverable]]) -> tuple[list[Any], tuple[np.ndarray, ...]]:
    """The parts' states as one list of entries and one of arrays."""
    states = [(number, part.export_state()) for number, part in parts]
    entries = [(number, state.values, len(state.arrays)) for number, state in states]
    return entries, tuple(array for _, state in states for array in state.arrays)


def unpack(
    parts: Mapping[int, Recoverable], entries: Sequence[Any], arrays: tuple[np.ndarray, ...], *, strict: bool
) -> None:
    """Let each part adopt what `pack` made of its twin; entries without a part are left out. A part that looks
    otherwise than its twin raises `RanksDisagree` if `strict`, and else keeps what it has: its own next call tells."""
    offset = 0
    for number, values, count in entries:
        if number in parts:
            try:
                parts[number].adopt_state(State(values, arrays[offset : offset + count]))
            except RanksDisagree:
                if strict:
                    raise
        offset += count
