"""Which all-reduce for which call: a pure choice, with its reason. Next file: `collectives/ring.py`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from paceline.communication.protocols import ReduceOperation
from paceline.communication.transfer import LinkKind

Algorithm = Literal["alone", "recursive doubling", "ring"]

# Up to here the fewer steps win. Measured in 2026, two and four processes on two cores: at 256 KiB doubling takes about
# half the ring's time with four processes and the same with two; the ring overtakes it near 1 MiB.
_SMALL_BYTES: dict[LinkKind, int] = {"memory": 32 * 1024, "shared memory": 256 * 1024, "TCP": 256 * 1024}


@dataclass(frozen=True)
class Decision:
    """An algorithm, and why it."""

    algorithm: Algorithm
    reason: str


def choose(num_bytes: int, size: int, kinds: Collection[LinkKind], *, operation: ReduceOperation = "sum") -> Decision:
    """Choose the all-reduce of `num_bytes` among `size` ranks over links of these `kinds`. All ranks must come to the
    same choice, so the kinds have to be those of the whole group."""
    if size == 1:
        return Decision("alone", "a group of one has nothing to exchange")
    if operation != "sum":
        # max(-0.0, 0.0) may depend on the order of its arguments: every element is to be computed in one place only.
        return Decision("ring", f"{operation} is computed once for each element")
    limit = min(_SMALL_BYTES[kind] for kind in kinds) if kinds else _SMALL_BYTES["TCP"]
    if num_bytes <= limit:
        return Decision("recursive doubling", f"{num_bytes} bytes: few steps count more than few bytes")
    return Decision("ring", f"{num_bytes} bytes: few bytes count more than few steps")
