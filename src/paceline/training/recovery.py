"""State taken live from healthy members: a newcomer receives it in stripes, one from each donor, each checked.

Used when a worker joins, and at a call's start when ranks hold different states (rank 0's is taken then).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from paceline.communication.arrays import array_checksum, dtype_name, dtype_of
from paceline.communication.protocols import Communicator
from paceline.errors import CorruptFrame
from paceline.training.codec import decode, encode
from paceline.wire.frames import checksum


@dataclass(frozen=True)
class State:
    """A snapshot: plain values (see `codec.py`) and arrays."""

    values: Any
    arrays: tuple[np.ndarray, ...] = ()

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def digest(self) -> int:
        """Equal for equal states, on any rank."""
        parts = b"".join(array_checksum(array).to_bytes(8, "little") for array in self.arrays)
        return checksum(encode(self.values) + parts)


class Recoverable(Protocol):
    """Something whose state a newcomer takes over."""

    def export_state(self) -> State:
        """The committed state. Arrays may be views: they are only read, before the next round."""

    def adopt_state(self, state: State) -> None:
        """Become equal to the exporter."""


def transfer(
    communicator: Communicator,
    *,
    donors: Sequence[int],
    receivers: Sequence[int],
    state: State | None,
) -> State | None:
    """Send the donors' state to the receivers; all ranks of the group call this.

    Args:
        donors: ranks that hold the state. Those whose digest differs from the first's do not serve.
        receivers: ranks that need it.
        state: a donor's own; None on receivers.

    Returns the state on receivers, None elsewhere. Raises `CommunicationError`; nothing was changed then.
    """
    rank = communicator.rank
    announcement = b""
    if state is not None:
        head = (state.values, _specs(state)) if rank == donors[0] else None
        announcement = encode((state.digest(), head))
    announcements = communicator.all_gather_bytes(announcement)
    digests = {donor: decode(announcements[donor])[0] for donor in donors}
    serving = [donor for donor in donors if digests[donor] == digests[donors[0]]]
    values, specs = decode(announcements[donors[0]])[1]
    total = sum(num_bytes for _, _, num_bytes in specs)
    bounds = [total * place // len(serving) for place in range(len(serving) + 1)]
    received = None
    if rank in serving:
        assert state is not None
        stripe = _cut(state.arrays, bounds[serving.index(rank)], bounds[serving.index(rank) + 1])
        for receiver in receivers:
            communicator.send(stripe, to=receiver)
    elif rank in receivers:
        buffer = np.empty(total, np.uint8)
        for donor, start, stop in zip(serving, bounds, bounds[1:], strict=False):
            communicator.receive(buffer[start:stop], source=donor)
        received = State(values, _restore(buffer, specs))
        if received.digest() != digests[donors[0]]:
            raise CorruptFrame(f"the state that came from ranks {serving} does not match its digest")
    communicator.barrier()
    return received


def _specs(state: State) -> list[tuple[str, tuple[int, ...], int]]:
    return [(dtype_name(array.dtype), array.shape, array.nbytes) for array in state.arrays]


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _cut(arrays: Sequence[np.ndarray], start: int, stop: int) -> np.ndarray:
    """Bytes start..stop of all arrays laid end to end."""
    pieces = []
    offset = 0
    for array in arrays:
        lower, upper = max(start - offset, 0), min(stop - offset, array.nbytes)
        if lower < upper:
            pieces.append(_bytes_of(array)[lower:upper])
        offset += array.nbytes
    return np.concatenate(pieces) if pieces else np.empty(0, np.uint8)


def _restore(buffer: np.ndarray, specs: Sequence[tuple[str, Sequence[int], int]]) -> tuple[np.ndarray, ...]:
    arrays = []
    offset = 0
    for name, shape, num_bytes in specs:
        piece = buffer[offset : offset + num_bytes].copy()  # aligned, whatever lies before it
        arrays.append(piece.view(dtype_of(name)).reshape(tuple(shape)))
        offset += num_bytes
    return tuple(arrays)
