"""Real workers killed where no round is under way, in a script of collectives (no TensorFlow, so it takes seconds)."""

from __future__ import annotations

from pathlib import Path

import pytest

from striking import Result, run

pytestmark = pytest.mark.timeout(1800)

SCRIPT = """
from strikes import *
import json
import numpy as np
import paceline as pl

strike("start")
pl.init()
strike("joined")
total = 0.0
for step in range(5):
    strike(f"before {step}")
    total += float(pl.allreduce(np.float64(step + 1)))
    patience()
total += float(pl.broadcast(np.float64(100)))
strike("tail")
print("RESULT", json.dumps({"total": total, "rank": pl.rank(), "worker": ME})) if pl.rank() == 0 else None
strike("end")
"""
TOTAL = 115.0


def assert_complete(result: Result) -> None:
    assert result.code == 0, result.text
    assert [one["total"] for one in result.results] == [TOTAL], result.text


@pytest.mark.parametrize(
    "strikes",
    [
        ("1.1 start",),
        ("0.1 start", "1.1 start", "2.1 start"),
        ("0.1 joined",),
        ("2.1 joined", "2.2 joined"),
        ("1.1 before 0",),
        ("0.1 before 2",),
        ("0.1 before 2", "1.1 before 2"),
        ("0.1 before 1", "2.1 before 3", "0.2 before 4"),
        ("1.1 agreement 0",),
        ("0.1 agreement 3",),
        ("2.1 agreement 3 done",),
        ("0.1 ballot 2 done", "1.1 ballot 2 done"),
        ("1.1 agreement 3", "1.2 receiver begins"),
        ("2.1 before 1", "2.2 receiver is done"),
        ("2.1 before 1", "0.1 donor begins"),
        ("2.1 before 1", "0.1 donor is done", "1.1 before 4"),
    ],
    ids=", ".join,
)
def test_a_kill_between_rounds_costs_nothing(tmp_path: Path, strikes: tuple[str, ...]) -> None:
    assert_complete(run(tmp_path, SCRIPT, strikes=strikes))
