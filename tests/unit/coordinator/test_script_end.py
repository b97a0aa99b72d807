"""After the last call: what rank 0 still does there is done by somebody before the job is complete."""

from __future__ import annotations

from unit.coordinator.desk import VOTED, WORKING, Desk, newcomers_of, workers_of


def desk_at_end(*at_end: int) -> Desk:
    """Three workers have ended call 0 (round 0 of the job) and are in the script's tail, or, some, at its end."""
    desk = Desk(workers=3, min_workers=1)
    desk.form()
    for worker in range(3):
        desk.record(worker, 0, b"result")
    for worker in at_end:
        desk.come_to_end(worker)
    return desk


def meet_at_end(desk: Desk, *workers: int) -> None:
    """Their agreement to end was cut."""
    for worker in workers:
        desk.meet(worker, 1, WORKING, call=1)


def start_again(desk: Desk, worker: int, incarnation: int = 2) -> None:
    """The replacement runs the script up to the call that has ended."""
    desk.start(worker, incarnation)
    desk.join(worker, incarnation)
    desk.meet(worker, incarnation=incarnation)


def test_whoever_replaces_a_lost_rank_0_gets_the_state_and_its_rank() -> None:
    desk = desk_at_end(1, 2)
    desk.kill(0)
    meet_at_end(desk, 1, 2)
    assert desk.generation(1) == 1, "they wait"
    start_again(desk, 0)
    (replay,) = desk.replays(0, 2)
    assert (replay.call, replay.takes_over) == (0, True)
    desk.meet(0, call=1, incarnation=2)
    ruling = desk.ruling(1)
    assert workers_of(ruling) == [0, 1, 2]
    assert newcomers_of(ruling) == [0]
    assert desk.outcome is None


def test_any_newcomer_will_do() -> None:
    desk = desk_at_end(2)
    desk.kill(1)
    desk.kill(0)
    meet_at_end(desk, 2)
    desk.give_up(0)
    start_again(desk, 1)
    assert desk.replays(1, 2)[0].takes_over
    desk.meet(1, call=1, incarnation=2)
    assert workers_of(desk.ruling(2)) == [1, 2]


def test_nobody_waits_for_a_worker_that_was_not_rank_0() -> None:
    desk = desk_at_end(0, 2)
    desk.kill(1)
    meet_at_end(desk, 0, 2)
    assert workers_of(desk.ruling(0)) == [0, 2]
    start_again(desk, 1)
    assert not desk.replays(1, 2)[0].takes_over


def test_nobody_waits_for_a_rank_0_that_was_at_the_end_already() -> None:
    desk = desk_at_end(0, 1, 2)
    desk.kill(0)
    meet_at_end(desk, 1, 2)
    assert workers_of(desk.ruling(1)) == [1, 2]


def test_min_workers_do_not_matter_at_the_end() -> None:
    desk = Desk(workers=2, min_workers=2)
    desk.form()
    desk.come_to_end(0)
    desk.come_to_end(1)
    desk.kill(1)
    desk.meet(0, 1, WORKING)
    assert workers_of(desk.ruling(0)) == [0]


def test_a_survivor_that_has_the_end_before_it_becomes_rank_0() -> None:
    desk = desk_at_end(1)
    desk.kill(0)
    desk.meet(1, 1, WORKING, call=1)
    desk.meet(2, 0, VOTED, call=0)
    assert workers_of(desk.ruling(1)) == [2, 1]


def test_without_a_loss_of_rank_0_the_order_stays() -> None:
    desk = desk_at_end(0)
    desk.kill(2)
    desk.meet(0, 1, WORKING, call=1)
    desk.meet(1, 0, VOTED, call=0)
    assert workers_of(desk.ruling(0)) == [0, 1]


def test_a_replacement_that_comes_early_is_held_until_the_others_have_come_to_the_end() -> None:
    desk = desk_at_end(1)
    desk.kill(0)
    start_again(desk, 0)
    assert desk.replays(0, 2) == []
    desk.come_to_end(2)
    assert desk.replays(0, 2)[0].takes_over


def test_a_replacement_that_was_held_goes_on_as_usual_when_the_others_do() -> None:
    desk = desk_at_end()
    desk.kill(0)
    start_again(desk, 0)
    desk.meet(1, 1, WORKING, call=1)
    assert desk.replays(0, 2) == []
    desk.meet(2, 1, WORKING, call=1)
    assert [replay.takes_over for replay in desk.replays(0, 2)] == [False]


def test_a_replacement_that_was_held_goes_on_when_nobody_is_left_who_is_underway() -> None:
    desk = desk_at_end(1)
    desk.kill(0)
    start_again(desk, 0)
    desk.kill(2)
    assert desk.replays(0, 2)[0].takes_over


def test_an_heir_that_is_lost_too_is_replaced() -> None:
    desk = desk_at_end(1, 2)
    desk.kill(0)
    meet_at_end(desk, 1, 2)
    start_again(desk, 0)
    desk.meet(0, call=1, incarnation=2)
    desk.kill(0, 2)
    meet_at_end(desk, 1, 2)
    assert desk.generation(1) == 2, "they wait again"
    start_again(desk, 0, 3)
    desk.meet(0, call=1, incarnation=3)
    assert workers_of(desk.ruling(2)) == [0, 1, 2]


def test_when_nobody_can_come_the_job_ends_with_what_was_not_done() -> None:
    desk = desk_at_end(1, 2)
    desk.kill(0)
    meet_at_end(desk, 1, 2)
    desk.give_up(0)
    assert desk.outcome is not None
    assert desk.outcome.exit_code == 1
    assert desk.outcome.reason == (
        "rank 0 was lost before it came to the end of the script, and nobody is left to do in its place what is due "
        "there (worker 0: it failed 3 times)"
    )


def test_when_nobody_comes_for_long_the_job_ends() -> None:
    desk = Desk(workers=2, min_workers=1, pause_timeout_seconds=60)
    desk.form()
    desk.come_to_end(1)
    desk.kill(0)
    desk.meet(1, 1, WORKING)
    desk.wait(59)
    assert desk.outcome is None
    desk.wait(2)
    assert desk.outcome is not None
    assert desk.outcome.reason == (
        "rank 0 was lost before it came to the end of the script, and not replaced within 60 s"
    )


def test_rank_0_has_long_to_come_to_the_end() -> None:
    desk = Desk(workers=2, start_timeout_seconds=30, pause_timeout_seconds=300)
    desk.form()
    desk.come_to_end(1)
    desk.meet(1, 1, WORKING, call_agreed=False)
    desk.wait(290)
    assert desk.outcome is None
    assert not desk.is_fenced(0)
    desk.wait(15)
    assert desk.is_fenced(0)


def test_a_stop_ends_the_wait() -> None:
    desk = desk_at_end(1, 2)
    desk.kill(0)
    meet_at_end(desk, 1, 2)
    desk.request_stop(immediate=False)
    assert workers_of(desk.ruling(1)) == [1, 2]


def test_workers_that_are_killed_at_the_end_leave_a_complete_job() -> None:
    desk = desk_at_end(0, 1, 2)
    desk.leave(0)
    desk.kill(1)
    assert desk.outcome is None
    desk.kill(2)
    assert desk.outcome is not None
    assert desk.outcome.exit_code == 0
