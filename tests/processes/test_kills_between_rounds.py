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
if "tail" in os.environ["STRIKES"] and pl.rank() == 0:
    until(lambda: len(marks()) == 2, "the others had come to the end")
strike("tail")
if pl.rank() == 0:
    print("RESULT", json.dumps({"total": total, "worker": ME}))
mark()
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


def test_rank_0_lost_in_the_scripts_tail_is_replaced_there(tmp_path: Path) -> None:
    result = run(tmp_path, SCRIPT, strikes=["0.1 tail", "0.2 tail"])
    assert_complete(result)
    assert result.results[0]["worker"] == "0.3"


def test_a_job_whose_tail_nobody_can_run_any_more_has_failed(tmp_path: Path) -> None:
    result = run(tmp_path, SCRIPT, "--max-restarts", "0", strikes=["0.1 tail"])
    assert result.code == 1
    assert result.results == []
    assert "rank 0 was lost before it came to the end of the script" in result.text
    assert "worker 0 was killed (SIGKILL); restarts are turned off (--max-restarts 0)" in result.text


def test_below_min_workers_the_job_waits_for_the_lost(tmp_path: Path) -> None:
    result = run(tmp_path, SCRIPT, "--min-workers", "3", strikes=["1.1 before 2", "0.1 before 3"])
    assert_complete(result)
    assert {event["size"] for event in result.of("RoundCommitted")} == {3}
    assert result.of("JobPaused")


def test_a_worker_that_is_started_no_more_is_done_without(tmp_path: Path) -> None:
    impatient = SCRIPT.replace("    patience()\n", "")
    result = run(tmp_path, impatient, "--max-restarts", "0", strikes=["1.1 before 2"])
    assert_complete(result)
    sizes = [event["size"] for event in result.of("RoundCommitted")]
    assert sizes[:4] == [3] * 4
    assert set(sizes[4:]) == {2}
