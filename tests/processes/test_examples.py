"""The examples at small size: by themselves, and with two workers, which must come to the same result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launching import Launcher

EXAMPLES = Path(__file__).parents[2] / "examples"
ARGUMENTS = {
    "digits": ("--samples", "200", "--epochs", "2", "--microbatch", "16"),
    "char_lm": ("--samples", "72", "--epochs", "1", "--batch-size", "24", "--microbatch", "8"),
    "tabular": ("--samples", "600", "--epochs", "2", "--microbatch", "32"),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def alone(folder: Path, name: str, *arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *ARGUMENTS[name], *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} - {"common"} == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_example_gives_the_same_result_with_two_workers(name: str, tmp_path: Path) -> None:
    lone = alone(tmp_path, name)
    assert set(lone) == {"loss", "metrics", "val", "steps", "samples_per_second", "weights_sha256"}
    assert lone["steps"] > 0
    assert lone["val"]
    with Launcher(tmp_path, "-n", "2", str(EXAMPLES / f"{name}.py"), *ARGUMENTS[name]) as launcher:
        result = launcher.wait(seconds=200)
    assert result.code == 0, result.err[-3000:]
    both = json.loads(result.out.splitlines()[-1])
    assert both["steps"] == lone["steps"]
    assert both["loss"] == pytest.approx(lone["loss"], rel=1e-4)
    assert both["metrics"] == pytest.approx(lone["metrics"], rel=1e-2)
    assert both["val"] == pytest.approx(lone["val"], rel=1e-2)
