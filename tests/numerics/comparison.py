"""How close what was kept is to a reference."""

from __future__ import annotations

import numpy as np

from numerics.catalogue.registry import OWN
from numerics.jobs import Kept


def compare(kept: Kept, reference: Kept, tolerance: float) -> None:
    """Assert that `kept` has the names of `reference`, and its values up to `tolerance`; 0 means the same bits."""
    names = [name for name in reference if not name.startswith(OWN)]
    assert [name for name in kept if not name.startswith(OWN)] == names
    different = [line for name in names if (line := _difference(name, kept[name], reference[name], tolerance))]
    assert not different, "\n".join(different)


def _difference(name: str, kept: np.ndarray, reference: np.ndarray, tolerance: float) -> str | None:
    if (kept.shape, kept.dtype) != (reference.shape, reference.dtype):
        return f"{name}: {kept.dtype}{list(kept.shape)} instead of {reference.dtype}{list(reference.shape)}"
    if tolerance == 0 or kept.dtype.kind in "bU":
        return None if kept.tobytes() == reference.tobytes() else f"{name}: {kept} instead of {reference}"
    if not (np.isfinite(kept).all() and np.isfinite(reference).all()):
        return None if np.array_equal(kept, reference, equal_nan=True) else f"{name}: {kept} instead of {reference}"
    scale = float(np.abs(reference).max(initial=0.0))
    error = float(np.abs(kept.astype(np.float64) - reference).max(initial=0.0))
    if error <= tolerance * scale:
        return None
    values = f"{kept.ravel()[:4]} instead of {reference.ravel()[:4]}"
    return f"{name}: off by {error / scale if scale else error:.1e} ({values})"
