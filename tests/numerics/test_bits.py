"""With `--deterministic`: the same bits for any number of workers, and with one of them killed at a random point."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from numerics import jobs
from numerics.catalogue import CASES
from numerics.catalogue.registry import Case
from numerics.comparison import compare
from numerics.conftest import JobsDone
from paceline.testing.faults import FaultPlan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

BITS = [case for case in CASES.values() if case.job == "deterministic"]
ROUNDS = 60  # fewer than the cases take together, so that the kill strikes

cases = pytest.mark.parametrize("case", BITS, ids=[case.name for case in BITS])


@pytest.mark.parametrize("size", [2, 3, 4])
@cases
def test_n_workers_give_the_bits_of_one(size: int, case: Case, jobs_done: JobsDone) -> None:
    (expected,) = jobs_done.ranks("1", case)
    for kept in jobs_done.ranks(str(size), case):
        compare(kept, expected, 0.0)


@pytest.fixture(scope="module", params=[1, 2], ids=["seed 1", "seed 2"])
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, jobs.Results]:
    """Three workers, one of them killed: who, and what was kept."""
    plan = FaultPlan.random(request.param, workers=3, rounds=ROUNDS)
    folder: Path = tmp_path_factory.mktemp("killed-")
    events = folder / "events.jsonl"
    launch = jobs.job(
        3,
        [case.name for case in BITS],
        folder,
        options=["--deterministic", "--events", str(events)],
        environment=plan.environment(),
        survivors=[worker for worker in range(3) if worker != plan.kills[0].worker],
    )
    results = launch.results()
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["worker"] for event in told if event["event"] == "MemberLost"] == [plan.kills[0].worker]
    return plan.kills[0].worker, results


@cases
def test_a_kill_at_a_random_point_costs_no_bit(
    case: Case, killed: tuple[int, jobs.Results], jobs_done: JobsDone
) -> None:
    _, results = killed
    assert results.failures == {}
    (expected,) = jobs_done.ranks("1", case)
    for kept in results.ranks[case.name]:
        compare(kept, expected, 0.0)
