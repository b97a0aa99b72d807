"""Saving in a group: rank 0 writes, whole or not at all; the other ranks go on, and nobody waits for anybody.

Every rank holds the same weights, so one file says it all. It is plain Keras: it loads where Paceline is not installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.keras.replica import Replica


def save(replica: Replica, filepath: Any, overwrite: bool = True, **arguments: Any) -> None:
    """As `keras.Model.save`, on rank 0 alone. Safe to call on any or all ranks."""
    _write(replica, filepath, lambda path: _original(replica, "save")(path, overwrite=True, **arguments), overwrite)


def save_weights(replica: Replica, filepath: Any, overwrite: bool = True, **arguments: Any) -> None:
    """As `keras.Model.save_weights`, on rank 0 alone. Safe to call on any or all ranks."""
    _write(
        replica, filepath, lambda path: _original(replica, "save_weights")(path, overwrite=True, **arguments), overwrite
    )


def export(replica: Replica, filepath: Any, *positional: Any, **arguments: Any) -> None:
    """As `keras.Model.export`, on rank 0 alone."""
    if replica.rank() == 0:
        _original(replica, "export")(filepath, *positional, **arguments)
    else:
        replica.left_to_rank_zero.append(lambda: export(replica, filepath, *positional, **arguments))


def _original(replica: Replica, name: str) -> Callable[..., Any]:
    method: Callable[..., Any] = getattr(type(replica.model), name)
    return lambda *positional, **arguments: method(replica.model, *positional, **arguments)


def _write(replica: Replica, filepath: Any, write: Callable[[str], None], overwrite: bool) -> None:
    """Write beside the target and rename, so that a reader, or a crash, never sees half a file."""
    if replica.rank() != 0:
        replica.left_to_rank_zero.append(lambda: _write_again(replica, filepath, write, overwrite))
        return
    target = Path(os.fspath(filepath))
    if "://" in str(filepath) or target.suffix not in (".keras", ".h5"):
        write(str(filepath))  # a remote store or a folder: Keras' own way
        return
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists; pass overwrite=True to replace it")
    whole_suffix = ".weights.h5" if target.name.endswith(".weights.h5") else target.suffix
    aside = target.with_name(f".{target.name}.{os.getpid()}.partial{whole_suffix}")
    try:
        write(str(aside))
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)


def _write_again(replica: Replica, filepath: Any, write: Callable[[str], None], overwrite: bool) -> None:
    """In the place of a rank 0 that may or may not have done it."""
    if overwrite or not os.path.exists(filepath):
        _write(replica, filepath, write, overwrite)
