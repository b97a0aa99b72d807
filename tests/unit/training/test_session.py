"""Sessions and calls of thread-workers where nobody is killed, or where the ranks do not agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.errors import RanksDisagree, UserError
from paceline.observability.events import GroupFormed, MemberJoined, RoundCommitted, RoundDiscarded
from paceline.strategies.protocols import Ballot
from paceline.testing.fakes import JobResult, KillPoint, ThreadJob, ThreadWorker
from paceline.training import eager
from paceline.training.round import run
from paceline.types import WorkerIdentity
from unit.training.counting import CountRound, Model, assert_counted, count


def run_job(script: Any, *faults: KillPoint, workers: int = 3, **options: Any) -> JobResult:
    return ThreadJob(workers, script, faults=faults, **options).run()


def errors_by_worker(result: JobResult) -> dict[int, BaseException]:
    return {who.worker: error for who, error in result.errors.items()}


def test_ranks_and_sizes_are_those_of_the_group() -> None:
    def script(worker: ThreadWorker) -> tuple[int, int, int]:
        return worker.session.rank, worker.session.size, worker.session.local_rank

    result = run_job(script)
    assert {who.worker: places for who, places in result.returned.items()} == {
        rank: (rank, 3, rank) for rank in range(3)
    }


def test_a_restarted_worker_counts_as_the_last_one_until_it_has_caught_up() -> None:
    def script(worker: ThreadWorker) -> int:
        before = worker.session.rank
        eager.barrier(worker.calls)
        if worker.identity.incarnation == 1:
            worker.wait_until(lambda job: all(one.calls_ended == 1 or one.incarnation > 1 for one in job.places))
            worker.point("all are here")
            worker.wait_until(lambda job: 1 in job.waiting and job.places[1].report.call == 1)
        eager.barrier(worker.calls)
        return before

    result = run_job(script, KillPoint(1, name="all are here"))
    assert result.returned[WorkerIdentity(1, 2)] == 2
    assert [event.worker for event in result.told(MemberJoined)] == [1]


def test_ranks_that_do_not_agree_all_get_one_table() -> None:
    def script(worker: ThreadWorker) -> None:
        count(worker, Model(), rounds=3 if worker.session.rank == 1 else 2)

    result = run_job(script)
    assert result.outcome.exit_code == 1
    messages = {str(error) for error in result.errors.values()}
    (message,) = messages
    assert all(isinstance(error, RanksDisagree) for error in result.errors.values())
    assert message.splitlines() == [
        "the ranks do not agree on what to do:",
        "        rank 0  rank 1  rank 2",
        "rounds  2       3       2",
    ]


def test_ranks_that_make_different_calls_are_told_so() -> None:
    def script(worker: ThreadWorker) -> None:
        if worker.session.rank == 2:
            eager.barrier(worker.calls)
        else:
            eager.allreduce(worker.calls, np.ones(3), "sum")

    result = run_job(script)
    assert "call       allreduce, number 0  allreduce, number 0  barrier, number 0" in str(result.errors.popitem()[1])


class OtherData(CountRound):
    """Rank 1 reads something else."""

    def ballot(self, work: Any, proposal: Any) -> Ballot:
        ballot = super().ballot(work, proposal)
        return Ballot(ballot.digest, 99 if 0 in work or 1 in work else ballot.fingerprint)


def test_members_that_read_other_data_stop_at_once() -> None:
    def script(worker: ThreadWorker) -> None:
        with worker.calls.call("count", {}):
            run(worker.session, OtherData(Model(), 0))

    result = run_job(script)
    assert result.outcome.exit_code == 1
    assert all("rank 0 reads other samples than the rest" in str(error) for error in result.errors.values())


class Unsound(CountRound):
    """The first member gets its sums wrong, so many times."""

    def __init__(self, model: Model, step: int, wrong: int) -> None:
        super().__init__(model, step)
        self.wrong = wrong

    def ballot(self, work: Any, proposal: Any) -> Ballot:
        ballot = super().ballot(work, proposal)
        self.wrong -= 1
        is_first = self._ids[0] in work
        return Ballot(ballot.digest + 1, ballot.fingerprint) if is_first and self.wrong >= 0 else ballot


@pytest.mark.parametrize("wrong", [1, 2])
def test_a_result_that_differs_is_computed_again(wrong: int) -> None:
    def script(worker: ThreadWorker) -> Model:
        model = Model()
        with worker.calls.call("count", {}):
            run(worker.session, Unsound(model, 0, wrong))
        return model

    result = run_job(script)
    assert result.outcome.exit_code == 0
    for model in result.returned.values():
        assert_counted(model, 1)
    assert [event.reason for event in result.told(RoundDiscarded)] == ["digests differ"] * wrong


def test_a_result_that_differs_again_and_again_names_the_member() -> None:
    def script(worker: ThreadWorker) -> None:
        with worker.calls.call("count", {}):
            run(worker.session, Unsound(Model(), 0, 3))

    result = run_job(script)
    assert result.outcome.exit_code == 1
    assert all("rank 0 held another result than the rest 3 times" in str(error) for error in result.errors.values())


def test_one_member_that_wants_to_halt_halts_all_before_the_round() -> None:
    def script(worker: ThreadWorker) -> Model:
        model = Model()
        steps, _ = count(worker, model, rounds=5, halt_at=3 if worker.session.rank == 1 else None)
        assert steps == 3
        return model

    for model in run_job(script).returned.values():
        assert_counted(model, 3)


def test_a_users_error_on_one_rank_ends_the_job_with_it() -> None:
    def script(worker: ThreadWorker) -> None:
        count(worker, Model(), rounds=1)
        if worker.session.rank == 1:
            raise ValueError("bad value")
        count(worker, Model(), rounds=1)

    result = run_job(script)
    assert (result.outcome.exit_code, result.outcome.reason) == (1, "worker 1 failed: ValueError: bad value")
    assert list(errors_by_worker(result)) == [1]


def script_with_inner_calls(worker: ThreadWorker) -> Model:
    """Each round is followed by a collective, as from a callback."""
    model = Model()
    worker.calls.parts.append(model)
    with worker.calls.call("outer", {}, progress=Model()) as opened:
        while not opened.replayed and len(model.seen) < 4 * 7:
            run(worker.session, CountRound(model, len(model.seen) // 7))
            worker.point(f"before inner {len(model.seen) // 7}")
            if worker.identity.incarnation == 1 and worker.session.size < 3:
                worker.wait_until(lambda job: job.announced > job.generation)
            assert eager.allreduce(worker.calls, np.array([len(model.seen)]), "max").tolist() == [len(model.seen)]
    assert worker.session.call == 1
    return model


def test_calls_inside_a_call_are_agreed_and_have_no_number() -> None:
    undisturbed = run_job(script_with_inner_calls)
    for number in range(0, len(undisturbed.points[WorkerIdentity(1, 1)]), 3):
        result = run_job(script_with_inner_calls, KillPoint(1, number))
        assert (result.outcome.exit_code, result.errors) == (0, {}), number
        for model in result.returned.values():
            if model.seen:
                assert_counted(model, 4)


def test_a_newcomer_is_let_in_between_rounds_that_are_all_followed_by_inner_calls() -> None:
    result = run_job(script_with_inner_calls, KillPoint(1, name="before inner 1"))
    assert [event.worker for event in result.told(MemberJoined)] == [1]
    sizes = [len(event.workers) for event in result.told(GroupFormed)]
    assert sizes in ([3, 2, 3], [3, 3]), "nobody meets in vain"


def test_a_result_that_was_not_kept_is_told_to_whoever_needs_it() -> None:
    def script(worker: ThreadWorker) -> None:
        eager.allreduce(worker.calls, np.ones(100), "sum")
        worker.point("later")
        if worker.identity.incarnation == 1:
            worker.wait_until(lambda job: 1 in job.waiting)
        eager.barrier(worker.calls)

    result = run_job(script, KillPoint(1, name="later"), max_recorded_bytes=50)
    (error,) = result.errors.values()
    assert isinstance(error, UserError)
    assert str(error) == (
        "call 0 (allreduce) ended while this worker was away, and its result was too large to be kept; this worker "
        "cannot take part again"
    )


def test_a_call_that_failed_everywhere_alike_is_told_to_whoever_comes_later() -> None:
    def script(worker: ThreadWorker) -> None:
        try:
            with worker.calls.call("count", {}):
                run(worker.session, CountRound(Model(), 0))
                raise ValueError("a callback's error")
        except ValueError:
            pass
        worker.point("later")
        if worker.identity.incarnation == 1:
            worker.wait_until(lambda job: job.outcome is not None or 1 in job.waiting)
        eager.barrier(worker.calls)

    result = run_job(script, KillPoint(1, name="later"))
    (error,) = result.errors.values()
    assert str(error) == "call 0 (count) had failed on the other workers: ValueError: a callback's error"


def test_a_restarted_worker_whose_script_takes_another_path_is_told_so() -> None:
    def script(worker: ThreadWorker) -> None:
        model = Model()
        if worker.identity.incarnation == 1:
            worker.calls.parts.append(model)
        with worker.calls.call("count", {}, progress=Model()):
            for step in range(6):
                run(worker.session, CountRound(model, step))
                worker.point(f"round {step}")
                if step == 3 and worker.identity.incarnation == 1:
                    worker.wait_until(lambda job: 1 in job.waiting)

    result = run_job(script, KillPoint(1, name="round 1"))
    (error,) = result.errors.values()
    assert isinstance(error, RanksDisagree)
    assert "this worker has distributed 0 models where the others have 1" in str(error)


def test_newcomers_are_let_in_at_a_rounds_end_and_the_round_is_held_once() -> None:
    def script(worker: ThreadWorker) -> Model:
        model = Model()
        worker.calls.parts.append(model)
        progress = Model()
        with worker.calls.call("count", {}, progress=progress) as opened:
            if not opened.replayed:
                while len(model.seen) < 6 * 7:
                    if worker.session.size < 3:
                        worker.wait_until(lambda job: job.announced > job.generation)
                    run(worker.session, CountRound(model, len(model.seen) // 7))
                    worker.point(f"round {len(model.seen) // 7}")
        return model

    result = run_job(script, KillPoint(2, name="round 2"))
    assert [len(event.workers) for event in result.told(GroupFormed)] in ([3, 2, 3], [3, 3])
    rounds = [event.round for event in result.told(RoundCommitted)]
    assert rounds == sorted(set(rounds))
    for model in result.returned.values():
        assert_counted(model, 6)
