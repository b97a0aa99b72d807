"""Random walks over crashes, freezes and orders of messages: what must hold in every one of them."""

from __future__ import annotations

import os

import pytest

from unit.coordinator.simulation import LAST_CALL, ROUNDS_OF_CALLS, Simulation

NUM_SEEDS = int(os.environ.get("PACELINE_EXPLORER_SEEDS", "60"))


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_undisturbed_jobs_are_complete_with_every_round_once(workers: int) -> None:
    for seed in range(10):
        simulation = Simulation(seed, workers=workers, num_crashes=0)
        outcome = simulation.run(0)
        assert outcome.exit_code == 0
        assert outcome.reason == "the job is complete"
        assert all(len(worker.history or ()) == sum(ROUNDS_OF_CALLS) for worker in simulation.processes)


@pytest.mark.parametrize(
    ("workers", "min_workers", "num_crashes"), [(2, 1, 2), (3, 1, 3), (3, 2, 4), (4, 1, 8), (5, 3, 12)]
)
def test_no_round_has_two_outcomes_and_no_job_is_stuck_whatever_crashes(
    workers: int, min_workers: int, num_crashes: int
) -> None:
    for seed in range(NUM_SEEDS):
        simulation = Simulation(seed, workers=workers, min_workers=min_workers, num_crashes=num_crashes)
        try:
            outcome = simulation.run(400 * workers)
            check_end(simulation, outcome.exit_code, outcome.reason)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def check_end(simulation: Simulation, exit_code: int, reason: str) -> None:
    if exit_code == 0:
        rounds = sum(ROUNDS_OF_CALLS[:LAST_CALL])
        finished = [worker for worker in simulation.processes if worker.at_end and len(worker.history or ()) >= rounds]
        assert finished, "a job is complete only when someone has done it all"
        assert simulation.tails, "somebody has done what rank 0 has to do at the end of the script"
        last = finished[-1].history
        assert last is not None
        for call, result in simulation.replayed:
            expected = repr(last[: sum(ROUNDS_OF_CALLS[: call + 1])]).encode()
            assert result in (expected, None), "a replayed result is the one that the survivors hold"
    else:
        good_reasons = (
            "every worker that held the state was lost",
            "nobody is left who holds",
            "too few",
            "the job cannot",
            "rank 0 was lost before it came to the end",
        )
        assert reason.startswith(good_reasons), reason
