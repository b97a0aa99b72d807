"""Random kills of real workers in a script of collectives: many of them, since a worker is back in a second."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from killing import COLLECTIVES, WORKERS, Plan, recoveries, run_job

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]

STEPS = 60
ROUNDS = 2  # of a step: the agreement, and the collective itself


@pytest.mark.parametrize("seed", [1, 2])
def test_kills_at_random_points_change_no_sum(tmp_path: Path, seed: int) -> None:
    plan = Plan.random(seed, num_kills=12, last_round=ROUNDS * STEPS, rounds_of_step=ROUNDS)
    run = run_job(
        tmp_path,
        "-n",
        str(WORKERS),
        script=COLLECTIVES,
        script_arguments=[STEPS],
        environment=plan.environment(),
    )
    assert run.code == 0, run.text
    assert run.result == {"total": [STEPS * (STEPS + 1) / 2], "size": WORKERS}, run.text
    killed = {(e["worker"], e["incarnation"]) for e in run.of("WorkerExited") if e["signal"] == "SIGKILL"}
    assert killed == {(kill.worker, kill.incarnation) for kill in plan.kills}
    assert statistics.median(recovery.seconds for recovery in recoveries(run, plan.kills)) < 1.0
