"""Data in memory: nested structures of columns with the same number of rows. Next file: `batches.py`."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from paceline.data.order import Indices
from paceline.data.protocols import Column
from paceline.data.structure import Structure, leaves, map_leaves
from paceline.errors import ConfigError

NUM_CHECKED_ROWS = 16


class ArraySource:
    """Columns (numpy arrays, or `Rows`), nested, all of one length.

    Args:
        groups: name -> structure of columns, as in {"x": ..., "y": ...}; the names are used in messages, and None
            leaves are absent.
    """

    def __init__(self, groups: Mapping[str, Structure]) -> None:
        self._groups = dict(groups)
        self.num_samples = _common_length(self._columns())

    def __len__(self) -> int:
        return self.num_samples

    def take(self, indices: Indices) -> tuple[Structure, ...]:
        """The rows at `indices`, in that order, of each group. Rows that follow each other are views: no copy."""
        index = as_slice(indices)
        return tuple(
            map_leaves(lambda _, column: take_rows(column, index), structure, name)
            for name, structure in self._groups.items()
        )

    def signature(self) -> str:
        """Names, types and shapes of the columns."""
        return ", ".join(f"{name} {spec(column)}" for name, column in self._columns())

    def fingerprint(self) -> int:
        """32 bits of the sizes and of at most 16 rows spread over the data: tells data that was loaded, generated or
        sorted differently, at no cost."""
        count = min(self.num_samples, NUM_CHECKED_ROWS)
        rows = np.unique(np.linspace(0, max(self.num_samples - 1, 0), count).astype(np.int64))
        result = zlib.crc32(self.signature().encode())
        for _, column in self._columns():
            result = zlib.crc32(checksum(column, rows).to_bytes(4, "little"), result)
        return result

    def _columns(self) -> Iterator[tuple[str, Column]]:
        for name, structure in self._groups.items():
            yield from leaves(structure, name)


def as_slice(indices: Indices) -> slice | Indices:
    """`indices` as a slice where they follow each other one by one."""
    if len(indices) == 0:
        return slice(0, 0)
    first, last = int(indices[0]), int(indices[-1])
    if last - first == len(indices) - 1 and (np.diff(indices) == 1).all():
        return slice(first, last + 1)
    return indices


def take_rows(column: Column, index: slice | Indices) -> object:
    if not isinstance(column, np.ndarray):
        return column.take(index)
    return column[index] if isinstance(index, slice) else np.take(column, index, axis=0)


def checksum(column: Column, index: slice | Indices) -> int:
    """32 bits of the values of these rows."""
    if not isinstance(column, np.ndarray):
        return column.checksum(index)
    return zlib.crc32(np.ascontiguousarray(column[index]).tobytes())


def spec(column: Column) -> str:
    """Type and shape, as in "float32[1797,8,8]"."""
    shape = ",".join("?" if size is None else str(size) for size in column.shape)
    return f"{getattr(column.dtype, 'name', column.dtype)}[{shape}]"


def _common_length(columns: Iterator[tuple[str, Column]]) -> int:
    lengths: dict[int, list[str]] = {}
    for name, column in columns:
        if len(column.shape) < 1 or column.shape[0] is None:
            raise ConfigError(f"{name} is a single value ({spec(column)}); it needs one row per sample")
        lengths.setdefault(column.shape[0], []).append(name)
    if not lengths:
        raise ConfigError("there is no data: every input is None")
    if len(lengths) > 1:
        sizes = "; ".join(f"{count:,} rows in {', '.join(names)}" for count, names in lengths.items())
        raise ConfigError(f"all arrays must contain the same number of samples, but there are {sizes}")
    return next(iter(lengths))
