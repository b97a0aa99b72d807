"""Jobs of three thread-workers in which somebody is killed, at every point at which it could matter.

A run has two calls (the second is ended early by a vote), user code and a collective between them, and a tail after
the last. Whatever happens: the job is complete, every round was applied exactly once and alike, and the tail was done
by a rank 0 that held the state.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from paceline.coordinator.inputs import StopRequested
from paceline.observability.events import GroupFormed, JobPaused, MemberLost, RoundCommitted
from paceline.testing.fakes import JobResult, KillPoint, ThreadJob, ThreadWorker
from paceline.training import eager
from paceline.types import WorkerIdentity
from unit.training.counting import NUM_IDS, Model, assert_counted, count

WORKERS = range(3)
NUM_ROUNDS = 5  # three of the first call; two of the second, which would be three


@dataclass
class Finished:
    """What a process holds that has run the script to its end."""

    model: Model
    is_rank_zero: bool
    holds_state: bool


def script(worker: ThreadWorker) -> Finished:
    model = Model(first=worker.identity.worker)  # the ranks begin differently, and take rank 0's state
    worker.calls.parts.append(model)
    steps, _ = count(worker, model, rounds=3)
    assert steps == 3
    worker.point("between the calls")
    # What a model says of itself: nobody may take part who does not hold its state yet.
    lengths = eager.allgather(worker.calls, np.array([len(model.seen)]))
    assert set(lengths.tolist()) == {3 * NUM_IDS}
    steps, _ = count(worker, model, rounds=3, first=3, halt_at=2)
    assert steps == 2
    worker.point("tail begins")
    worker.point("tail ends")
    return Finished(model, worker.session.rank == 0, worker.session.holds_state)


def script_with_a_slow_tail(worker: ThreadWorker) -> Finished:
    """Worker 0's tail is done after the others'."""
    finished = script(worker)
    if worker.identity == WorkerIdentity(0, 1):
        worker.wait_until(lambda job: job.underway == {0})
        worker.point("alone in the tail")
    return finished


def assert_well(result: JobResult) -> None:
    assert (result.outcome.exit_code, result.errors) == (0, {})
    holders = [finished for finished in result.returned.values() if finished.holds_state]
    assert holders
    for finished in holders:
        assert_counted(finished.model, NUM_ROUNDS)
        assert finished.model.first == holders[0].model.first
    assert any(finished.is_rank_zero for finished in holders), "nobody did what rank 0 has to do in the script's tail"
    rounds = [event.round for event in result.told(RoundCommitted)]
    assert rounds == sorted(rounds), "a round that is told as committed stays so"


def run(
    *faults: KillPoint, workers: int = 3, script: Callable[[ThreadWorker], Finished] = script, **options: int
) -> JobResult:
    result = ThreadJob(workers, script, faults=faults, **options).run()
    try:
        assert_well(result)
    except AssertionError as error:
        raise AssertionError(f"{faults}: {error}\n" + "\n".join(map(str, result.events))) from error
    return result


@pytest.fixture(scope="module")
def points() -> list[list[str]]:
    """The points of each worker in a run that nobody disturbs."""
    result = run()
    assert not result.killed
    return [result.points[WorkerIdentity(worker, 1)] for worker in WORKERS]


def test_an_undisturbed_run_passes_every_kind_of_point(points: list[list[str]]) -> None:
    kinds = {name.split()[0] for names in points for name in names}
    assert kinds >= {"start", "before", "after", "sent", "work", "talk", "vote", "change", "between", "tail"}
    assert all(len(names) > 90 for names in points)


@pytest.mark.parametrize("worker", WORKERS)
def test_a_kill_at_any_point_costs_nothing_that_was_committed(points: list[list[str]], worker: int) -> None:
    for number in range(len(points[worker])):
        result = run(KillPoint(worker, number))
        assert result.killed == [WorkerIdentity(worker, 1)]


@pytest.mark.parametrize("worker", WORKERS)
def test_a_second_kill_while_the_first_is_mended_costs_nothing_either(points: list[list[str]], worker: int) -> None:
    source = random.Random(worker)
    other = (worker + 1) % 3
    for _ in range(40):
        first = KillPoint(worker, source.randrange(len(points[worker])))
        replacement = KillPoint(worker, source.randrange(25), incarnation=2)
        neighbour = KillPoint(other, source.randrange(len(points[other])))
        run(first, source.choice([replacement, neighbour]))


def test_many_kills_are_survived_as_long_as_somebody_lives(points: list[list[str]]) -> None:
    source = random.Random(17)
    for _ in range(40):
        last_alive = source.choice(WORKERS)
        victims = [worker for worker in WORKERS if worker != last_alive]
        faults = [
            KillPoint(worker, source.randrange(60), incarnation=incarnation)
            for worker in victims
            for incarnation in range(1, 5)
        ]
        run(*faults)


@pytest.mark.parametrize("workers", [2, 4, 5])
def test_groups_of_any_size_survive_kills(workers: int) -> None:
    source = random.Random(workers)
    for _ in range(25):
        victims = source.sample(range(workers), workers - 1)
        run(*(KillPoint(worker, source.randrange(90)) for worker in victims), workers=workers)


def test_without_restarts_the_job_goes_on_with_fewer() -> None:
    result = run(KillPoint(1, name="talk 2"), KillPoint(0, name="change 5"), max_restarts=0)
    sizes = [event.size for event in result.told(RoundCommitted)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1
    assert [event.worker for event in result.told(MemberLost)] == [1, 0]


def test_below_min_workers_the_job_pauses_until_somebody_comes() -> None:
    def patient_script(worker: ThreadWorker) -> Finished:
        if worker.identity.incarnation > 1:
            worker.wait_until(lambda job: job.paused_since is not None)
        return script(worker)

    result = run(KillPoint(1, name="talk 2"), KillPoint(2, name="vote 2"), script=patient_script, min_workers=3)
    assert all(event.size == 3 for event in result.told(RoundCommitted))
    assert result.told(JobPaused)


def test_what_rank_0_cannot_do_any_more_is_told_when_nobody_can() -> None:
    fault = KillPoint(0, name="alone in the tail")
    result = ThreadJob(3, script_with_a_slow_tail, faults=[fault], max_restarts=0).run()
    assert result.outcome.exit_code == 1
    assert result.outcome.reason == (
        "rank 0 was lost before it came to the end of the script, and nobody is left to do in its place what is due "
        "there (worker 0: it was started again too often)"
    )


def test_whoever_replaces_rank_0_in_the_tail_holds_the_state_there_and_is_rank_0() -> None:
    result = run(KillPoint(0, name="alone in the tail"), script=script_with_a_slow_tail)
    last = result.told(GroupFormed)[-1]
    assert (last.workers, last.newcomers) == ((0, 1, 2), (0,))
    assert [who for who, finished in result.returned.items() if finished.is_rank_zero] == [WorkerIdentity(0, 2)]


def test_a_replacement_in_the_tail_may_be_lost_too() -> None:
    faults = [
        KillPoint(0, name="alone in the tail"),
        KillPoint(0, name="tail begins", incarnation=2),
        KillPoint(0, name="before report MemberJoined", incarnation=3),
        KillPoint(0, name="after meet", incarnation=4),
    ]
    result = run(*faults, script=script_with_a_slow_tail)
    assert WorkerIdentity(0, 2) in result.killed
    assert [who.worker for who, finished in result.returned.items() if finished.is_rank_zero] == [0]


def test_nobody_waits_at_the_end_for_others_than_rank_0() -> None:
    result = run(KillPoint(1, name="tail begins"))
    assert [who for who, finished in result.returned.items() if finished.is_rank_zero] == [WorkerIdentity(0, 1)]


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5])
def test_a_stop_is_agreed_and_all_hold_the_same_then(number: int) -> None:
    models: dict[int, Model] = {}

    def stopped(worker: ThreadWorker) -> None:
        model = models[worker.identity.worker] = Model()
        worker.calls.parts.append(model)
        count(worker, model, rounds=number)
        if worker.session.rank == 1:
            worker.job.handle(StopRequested(False, "Ctrl-C", 130))
        count(worker, model, rounds=100, first=number)

    result = ThreadJob(3, stopped).run()
    assert result.outcome.exit_code == 130
    held = {tuple(model.seen) for model in models.values()}
    assert len(held) == 1
    assert_counted(models[0], len(models[0].seen) // 7)
