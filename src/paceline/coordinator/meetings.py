"""Who goes on together: reports come in, the group is decided and its open round settled, newcomers are let in.

Next file: `membership.py`.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.coordinator import ending
from paceline.coordinator.arrivals import end_generation, lose
from paceline.coordinator.ballot import settle
from paceline.coordinator.job import MAY_COME, Place, Status, Turn
from paceline.coordinator.messages import Announced, Awaiting, PushedStop, Refused, Replayed, Ruled
from paceline.coordinator.protocols import Report, RoundState, Ruling, Settlement
from paceline.coordinator.quorum import Attendance, Candidate, Decision, decide, name_workers
from paceline.coordinator.rules import Outcome
from paceline.errors import ProtocolError
from paceline.observability.events import GroupFormed, JobPaused, WorkerAwaited
from paceline.types import Group

# A newcomer that was just told of ended calls asks for the next one within milliseconds. Members that meet to let it in
# wait this long for it, and one that keeps asking so fast is worth a meeting: else it would run after short calls for
# ever.
ADMISSION_GRACE_SECONDS = 1.0
# Results of ended calls travel together, so that a script of many short calls is replayed faster than it was made.
MAX_REPLAYS = 256
MAX_REPLAY_BYTES = 1 << 20


def met(turn: Turn, place: Place, report: Report) -> None:
    """A worker says where it stands, and waits for the next group."""
    job = turn.job
    objection = _find_objection(place, report)
    if objection:
        turn.send(place, Refused(objection))
        return
    if job.stop is not None and not place.in_group:
        turn.send(place, PushedStop(ending.stop_now(job.stop)))
        return
    place.report, place.met_at = report, turn.now
    job.note(place)
    job.highest = max(job.highest, report.committed_rounds)
    if job.meeting_since is None and (job.generation == 0 or place.in_group):
        job.meeting_since = turn.now
    if report.committed_rounds >= 0 and report.call > job.ended_calls.number:
        job.ended_calls.number = report.call
        _replay_to_all(turn)
    else:
        _replay_to(turn, place)
    if place.in_group and not job.over and (report.state is not RoundState.BOUNDARY or report.suspects):
        end_generation(turn, f"worker {place.worker} asks all to meet: {report.reason or 'its talk failed'}")


def _find_objection(place: Place, report: Report) -> str:
    if report.generation != place.generation:
        return f"worker {place.worker} was last ruled into generation {place.generation}, not {report.generation}"
    if report.committed_rounds >= 0 and place.generation == 0:
        return (
            f"worker {place.worker} was in no group yet, so it cannot hold {report.committed_rounds} rounds of this job"
        )
    if report.committed_rounds < -1 or report.call < 0:
        return f"call {report.call} and {report.committed_rounds} committed rounds cannot be"
    return ""


def record_call(turn: Turn, place: Place, call: int, result: bytes) -> None:
    """A member has ended a call."""
    if not place.in_group:
        return  # What a worker computed outside of the group is nobody's result.
    before = turn.job.ended_calls.number
    turn.job.ended_calls.record(call, result)
    place.calls_ended = max(place.calls_ended, call + 1)
    if turn.job.ended_calls.number > before:
        _replay_to_all(turn)


def come_to_end(turn: Turn, place: Place) -> None:
    """A worker's script is done, but for the others."""
    place.at_end = True
    turn.job.note(place)


def _replay_to_all(turn: Turn) -> None:
    for worker in sorted(turn.job.waiting):
        _replay_to(turn, turn.job.places[worker])


def _replay_to(turn: Turn, place: Place) -> None:
    """Whoever holds no state and waits at a call that has ended gets its result and goes on alone.

    When rank 0 was lost, the last call's result is held back until the others have met, or have all come to the end of
    the script: in that case this worker does there what rank 0 had to do.
    """
    job, calls, report = turn.job, turn.job.ended_calls, place.report
    if report is None or report.committed_rounds >= 0 or report.call >= calls.number:
        return
    stop = calls.number - 1 if job.may_want_heir else calls.number
    if report.call >= stop:
        job.held.add(place.worker)
        return
    replays = calls.replay_from(report.call, stop, max_number=MAX_REPLAYS, max_bytes=MAX_REPLAY_BYTES)
    if job.wants_heir and replays[-1].call == calls.number - 1:
        replays = (*replays[:-1], replace(replays[-1], takes_over=True))
    turn.send(place, Replayed(replays))
    hurries = place.replayed_at is not None and turn.now - place.replayed_at < ADMISSION_GRACE_SECONDS
    place.report, place.in_group, place.replayed_at = None, False, turn.now
    turn.job.note(place)
    if hurries and replays[-1].call == calls.number - 1:
        _call_members_together(turn)


def _release_held(turn: Turn) -> None:
    job = turn.job
    if job.held and not job.may_want_heir:
        held, job.held = sorted(job.held), set()
        for worker in held:
            _replay_to(turn, job.places[worker])


# ------------------------------------------------------------------------------------------------------- the next group


def reconsider(turn: Turn) -> None:
    """Form the next group if that can be done; else see to it that it can be. Called after each input."""
    job = turn.job
    if job.outcome is not None:
        return
    _release_held(turn)
    somebody_waits = bool(job.waiting) if job.generation == 0 else not job.waiting.isdisjoint(job.alive)
    if not somebody_waits:
        _announce(turn)
        return
    if job.awaited or _newcomer_is_near(turn):
        return
    attendance = _attendance(turn)
    decision = decide(attendance)
    match decision.kind:
        case "form":
            _form(turn, attendance, decision)
            _release_held(turn)
            _announce(turn)
        case "pause":
            _pause(turn, decision)
        case "lost" if job.stop is not None:
            for worker in sorted(job.waiting):
                turn.send(job.places[worker], PushedStop(ending.stop_now(job.stop)))
        case "lost":
            ending.end(turn, Outcome(1, f"{decision.reason}{ending.describe_given_up(job)}"))
        case "wait":
            pass  # for an heir of rank 0: nobody else is awaited here


def _attendance(turn: Turn) -> Attendance:
    job = turn.job
    members = job.group.members if job.group else ()
    survivors = [
        Candidate(member, job.places[member.worker].report, job.places[member.worker].at_end)
        for member in members
        if member.worker in job.alive
    ]
    outsiders = [
        Candidate(place.member, place.report, place.at_end)
        for place in job.places
        if place.status is Status.JOINED and not place.in_group and place.member is not None
    ]
    reports = [one.report for one in survivors if one.report is not None]
    # When the call of all has ended without their knowledge, it is not known yet whether the next lets anybody in.
    is_known = not reports or any(one.call == job.ended_calls.number for one in reports)
    admits = job.stop is None and is_known and all(one.admits for one in reports)
    return Attendance(
        generation=job.generation,
        survivors=survivors,
        outsiders=outsiders if admits else (),
        absent=[place.worker for place in job.places if place.status in MAY_COME],
        call=job.ended_calls.number,
        state_exists=job.state_exists,
        min_workers=job.min_workers if admits else 1,  # a group that lets nobody in would pause for ever
        tail_undone=job.tail_undone and job.stop is None,
    )


def _newcomer_is_near(turn: Turn) -> bool:
    """The members meet only to let someone in, who is on the way."""
    job = turn.job
    if job.generation == 0 or job.over or job.stop is not None:
        return False
    return any(
        place.status is Status.JOINED
        and not place.in_group
        and place.report is None
        and place.replayed_at is not None
        and turn.now - place.replayed_at < ADMISSION_GRACE_SECONDS
        for place in job.places
    )


def _form(turn: Turn, attendance: Attendance, decision: Decision) -> None:
    job = turn.job
    reports = {c.member.identity: c.report for c in attendance.survivors if c.report is not None}
    entered_empty = job.group.newcomers if job.group else frozenset()
    try:
        ballot = settle(reports, newcomers=entered_empty, highest=job.highest, num_ended_calls=job.ended_calls.number)
    except ProtocolError as impossible:
        ending.end(turn, Outcome(1, f"the workers' reports contradict each other: {impossible}"))
        return
    reason = _explain(turn, decision, ballot.reason)
    job.generation += 1
    job.highest = ballot.committed
    job.group = Group(job.generation, decision.members, decision.newcomers)
    for candidate in attendance.survivors:
        job.places[candidate.member.worker].in_group = False
    ruled = {settlement: Ruled(Ruling(job.group, settlement, reason)) for settlement in Settlement}
    for member in decision.members:
        place = job.places[member.worker]
        place.generation, place.in_group, place.report, place.replayed_at = job.generation, True, None, None
        turn.send(place, ruled[ballot.settlements.get(member.identity, Settlement.NOTHING)])
    job.lost, job.over, job.tail_undone, job.meeting_since, job.paused_since = {}, False, False, None, None
    job.note_all()
    workers = tuple(member.worker for member in decision.members)
    newcomers = tuple(sorted(identity.worker for identity in decision.newcomers))
    turn.tell(GroupFormed(job.generation, workers, newcomers, reason))


def _explain(turn: Turn, decision: Decision, settled: str) -> str:
    lost = [f"worker {who.worker} was lost ({why})" for who, why in turn.job.lost.items()]
    return "; ".join([*lost, decision.reason, *([settled] if turn.job.generation else [])])


def _pause(turn: Turn, decision: Decision) -> None:
    job = turn.job
    if job.paused_since is None:
        job.paused_since = turn.now
        turn.tell(JobPaused(decision.num_ready, job.min_workers))


def _announce(turn: Turn) -> None:
    """Call the members together when someone waits whom they can let in."""
    job = turn.job
    for worker in job.waiting - job.alive:
        report = job.places[worker].report
        if report is not None and report.call == job.ended_calls.number:
            _call_members_together(turn)


def _call_members_together(turn: Turn) -> None:
    """Once a generation, unless they meet anyway."""
    job = turn.job
    meeting = job.over or not job.waiting.isdisjoint(job.alive)
    ending_soon = job.stop is not None or job.outcome is not None
    if job.generation == 0 or job.announced > job.generation or meeting or ending_soon:
        return
    job.announced = job.generation + 1
    announced = Announced(job.announced)
    for worker in sorted(job.alive):
        turn.send(job.places[worker], announced)


# ------------------------------------------------------------------------------------------------------------ waiting


def mind_the_time(turn: Turn) -> None:
    """What happens only because time has passed: patience ends, and those who wait are told for whom."""
    job, rules = turn.job, turn.job.rules
    if job.outcome is not None:
        return
    if job.generation == 0:
        _limit_start(turn)
    elif job.meeting_since is not None and job.awaited:
        if not job.over and turn.now - job.meeting_since > 2 * rules.heartbeat_seconds:
            # Somebody does not know that all meet (it heard of it too late); nobody would come to its talk.
            end_generation(turn, f"{name_workers(sorted(job.waiting & job.alive))} met for the next group")
        _limit_patience(turn)
    _limit_pause(turn)
    if job.outcome is None:
        _remind(turn)


def _limit_start(turn: Turn) -> None:
    """Nobody waits longer for the first group than the start time-out. Nobody waits, so far, while all processes run
    the user's own code before their first call; but a place that stays empty is not waited for without end."""
    job = turn.job
    missing = [job.places[worker] for worker in sorted(job.awaited)]
    if job.meeting_since is None:
        missing = [place for place in missing if place.status in (Status.ABSENT, Status.LOST)]
    since = job.began if job.meeting_since is None else job.meeting_since
    if missing and turn.now - since > job.rules.start_timeout_seconds:
        who = "; ".join(ending.describe_absence(place) for place in missing[:10])
        waited = f"{job.rules.start_timeout_seconds:.0f} s"
        ending.time_out_start(
            turn, f"{len(missing)} of {job.rules.workers} workers did not start within {waited}: {who}"
        )


def _limit_pause(turn: Turn) -> None:
    job, limit = turn.job, turn.job.rules.pause_timeout_seconds
    if job.outcome is None and job.paused_since is not None and turn.now - job.paused_since > limit:
        ending.end(turn, Outcome(1, f"fewer than {job.min_workers} workers for {limit:.0f} s"))
    waits_for_heir = job.outcome is None and job.wants_heir and job.meeting_since is not None
    if waits_for_heir and job.meeting_since is not None and turn.now - job.meeting_since > limit:
        reason = f"rank 0 was lost before it came to the end of the script, and not replaced within {limit:.0f} s"
        ending.end(turn, Outcome(1, reason))


def _limit_patience(turn: Turn) -> None:
    """A member that is alive but does not meet is lost in the end: soon when it must be stuck inside the call that the
    others are in, late when it may be busy with the user's own code, very late when that is the end of the script."""
    job, rules = turn.job, turn.job.rules
    assert job.meeting_since is not None
    reports = [report for worker in job.waiting & job.alive if (report := job.places[worker].report) is not None]
    call = max((report.call for report in reports), default=0)
    all_inside = any(report.call == call and report.call_agreed for report in reports)
    at_end = all(job.places[worker].at_end for worker in job.waiting & job.alive)
    patience = rules.pause_timeout_seconds if at_end else rules.start_timeout_seconds
    for worker in sorted(job.awaited):
        place = job.places[worker]
        inside = all_inside and place.calls_ended <= call
        limit = rules.progress_timeout_seconds if inside else patience
        if turn.now - job.meeting_since > limit:
            lose(turn, place, f"alive, but did not meet the others within {limit:.0f} s", kill=True)


def _remind(turn: Turn) -> None:
    """Say what is waited for, at the start of a wait's sixth second and then every five."""
    job, rules = turn.job, turn.job.rules
    since = job.meeting_since
    if since is None or turn.now - max(since, job.last_notice) < rules.notice_seconds:
        return
    job.last_notice = turn.now
    seconds = turn.now - since
    if job.awaited:
        awaited = [job.places[worker] for worker in sorted(job.awaited)]
    else:
        awaited = [place for place in job.places if place.status in MAY_COME]
    for place in awaited:
        turn.tell(WorkerAwaited(place.worker, rules.workers, place.host, round(seconds, 1)))
    names = "; ".join(
        f"worker {place.worker} of {rules.workers} ({place.host}, {seconds:.0f} s)" for place in awaited[:10]
    )
    paused = "paused, " if job.paused_since is not None else ""
    for worker in sorted(job.waiting):
        turn.send(job.places[worker], Awaiting(f"{paused}waiting for {names}"))
