"""Train TensorFlow/Keras models on many machines: the answer does not depend on the cluster."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.api import (
        allgather,
        allreduce,
        barrier,
        broadcast,
        distribute,
        init,
        local_rank,
        rank,
        shutdown,
        size,
    )

__all__ = [
    "__version__",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "distribute",
    "init",
    "local_rank",
    "rank",
    "shutdown",
    "size",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version("paceline")
    if name in __all__:
        from paceline import api

        return getattr(api, name)
    raise AttributeError(f"module 'paceline' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
