"""All numerical cases. Next file: `registry.py`."""

from numerics.catalogue import bits, callbacks, feeding, layers, losses, masks, metrics, models, optimizers, precision
from numerics.catalogue.registry import CASES, Case, Run

__all__ = ["CASES", "Case", "Run"]
_ = (bits, callbacks, feeding, layers, losses, masks, metrics, models, optimizers, precision)
