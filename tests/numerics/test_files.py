"""Files that N workers have saved load where Paceline is not installed, and hold the same model."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from numerics.catalogue import CASES
from numerics.catalogue.data import features
from numerics.catalogue.registry import Case
from numerics.conftest import JobsDone

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)]

LOAD = """
import sys
sys.modules["paceline"] = None  # importing it fails
import keras, numpy as np
folder, out = sys.argv[1:]
x = np.load(out + "/x.npy")
last = keras.models.load_model(folder + "/last.keras")
assert type(last) is keras.Sequential
np.save(out + "/last.npy", last.predict(x, verbose=0))
last.fit(x, last.predict(x, verbose=0), verbose=0)  # its optimizer is whole too
best = keras.models.load_model(folder + "/best.keras")
best.load_weights(folder + "/last.weights.h5")
np.save(out + "/weights.npy", best.predict(x, verbose=0))
"""


@pytest.mark.parametrize("case", [CASES["best_checkpoint_and_saved_files"]], ids=["saved"])
def test_saved_files_load_without_paceline(case: Case, jobs_done: JobsDone, tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = jobs_done.files("3", case)
    expected = jobs_done.ranks("3", case)[0]["predict"]
    np.save(tmp_path / "x.npy", features(5))
    subprocess.run([sys.executable, "-c", LOAD, str(folder), str(tmp_path)], check=True, timeout=600)
    np.testing.assert_allclose(np.load(tmp_path / "last.npy"), expected, rtol=1e-6)
    np.testing.assert_allclose(np.load(tmp_path / "weights.npy"), expected, rtol=1e-6)


@pytest.mark.parametrize("case", [CASES["best_checkpoint_and_saved_files"]], ids=["saved"])
def test_each_file_is_written_once_and_whole(case: Case, jobs_done: JobsDone) -> None:
    names = {path.name for path in jobs_done.files("3", case).iterdir()}
    epochs = {f"epoch-{epoch}.weights.h5" for epoch in range(1, 5)}
    assert names == {"best.keras", "last.keras", "last.weights.h5"} | epochs
