"""Collectives for scripts: numbered calls of one round each, on arrays. The public face is `paceline.api`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from paceline.communication.arrays import array_checksum, dtype_name
from paceline.communication.protocols import Communicator
from paceline.errors import ConfigError
from paceline.strategies.protocols import Ballot
from paceline.training.calls import Calls
from paceline.training.codec import decode, encode
from paceline.training.round import run
from paceline.types import Group

ReduceName = Literal["mean", "sum", "max", "min"]


def allreduce(calls: Calls, value: np.ndarray, operation: ReduceName) -> np.ndarray:
    """Combine equal-shaped arrays of all ranks. The mean is taken over the ranks that took part."""
    if operation not in ("mean", "sum", "max", "min"):
        raise ConfigError(f"allreduce: operation '{operation}' is not known; known: max, mean, min, sum")
    if operation == "mean" and value.dtype.kind not in "fcV":
        raise ConfigError(f"allreduce: the mean of {value.dtype} values is not of that type; pass floats or use 'sum'")

    def talk(communicator: Communicator) -> np.ndarray:
        flat = np.ascontiguousarray(value).reshape(-1)
        out = np.empty_like(flat)
        communicator.all_reduce(flat, out, operation="sum" if operation == "mean" else operation)
        if operation == "mean":
            np.divide(out, np.asarray(communicator.size, out.dtype), out=out)
        return out.reshape(value.shape)

    described = {"operation": operation, "shape": str(value.shape), "dtype": dtype_name(value.dtype)}
    return _collective(calls, "allreduce", described, talk)


def allgather(calls: Calls, value: np.ndarray) -> np.ndarray:
    """All ranks' arrays joined along their first dimension, in rank order; first dimensions may differ."""
    if value.ndim == 0:
        raise ConfigError("allgather joins arrays along their first dimension; give it at least one dimension")

    def talk(communicator: Communicator) -> np.ndarray:
        return np.concatenate([decode(part) for part in communicator.all_gather_bytes(encode(value))])

    described = {"shape after the first dimension": str(value.shape[1:]), "dtype": dtype_name(value.dtype)}
    return _collective(calls, "allgather", described, talk)


def broadcast(calls: Calls, value: np.ndarray, root: int) -> np.ndarray:
    """The root's array, on every rank."""
    if not 0 <= root < calls.session.size:
        raise ConfigError(f"broadcast: there is no rank {root} in a group of {calls.session.size}")

    def talk(communicator: Communicator) -> np.ndarray:
        flat = np.ascontiguousarray(value).reshape(-1).copy()
        communicator.broadcast(flat, root=min(root, communicator.size - 1))
        return np.reshape(flat, value.shape)

    described = {"root": str(root), "shape": str(value.shape), "dtype": dtype_name(value.dtype)}
    return _collective(calls, "broadcast", described, talk)


def barrier(calls: Calls) -> None:
    """Return after every rank has come here."""
    with calls.call("barrier", {}):
        pass  # the agreement itself is the barrier


def _collective(
    calls: Calls, name: str, described: dict[str, str], talk: Callable[[Communicator], np.ndarray]
) -> np.ndarray:
    # A newcomer's value may stem from a model whose state it does not hold yet. In a script without models it stems
    # from the results of earlier calls, which it has got.
    with calls.call(name, described, admits=not calls.parts) as opened:
        if not opened.replayed:
            activity = EagerRound(name, talk)
            run(calls.session, activity)
            opened.result = activity.result
        return np.asarray(opened.result)


class EagerRound:
    """One collective as a round."""

    step = None
    samples = 0

    def __init__(self, name: str, talk: Callable[[Communicator], np.ndarray]) -> None:
        self.name = name
        self.result: np.ndarray | None = None
        self._talk = talk

    def work(self, group: Group, rank: int, communicator: Communicator) -> None:
        return None

    def talk(self, work: Any, communicator: Communicator) -> np.ndarray:
        return self._talk(communicator)

    def ballot(self, work: Any, proposal: np.ndarray) -> Ballot:
        return Ballot(digest=array_checksum(proposal))

    def change(self, proposal: np.ndarray) -> None:
        self.result = proposal
