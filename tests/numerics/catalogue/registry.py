"""What a case is, and what it keeps: weights, logs and predictions, by name, for the comparison.

A case is a function of a `Run`. It runs unchanged as plain Keras in one process and as each worker of a job; the test
compares what it has kept. Next file: any other of this folder; then `../jobs.py`, which runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

Job = Literal["exact", "deterministic"]

OWN = "own:"  # names of what may differ between ranks begin so


@dataclass(frozen=True)
class Case:
    """One scenario.

    Attributes:
        name: of its function.
        function: builds, trains, keeps.
        plain: how far N workers may be from plain Keras, relative to the largest element of each array. None: it is
            not compared with plain Keras.
        one: likewise from one worker. 0: the same bits.
        job: which of the jobs runs it.
    """

    name: str
    function: Callable[[Run], None]
    plain: float | None
    one: float | None
    job: Job


CASES: dict[str, Case] = {}
ROUNDING = 1e-5


def case(
    *, plain: float | None = None, one: float | None = None, job: Job = "exact"
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Register a function as a case. Without `plain` and `one` its own assertions are all that is checked."""

    def register(function: Callable[[Run], None]) -> Callable[[Run], None]:
        name = function.__name__
        assert name not in CASES, f"two cases are called {name}"
        CASES[name] = Case(name, function, plain, one, job)
        return function

    return register


equals_plain_keras = case(plain=ROUNDING)
equals_one_worker = case(one=ROUNDING)


class Run:
    """One run of one case in this process.

    Attributes:
        plain: without Paceline.
        rank: of this worker.
        size: of the group.
        folder: for the case's files; the same for all ranks.
    """

    def __init__(self, *, plain: bool, folder: Path) -> None:
        self.plain = plain
        self.folder = folder
        self.kept: dict[str, np.ndarray] = {}
        self.rank, self.size = 0, 1
        if not plain:
            import paceline as pl

            self.rank, self.size = pl.rank(), pl.size()

    def distribute(self, model: keras.Model, **options: Any) -> keras.Model:
        if self.plain:
            return model
        import paceline as pl

        return pl.distribute(model, **options)

    def fit(self, model: keras.Model, *arguments: Any, **options: Any) -> keras.callbacks.History:
        """`model.fit` in the order given, with the logs of each epoch kept."""
        options.setdefault("shuffle", False)
        history = model.fit(*arguments, verbose=0, **options)
        self.keep("fit", history.history)
        return history

    def evaluate(self, model: keras.Model, *arguments: Any, **options: Any) -> dict[str, Any]:
        logs = model.evaluate(*arguments, verbose=0, return_dict=True, **options)
        self.keep("evaluate", logs)
        return logs

    def predict(self, model: keras.Model, *arguments: Any, **options: Any) -> Any:
        outputs = model.predict(*arguments, verbose=0, **options)
        self.keep("predict", outputs)
        return outputs

    def barrier(self) -> None:
        """Wait until every rank has come here, so that one may read what another has written."""
        if not self.plain:
            import paceline as pl

            pl.barrier()

    def keep(self, name: str, value: Any) -> None:
        """Keep numbers, texts, arrays or nested structures of them. A name that was used before gets a number."""
        prefix = self._unused(name)
        for key, leaf in _leaves(prefix, value):
            self.kept[key] = leaf

    def keep_own(self, name: str, value: Any) -> None:
        """Keep what only this rank has."""
        self.keep(OWN + name, value)

    def keep_weights(self, model: keras.Model) -> None:
        """Keep the model's variables and its optimizer's, but for seeds: Keras moves them on, we leave them alone."""
        prefix = self._unused("weights")
        variables = list(model.variables)
        if getattr(model, "optimizer", None) is not None:
            variables += model.optimizer.variables
        for number, variable in enumerate(variables):
            name = variable.path.rsplit("/", 1)[-1]
            if name != "seed_generator_state":
                self.kept[f"{prefix}/{number} {name}"] = _array(variable.value)

    def _unused(self, name: str) -> str:
        number, unused = 1, name
        while any(key == unused or key.startswith(f"{unused}/") for key in self.kept):
            number += 1
            unused = f"{name} {number}"
        return unused


def _leaves(name: str, value: Any) -> list[tuple[str, np.ndarray]]:
    """Lists of numbers are leaves; other lists, tuples and dictionaries are walked through."""
    if isinstance(value, Mapping):
        return [pair for key in value for pair in _leaves(f"{name}/{key}", value[key])]
    if isinstance(value, (list, tuple)) and any(
        isinstance(part, (Mapping, list, tuple)) or np.ndim(part) for part in value
    ):
        return [pair for number, part in enumerate(value) for pair in _leaves(f"{name}/{number}", part)]
    return [(name, _array(value))]


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array if array.dtype.kind in "biufU" else array.astype(np.float32)  # the small floats
