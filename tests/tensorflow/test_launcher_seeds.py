"""Workers draw the same random numbers from every source that a script may use, and keep to their threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launching import Launcher

SCRIPT = """
import json, os, random
import numpy
import tensorflow
import keras

facts = [
    random.random(),
    numpy.random.random(),
    float(tensorflow.random.uniform([])),
    float(keras.layers.Dense(1).kernel_initializer([1, 1])[0, 0]),
    [int(place) for place in tensorflow.data.Dataset.range(5).shuffle(5)],
    sorted({"a", "b", "c"}) == list({"a", "b", "c"}),
    os.environ["TF_NUM_INTRAOP_THREADS"],
]
with open("facts-" + os.environ["PACELINE_WORKER_ID"], "w") as file:
    json.dump(facts, file)
"""


@pytest.mark.slow
def test_every_source_of_random_numbers_is_seeded_alike(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with Launcher(tmp_path, "-n", "2", "--seed", "3", "--deterministic", "train.py") as launcher:
        result = launcher.wait(seconds=100)
    assert result.code == 0, result.err
    zero, one = (json.loads((tmp_path / f"facts-{worker}").read_text()) for worker in (0, 1))
    assert zero == one
    assert zero[-1] == "1"
