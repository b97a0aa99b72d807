"""A restarted worker: it replays what has ended, and is let in at a round's end."""

from __future__ import annotations

from paceline.coordinator.protocols import Replay, Settlement
from paceline.types import WorkerIdentity
from unit.coordinator.desk import VOTED, WORKING, Desk, newcomers_of, workers_of


def lose_and_restart(desk: Desk, worker: int, survivors: tuple[int, ...], committed: int = 3) -> None:
    desk.start(worker)
    desk.kill(worker)
    for survivor in survivors:
        desk.meet(survivor, committed, WORKING)
    desk.start(worker, incarnation=2)
    desk.join(worker, incarnation=2)


def test_a_restarted_worker_is_told_that_it_is_late() -> None:
    desk = Desk(workers=2)
    desk.form()
    lose_and_restart(desk, 1, (0,))
    assert desk.joined(1, 2).generation == 2


def test_a_newcomer_is_announced_and_let_in_at_the_next_boundary() -> None:
    desk = Desk(workers=3)
    desk.form()
    lose_and_restart(desk, 1, (0, 2))
    assert not desk.announced(0)
    desk.meet(1, incarnation=2)
    assert desk.announced(0) == [3]
    assert desk.announced(2) == [3]
    assert not desk.announced(1, 2)
    desk.meet(0, 5)
    desk.meet(2, 5)
    ruling = desk.ruling(1, 2)
    assert ruling.group.generation == 3
    assert workers_of(ruling) == [0, 2, 1]
    assert newcomers_of(ruling) == [1]
    assert ruling.settlement is Settlement.NOTHING
    assert [donor.worker for donor in ruling.group.donors] == [0, 2]
    assert ruling.reason == "2 go on, worker 1 joins; no round was open"
    assert not desk.verdicts(2)[1:]


def test_members_are_called_together_once_for_several_newcomers() -> None:
    desk = Desk(workers=3)
    desk.form()
    desk.disconnect(1)
    desk.disconnect(2)
    desk.meet(0, 3, WORKING)
    for worker in (2, 1):
        desk.join(worker, incarnation=2)
        desk.meet(worker, incarnation=2)
    assert desk.announced(0) == [3]
    desk.meet(0, 4)
    assert workers_of(desk.ruling(0)) == [0, 1, 2]


def test_members_are_not_called_when_nobody_can_be_let_in() -> None:
    desk = Desk(workers=2)
    desk.form()
    lose_and_restart(desk, 1, (0,))
    desk.meet(1, incarnation=2, call=4)
    desk.wait(10.0)
    assert not desk.announced(0)


def test_a_newcomer_that_dies_before_it_is_let_in_is_forgotten() -> None:
    desk = Desk(workers=2)
    desk.form()
    lose_and_restart(desk, 1, (0,))
    desk.meet(1, incarnation=2)
    desk.kill(1, incarnation=2)
    desk.meet(0, 4)
    assert workers_of(desk.ruling(0)) == [0]
    assert desk.generation(0) == 3


def test_a_waiting_newcomer_is_let_in_when_the_members_meet_for_a_loss() -> None:
    desk = Desk(workers=3)
    desk.form()
    lose_and_restart(desk, 1, (0, 2))
    desk.meet(1, incarnation=2)
    desk.disconnect(2)
    desk.meet(0, 4, VOTED)
    assert desk.ruling(0).settlement is Settlement.DISCARD
    assert workers_of(desk.ruling(0)) == [0, 1]
    assert newcomers_of(desk.ruling(0)) == [1]


def test_calls_that_have_ended_are_replayed_at_once() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.record(0, 0, b"first")
    desk.record(1, 0, b"ignored: the first wins")
    desk.record(0, 1, b"second")
    lose_and_restart(desk, 1, (0,))
    desk.meet(1, incarnation=2, call=0)
    assert desk.replays(1, 2) == [Replay(0, b"first"), Replay(1, b"second")]
    desk.meet(1, incarnation=2, call=2)
    assert len(desk.replays(1, 2)) == 2
    assert desk.announced(0) == [3]


def test_a_call_that_ends_while_a_newcomer_waits_for_it_is_replayed_then() -> None:
    desk = Desk(workers=2)
    desk.form()
    lose_and_restart(desk, 1, (0,))
    desk.meet(1, incarnation=2)
    desk.record(0, 0, b"history")
    assert desk.replays(1, 2) == [Replay(0, b"history")]
    assert not desk.rulings(1, 2)


def test_long_histories_are_replayed_in_portions() -> None:
    desk = Desk(workers=2)
    desk.form()
    for call in range(300):
        desk.record(0, call, bytes(100_000) if call < 20 else b"")
    lose_and_restart(desk, 1, (0,))
    desk.meet(1, incarnation=2)
    assert [replay.call for replay in desk.replays(1, 2)] == list(range(10))
    desk.meet(1, incarnation=2, call=10)
    assert [replay.call for replay in desk.replays(1, 2)] == list(range(20 + 246))


def test_a_newcomer_that_runs_after_short_calls_is_let_in() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.record(0, 0)
    lose_and_restart(desk, 1, (0,))
    desk.meet(1, incarnation=2, call=0)
    assert not desk.announced(0)
    desk.record(0, 1)
    desk.meet(1, incarnation=2, call=1)
    assert desk.announced(0) == [3]
    desk.record(0, 2)
    desk.meet(0, 5, call=3)
    desk.meet(1, incarnation=2, call=2)
    assert desk.generation(0) == 2
    desk.meet(1, incarnation=2, call=3)
    assert workers_of(desk.ruling(0)) == [0, 1]


def test_a_newcomer_that_takes_its_time_between_calls_is_not_worth_a_meeting() -> None:
    desk = Desk(workers=2)
    desk.form()
    desk.record(0, 0)
    lose_and_restart(desk, 1, (0,))
    for call in range(5):
        desk.meet(1, incarnation=2, call=call)
        desk.record(0, call + 1)
        desk.wait(2.0)
    assert not desk.announced(0)


def test_the_members_wait_a_moment_for_the_newcomer_that_has_just_replayed() -> None:
    desk = Desk(workers=2)
    desk.form()
    lose_and_restart(desk, 1, (0,))
    desk.meet(1, incarnation=2)
    desk.record(0, 0)
    desk.meet(0, 5, call=1)
    assert desk.generation(0) == 2
    desk.meet(1, incarnation=2, call=1)
    assert workers_of(desk.ruling(0)) == [0, 1]


def test_the_members_do_not_wait_long_for_a_newcomer_on_its_way() -> None:
    desk = Desk(workers=2)
    desk.form()
    lose_and_restart(desk, 1, (0,))
    desk.meet(1, incarnation=2)
    desk.record(0, 0)
    desk.meet(0, 5, call=1)
    desk.wait(1.25)
    assert desk.generation(0) == 3
    assert workers_of(desk.ruling(0)) == [0]
    desk.meet(1, incarnation=2, call=1)
    assert desk.announced(0) == [3, 4]


def test_a_holder_that_has_begun_a_later_call_shows_that_the_earlier_ones_have_ended() -> None:
    desk = Desk(workers=3)
    desk.form()
    lose_and_restart(desk, 1, (0, 2))
    desk.meet(1, incarnation=2)
    desk.meet(0, 5, call=1)
    assert desk.replays(1, 2) == [Replay(0, None)]
    desk.meet(1, incarnation=2, call=1)
    desk.meet(2, 4, VOTED, call=0)
    assert desk.ruling(2).settlement is Settlement.COMMIT
    assert workers_of(desk.ruling(2)) == [0, 2, 1]


def test_results_above_the_limit_are_replayed_as_a_marker() -> None:
    desk = Desk(workers=2, max_recorded_bytes=10)
    desk.form()
    desk.record(0, 0, b"12345678")
    desk.record(0, 1, b"123")
    desk.record(0, 2, b"12")
    lose_and_restart(desk, 1, (0,))
    desk.meet(1, incarnation=2)
    assert desk.replays(1, 2) == [Replay(0, b"12345678"), Replay(1, None), Replay(2, b"12")]


def test_a_newcomer_whose_transfer_failed_stays_a_newcomer() -> None:
    desk = Desk(workers=3)
    desk.form()
    lose_and_restart(desk, 1, (0, 2))
    desk.meet(1, incarnation=2)
    desk.meet(0, 5)
    desk.meet(2, 5)
    desk.disconnect(2)
    desk.meet(1, -1, incarnation=2, suspects=(2,))
    desk.meet(0, 5, suspects=(2,))
    assert workers_of(desk.ruling(0)) == [0, 1]
    assert newcomers_of(desk.ruling(0)) == [1]


def test_a_newcomer_that_holds_the_state_is_an_ordinary_member() -> None:
    desk = Desk(workers=3)
    desk.form()
    lose_and_restart(desk, 1, (0, 2))
    desk.meet(1, incarnation=2)
    desk.meet(0, 5)
    desk.meet(2, 5)
    desk.disconnect(0)
    desk.meet(1, 6, incarnation=2)
    desk.meet(2, 5, VOTED)
    assert desk.ruling(2).settlement is Settlement.COMMIT
    assert workers_of(desk.ruling(2)) == [2, 1]
    assert not desk.ruling(2).group.newcomers


def test_before_the_first_commit_survivors_and_fresh_processes_are_equal() -> None:
    desk = Desk(workers=3)
    desk.form()
    desk.disconnect(1)
    desk.join(1, incarnation=2)
    desk.meet(1, incarnation=2)
    desk.meet(0, -1, VOTED)
    desk.meet(2, -1, WORKING)
    ruling = desk.ruling(0)
    assert workers_of(ruling) == [0, 2, 1]
    assert ruling.settlement is Settlement.DISCARD
    assert not ruling.group.newcomers


def test_nobody_is_let_in_where_a_newcomer_could_not_find_its_place() -> None:
    desk = Desk(workers=3, min_workers=2)
    desk.form()
    lose_and_restart(desk, 1, (0, 2))
    desk.meet(1, incarnation=2)
    desk.disconnect(2)
    desk.meet(0, 4, VOTED, admits=False)
    assert workers_of(desk.ruling(0)) == [0]
    assert desk.announced(0) == [3, 4]
    desk.meet(0, 5)
    assert workers_of(desk.ruling(0)) == [0, 1]


def test_when_every_holder_is_lost_the_job_fails_and_says_why() -> None:
    desk = Desk(workers=3)
    desk.form()
    desk.start(0)
    desk.start(2)
    lose_and_restart(desk, 1, (0, 2))
    desk.meet(1, incarnation=2)
    desk.kill(0)
    assert desk.outcome is None
    desk.kill(2)
    assert desk.outcome is not None
    assert desk.outcome.exit_code == 1
    assert desk.outcome.reason == (
        "every worker that held the state was lost (worker 0: its connection closed; SIGKILL; "
        "worker 2: its connection closed; SIGKILL), and there is no checkpoint to go back to"
    )
    assert desk.stops(1, 2)[-1].exit_code == 1


def test_newcomers_alone_have_no_state_to_go_on_with() -> None:
    desk = Desk(workers=2)
    desk.form()
    lose_and_restart(desk, 1, (0,))
    desk.meet(1, incarnation=2)
    desk.meet(0, 5)
    assert newcomers_of(desk.ruling(0)) == [1]
    desk.disconnect(0)
    desk.meet(1, -1, incarnation=2)
    assert desk.outcome is not None
    assert desk.outcome.reason == "nobody is left who holds the state, and there is no checkpoint"


def test_a_newcomer_that_replays_leaves_the_group_that_it_could_not_enter() -> None:
    desk = Desk(workers=2)
    desk.form()
    lose_and_restart(desk, 1, (0,))
    desk.meet(1, incarnation=2)
    desk.meet(0, 5)
    desk.record(0, 0, b"done")
    desk.meet(1, -1, incarnation=2, suspects=(0,))
    assert desk.replays(1, 2) == [Replay(0, b"done")]
    assert desk.coordinator.job.alive == {0}
    assert WorkerIdentity(1, 2) == desk.coordinator.job.places[1].identity


def test_results_that_a_worker_outside_of_the_group_claims_do_not_count() -> None:
    desk = Desk(workers=2)
    desk.form()
    lose_and_restart(desk, 1, (0,))
    desk.record(1, 0, b"made up", incarnation=2)
    desk.meet(1, incarnation=2)
    assert not desk.replays(1, 2)
