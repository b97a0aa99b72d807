"""However a job is stopped, nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launching import Launcher, Meeting, await_gone

WAITS = "tell()\nwait()\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntell()\nwhile True: signal.pause()\n"


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, "press Ctrl-C again to stop now"),
        (signal.SIGTERM, 143, "send it again to stop now"),
        (signal.SIGHUP, 129, "send it again to stop now"),
    ],
)
def test_one_signal_stops_the_job_cleanly(tmp_path: Path, number: signal.Signals, code: int, words: str) -> None:
    with Meeting(tmp_path, WAITS) as meeting, Launcher(tmp_path, "-n", "2", "train.py") as launcher:
        pids = [told.pid for told in meeting.hear(2)]
        launcher.signal(number)
        result = launcher.wait()
        await_gone(*pids)
    assert result.code == code
    assert f"paceline: stopping after this round; {words}\n" in result.err
    assert "was killed" not in result.err  # it was no accident
    assert "is started again" not in result.err


def test_the_second_signal_stops_it_now(tmp_path: Path) -> None:
    with Meeting(tmp_path, STUBBORN) as meeting, Launcher(tmp_path, "-n", "2", "train.py") as launcher:
        pids = [told.pid for told in meeting.hear(2)]
        launcher.signal(signal.SIGINT)
        launcher.await_message("stopping after this round")
        launcher.signal(signal.SIGINT)
        result = launcher.wait()
        await_gone(*pids)
    assert result.code == 130
    assert "paceline: stopping now\n" in result.err


def test_who_does_not_stop_in_time_is_stopped(tmp_path: Path) -> None:
    with Meeting(tmp_path, STUBBORN) as meeting, Launcher(tmp_path, "--grace", "0.2", "train.py") as launcher:
        (told,) = meeting.hear(1)
        launcher.signal(signal.SIGTERM)
        result = launcher.wait()
        await_gone(told.pid)
    assert result.code == 143
    assert "paceline: the round did not end within 0.2 s (--grace); stopping now\n" in result.err


def test_nohup_means_what_it_says(tmp_path: Path) -> None:
    with Meeting(tmp_path, WAITS) as meeting:
        nohup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            launcher = Launcher(tmp_path, "train.py")
        finally:
            signal.signal(signal.SIGHUP, nohup)
        with launcher:
            meeting.hear(1)
            launcher.signal(signal.SIGHUP)
            meeting.open_gate()
            assert launcher.wait().code == 0


def test_a_launcher_killed_with_nine_leaves_no_orphan(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "tell(child.pid)\nwait()\n"
    )
    with Meeting(tmp_path, script) as meeting, Launcher(tmp_path, "-n", "2", "train.py") as launcher:
        told = meeting.hear(2)
        assert list(tmp_path.glob("paceline-*"))
        launcher.signal(signal.SIGKILL)
        launcher.process.wait()
        await_gone(*(line.pid for line in told), *(int(line.text) for line in told))
        # The folder with the secret is the last that the guardian takes away.
        with contextlib.suppress(FileNotFoundError):
            while guardians := _guardians(tmp_path):
                await_gone(*guardians)
        assert not list(tmp_path.glob("paceline-*"))


def _guardians(folder: Path) -> list[int]:
    """Guardians of jobs whose temporary folder is in `folder`."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if b"guardian.py" in (process / "cmdline").read_bytes():
                    inherited = (process / "environ").read_bytes().split(b"\0")
                    if f"TMPDIR={folder}".encode() in inherited:
                        found.append(int(process.name))
    return found


def test_worker_zero_sees_a_terminal_where_the_launcher_has_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\nprint(os.environ['PACELINE_WORKER_ID'], sys.stdout.isatty(), end='\\r50%\\r100%\\n')\n"
    )
    reading, writing = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "paceline", "run", "-q", "-n", "2", "--log-dir", "logs", "train.py"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(writing)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal tells its end
            while piece := os.read(reading, 4096):
                shown += piece
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(reading)
    assert b"0 True\r50%\r100%\r\n" in shown
    assert b"[1] 100%\r\n" in shown
    assert (tmp_path / "logs" / "worker-1.log").read_bytes().endswith(b"1 False\r50%\r100%\n")
