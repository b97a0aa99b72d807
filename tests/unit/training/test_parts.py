"""Models are numbered alike on every rank, forgotten when the script has let go of them, and compared by number."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import numpy as np
import pytest

from paceline.errors import RanksDisagree
from paceline.training.parts import Parts, differ, pack, unpack
from paceline.training.recovery import State


@dataclass(eq=False)
class Model:
    values: np.ndarray

    def export_state(self) -> State:
        return State(["values"], (self.values,))

    def adopt_state(self, state: State) -> None:
        (array,) = state.arrays
        if array.shape != self.values.shape:
            raise RanksDisagree("another shape")
        self.values = array


def model(*numbers: float) -> Model:
    return Model(np.array(numbers))


def parts_of(*models: Model) -> Parts:
    parts = Parts()
    for one in models:
        parts.append(one)
    return parts


def test_a_model_that_the_script_let_go_of_is_forgotten_but_keeps_its_number() -> None:
    kept, gone = model(1.0), model(2.0)
    parts = parts_of(gone, kept)
    del gone
    gc.collect()
    assert [number for number, _ in parts.items()] == [1]
    assert len(parts) == 2


def test_equal_states_do_not_differ() -> None:
    models = [model(1.0), model(1.0)]
    assert not differ([parts_of(one).digests() for one in models])


def test_other_values_differ() -> None:
    models = [model(1.0), model(2.0)]
    assert differ([parts_of(one).digests() for one in models])


def test_what_only_one_side_has_or_what_looks_otherwise_is_not_compared() -> None:
    models = [model(1.0), model(1.0), model(5.0), model(5.0, 6.0)]
    assert not differ([parts_of(models[0]).digests(), parts_of(models[1], models[2]).digests()])
    assert not differ([parts_of(models[2]).digests(), parts_of(models[3]).digests()])


def test_states_go_to_the_models_with_the_same_numbers() -> None:
    givers, takers = [model(1.0), model(2.0, 3.0)], [model(0.0), model(0.0, 0.0)]
    giving, taking = parts_of(*givers), parts_of(*takers)
    del givers[0]
    gc.collect()
    entries, arrays = pack(list(giving.items()))
    unpack(dict(taking.items()), entries, arrays, strict=True)
    assert takers[0].values.tolist() == [0.0]
    assert takers[1].values.tolist() == [2.0, 3.0]


def test_states_without_a_taker_are_left_out() -> None:
    givers = [model(1.0), model(2.0)]
    entries, arrays = pack(list(parts_of(*givers).items()))
    taker = model(0.0)
    unpack({1: taker}, entries, arrays, strict=True)
    assert taker.values.tolist() == [2.0]


def test_a_state_that_does_not_fit_is_refused_or_left_out() -> None:
    givers, takers = [model(1.0, 1.0), model(2.0)], [model(0.0), model(0.0)]
    entries, arrays = pack(list(parts_of(*givers).items()))
    with pytest.raises(RanksDisagree):
        unpack(dict(parts_of(*takers).items()), entries, arrays, strict=True)
    unpack(dict(parts_of(*takers).items()), entries, arrays, strict=False)
    assert [taker.values.tolist() for taker in takers] == [[0.0], [2.0]]
