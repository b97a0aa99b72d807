"""Ranks that do not fit together, and models that cannot be distributed: one clear message on every rank, no hang."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("doors.py")
SECONDS = 600.0  # for a machine that is busy with other things

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    code: int
    said: str
    folder: Path

    def logs(self) -> list[str]:
        return [path.read_text() for path in sorted((self.folder / "logs").glob("worker-*.log"))]


def run(scenario: str, folder: Path) -> Ended:
    arguments = ["run", "-n", "2", "--seed", "7", "--quiet", "--lost-after", "120", "--log-dir", str(folder / "logs")]
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *arguments, str(SCRIPT), str(folder), scenario],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        )
        try:
            code = process.wait(SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return Ended(code, (folder / "said.txt").read_text(), folder)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return run("together", tmp_path_factory.mktemp("together"))


def test_a_job_goes_on_after_ranks_were_refused_alike(together: Ended) -> None:
    assert together.code == 0, together.said
    assert [(together.folder / f"after.rank{rank}").read_text() for rank in (0, 1)] == ["trained", "trained"]


@pytest.mark.parametrize(
    ("door", "parts"),
    [
        ("other_epochs", ["RanksDisagree", "epochs", "0 to 1", "0 to 2"]),
        ("validation_on_rank_zero_only", ["RanksDisagree", "validation data", "none"]),
        ("other_sizes_of_data", ["RanksDisagree", "data", "[12,3]", "[11,3]"]),
        ("other_calls", ["RanksDisagree", "call", "fit, number", "evaluate, number"]),
        ("other_optimizer", ["RanksDisagree", "optimizer", "SGD", "Adam"]),
        ("other_loss", ["RanksDisagree", "loss", "mse", "mean_absolute_error"]),
        ("streams_in_other_orders", ["RanksDisagree", "reads other samples than the rest", "seed"]),
        ("learning_rate_changed_on_rank_zero_only", ["RanksDisagree", "after epoch 1", "learning_rate", "kernel"]),
        ("own_train_step", ["ConfigError", "train_step", "compute_loss"]),
        ("backup_and_restore", ["ConfigError", "BackupAndRestore"]),
        ("distributed_twice", ["ConfigError", "distributed already"]),
        ("not_a_model", ["ConfigError", "keras.Model", "Dense"]),
        ("no_data", ["ConfigError", "no rows"]),
        ("synchronized_statistics_in_xla", ["ConfigError", "jit_compile=False"]),
        ("weights_and_class_weights", ["ConfigError", "not both"]),
    ],
)
def test_every_rank_is_told_the_same_and_what_to_do(together: Ended, door: str, parts: list[str]) -> None:
    told = [(together.folder / f"{door}.rank{rank}").read_text() for rank in (0, 1)]
    assert told[0] == told[1]
    assert [part for part in parts if part not in told[0]] == [], told[0]


def test_models_that_differ_end_the_job_with_one_table_on_every_rank(tmp_path: Path) -> None:
    ended = run("models", tmp_path)
    assert ended.code == 1
    assert "Traceback" in ended.said
    for text in (ended.said, *ended.logs()):
        assert "the ranks do not agree on what to do" in text
        assert "rank 0" in text
        assert "rank 1" in text
        lines = [line for line in text.splitlines() if line.startswith("variable")]
        assert any("first/kernel (3, 4) float32" in line and "second/kernel (3, 3) float32" in line for line in lines)
        assert any("second/kernel (4, 3) float32" in line and "first/kernel (3, 5) float32" in line for line in lines)
        assert any("last/bias (2,) float32" in line and "last/bias (2,) float64" in line for line in lines)


def test_a_rank_whose_script_ends_early_ends_the_job_with_a_message(tmp_path: Path) -> None:
    ended = run("early", tmp_path)
    assert ended.code != 0
    assert "end of the script" in ended.said
    assert "fit, number 1" in ended.said
