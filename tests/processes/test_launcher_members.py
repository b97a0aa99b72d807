"""`paceline run` with scripts that join the job: groups, failures, stops and kills as people see them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from launching import Launcher, Meeting, await_gone

PATIENT = ("--lost-after", "60")  # on a busy machine a living worker may be silent for seconds
JOINS = "import paceline as pl\npl.init()\n"
# Each turn takes a moment, as training does: a worker that comes late could not overtake a loop of nothing.
LOOPS = JOINS + "import time\ntell()\nwhile True:\n    pl.barrier()\n    time.sleep(0.02)\n"


def test_workers_meet_and_end_together(tmp_path: Path) -> None:
    script = JOINS + "pl.barrier()\nprint('rank', pl.rank(), 'of', pl.size())\n"
    with Meeting(tmp_path, script), Launcher(tmp_path, *PATIENT, "-n", "2", "train.py") as launcher:
        result = launcher.wait()
    assert result.code == 0
    assert sorted(result.out.splitlines()) == ["[1] rank 1 of 2", "rank 0 of 2"], result.err
    assert "paceline: group of 2 formed\n" in result.err
    assert "paceline: complete after " in result.err


def test_members_stop_together_after_the_round(tmp_path: Path) -> None:
    script = JOINS + "tell()\ntry:\n    while True: pl.barrier()\nfinally:\n    print('tidied up', flush=True)\n"
    with Meeting(tmp_path, script) as meeting, Launcher(tmp_path, *PATIENT, "-n", "2", "train.py") as launcher:
        pids = [told.pid for told in meeting.hear(2)]
        launcher.signal(signal.SIGINT)
        result = launcher.wait()
        await_gone(*pids)
    assert result.code == 130
    assert sorted(result.out.splitlines()) == ["[1] tidied up", "tidied up"]
    assert "Traceback" not in result.err
    assert "the round did not end" not in result.err
    assert "paceline: ended after " in result.err
    assert ": stopped by Ctrl-C (logs in " in result.err


def test_a_members_error_stops_the_others_wherever_they_are(tmp_path: Path) -> None:
    script = JOINS + "if WORKER == 1:\n    raise ValueError('bad value')\nwhile True: pl.barrier()\n"
    with Meeting(tmp_path, script), Launcher(tmp_path, *PATIENT, "-n", "3", "train.py") as launcher:
        result = launcher.wait()
    assert result.code == 1
    assert result.err.count("Traceback") == 1
    assert "paceline: worker 1 failed; stopping the others\n" in result.err
    assert result.err.endswith("    raise ValueError('bad value')\nValueError: bad value\n")


def test_a_killed_member_comes_back_and_is_told_so(tmp_path: Path) -> None:
    with Meeting(tmp_path, LOOPS) as meeting, Launcher(tmp_path, *PATIENT, "-n", "2", "train.py") as launcher:
        zero, _ = meeting.hear(2)
        os.kill(zero.pid, signal.SIGKILL)
        launcher.await_message("paceline: worker 0 was killed (SIGKILL)\n")
        launcher.await_message("paceline: worker 0 is started again (incarnation 2, process ")
        launcher.await_message("paceline: group of 2 again (generation ")
        launcher.await_message("paceline: worker 0 joined after ")
        launcher.signal(signal.SIGTERM)
        result = launcher.wait()
    assert result.code == 143
    assert "Traceback" not in result.err


def test_a_worker_that_never_comes_is_named_and_ends_the_job(tmp_path: Path) -> None:
    script = "if WORKER == 1:\n    tell()\n    wait()\n" + JOINS + "pl.barrier()\n"
    with (
        Meeting(tmp_path, script) as meeting,
        Launcher(tmp_path, *PATIENT, "-n", "2", "--start-timeout", "1", "train.py") as job,
    ):
        (told,) = meeting.hear(1)
        result = job.wait()
        await_gone(told.pid)
    assert result.code == 124
    assert "worker 1 on " in result.err
    assert "runs, but has not joined" in result.err
