"""`paceline run` with plain scripts: what they find, where their output goes, and what their ends amount to."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from launching import Launcher, Meeting, Result, await_gone


def launch(folder: Path, *arguments: str, script: str | None = None, **environment: str) -> tuple[Result, Launcher]:
    """Run `script` to its end."""
    if script is not None:
        (folder / "train.py").write_text(script)
    with Launcher(folder, *arguments, environment=environment) as launcher:
        return launcher.wait(), launcher


def test_all_output_arrives_and_is_kept(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "me = os.environ['PACELINE_WORKER_ID']\n"
        "print('hello from', me, sys.argv)\n"
        "print('warning', file=sys.stderr)\n"
        "print('no end', end='')\n"
    )
    result, launcher = launch(tmp_path, "-n", "2", "--seed", "7", "train.py", "-n", "5", script=script)
    assert result.code == 0
    assert sorted(result.out.splitlines()) == [
        "[1] hello from 1 ['train.py', '-n', '5']",
        "[1] no end",
        "hello from 0 ['train.py', '-n', '5']",
        "no end",
    ]
    assert "[1] warning\n" in result.err
    assert "\nwarning\n" in result.err
    assert ": 2 workers on " in result.err
    assert ", seed 7, logs in " in result.err
    assert "paceline: complete after " in result.err
    assert launcher.log(1).startswith("=== paceline: worker 1, incarnation 1, pid ")
    assert "hello from 1 ['train.py', '-n', '5']\n" in launcher.log(1)
    assert "warning\n" in launcher.log(1)


def test_a_worker_finds_its_place_and_shares_nothing_by_accident(tmp_path: Path) -> None:
    script = (
        "import json, os, pathlib, random, stat, sys\n"
        "secret = pathlib.Path(os.environ['PACELINE_SECRET_FILE'])\n"
        "facts = {\n"
        "    'variables': {name: value for name, value in os.environ.items() if name.startswith('PACELINE_')},\n"
        "    'stdin': sys.stdin.read(), 'leads': os.getsid(0) == os.getpgid(0) == os.getpid(),\n"
        "    'cores': sorted(os.sched_getaffinity(0)), 'random': random.random(), 'hash': hash('word'),\n"
        "    'secret': secret.read_text(), 'modes': [secret.stat().st_mode, secret.parent.stat().st_mode],\n"
        "    'command': pathlib.Path('/proc/self/cmdline').read_text(),\n"
        "}\n"
        "pathlib.Path('facts-' + os.environ['PACELINE_WORKER_ID']).write_text(json.dumps(facts))\n"
    )
    result, _ = launch(tmp_path, "-n", "2", "--set", "lr=0.5", "--name", "mine", "train.py", script=script)
    assert result.code == 0
    zero, one = (json.loads((tmp_path / f"facts-{worker}").read_text()) for worker in (0, 1))
    assert [facts["variables"]["PACELINE_WORKER_ID"] for facts in (zero, one)] == ["0", "1"]
    assert zero["variables"]["PACELINE_JOB_ID"] == one["variables"]["PACELINE_JOB_ID"]
    assert zero["variables"]["PACELINE_JOB_ID"].startswith("mine-")
    assert zero["variables"]["PACELINE_WORKERS"] == "2"
    assert json.loads(one["variables"]["PACELINE_SETTINGS"]) == {"lr": 0.5}
    assert zero["stdin"] == ""
    assert zero["leads"]
    assert (zero["random"], zero["hash"]) == (one["random"], one["hash"])
    assert zero["secret"] == one["secret"]
    assert len(zero["secret"]) == 64
    assert [stat.S_IMODE(mode) for mode in zero["modes"]] == [0o600, 0o700]
    assert zero["secret"] not in zero["command"]
    assert zero["secret"] not in json.dumps(zero["variables"])
    assert not Path(zero["variables"]["PACELINE_SECRET_FILE"]).parent.exists()
    if len(os.sched_getaffinity(0)) >= 2:
        assert not set(zero["cores"]) & set(one["cores"])


def test_a_module_is_run_as_python_would(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:])\n")
    result, _ = launch(tmp_path, "-m", "pack.train", "--epochs", "3")
    assert (result.code, result.out) == (0, "__main__ pack ['--epochs', '3']\n")


def test_a_killed_worker_is_started_again_at_once(tmp_path: Path) -> None:
    script = "tell()\nif (WORKER, INCARNATION) != (1, 2): wait()\nprint('done', INCARNATION)\n"
    with Meeting(tmp_path, script) as meeting, Launcher(tmp_path, "-n", "2", "--events", "e", "train.py") as launcher:
        zero, one = meeting.hear(2)
        os.kill(one.pid, 9)
        (again,) = meeting.hear(1)
        assert (again.worker, again.incarnation) == (1, 2)
        launcher.await_message("worker 1 is started again (incarnation 2, process ")
        meeting.open_gate()
        result = launcher.wait()
    assert result.code == 0
    assert sorted(result.out.splitlines()) == ["[1] done 2", "done 1"]
    assert "paceline: worker 1 was killed (SIGKILL)\n" in result.err
    assert [line.split(",")[1] for line in launcher.log(1).splitlines() if line.startswith("===")] == [
        " incarnation 1",
        " incarnation 2",
    ]
    events = [json.loads(line) for line in (tmp_path / "e").read_text().splitlines()]
    assert [event["event"] for event in events if event["event"].startswith("Job")] == ["JobStarted", "JobEnded"]
    exits = [
        (event["worker"], event["incarnation"], event["exit_code"], event["signal"])
        for event in events
        if event["event"] == "WorkerExited"
    ]
    assert exits[0] == (1, 1, None, "SIGKILL")
    assert sorted(exits[1:]) == [(0, 1, 0, None), (1, 2, 0, None)]
    assert zero.pid in [event["pid"] for event in events if event["event"] == "WorkerStarted"]


def test_a_worker_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    script = "import os\nif WORKER == 1: os.kill(os.getpid(), 9)\nwait()\n"
    arguments = ("-n", "2", "--min-workers", "2", "--max-restarts", "1", "train.py")
    with Meeting(tmp_path, script), Launcher(tmp_path, *arguments) as launcher:
        result = launcher.wait()
    assert result.code == 1
    assert result.err.count("worker 1 was killed (SIGKILL)\n") == 2
    assert result.err.count("is started again") == 1
    assert "worker 1 was killed (SIGKILL); it was started again once before, which is the limit" in result.err


def test_the_users_error_is_shown_once_and_ends_the_job(tmp_path: Path) -> None:
    script = "if WORKER == 2:\n    raise ValueError('bad value')\ntell()\nwait()\n"
    with Meeting(tmp_path, script) as meeting, Launcher(tmp_path, "-n", "3", "train.py") as launcher:
        result = launcher.wait()
        others = meeting.hear(0)
    assert result.code == 1
    assert others == []
    assert result.out == ""
    expected = (
        "paceline: worker 2 failed: ValueError: bad value\n"
        "Traceback (most recent call last):\n"
        f'  File "{meeting.script}", line 3, in <module>\n'
        "    raise ValueError('bad value')\n"
        "ValueError: bad value\n"
    )
    assert result.err.endswith(expected)
    assert result.err.count("Traceback") == 1
    assert "ValueError: bad value" in launcher.log(2)
    assert "is started again" not in result.err


def test_when_all_fail_alike_the_error_is_still_shown_once(tmp_path: Path) -> None:
    result, launcher = launch(tmp_path, "-n", "2", "train.py", script="def f():\n    1 / 0\nf()\n")
    assert result.code == 1
    assert result.err.count("ZeroDivisionError") == 2  # the summary, and the traceback's last line
    assert result.err.count("Traceback") == 1
    assert "1 / 0" in launcher.log(0) + launcher.log(1)


def test_an_exit_code_of_the_script_is_a_failure_of_the_job(tmp_path: Path) -> None:
    result, _ = launch(tmp_path, "train.py", script="import sys\nsys.exit(3)\n")
    assert result.code == 1
    assert "paceline: worker 0 failed: exited with 3\n" in result.err


def test_what_a_worker_has_started_ends_with_it(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "tell(child.pid)\n"
    )
    with Meeting(tmp_path, script) as meeting, Launcher(tmp_path, "train.py") as launcher:
        (told,) = meeting.hear(1)
        assert launcher.wait().code == 0
        await_gone(int(told.text))


def test_stacks_can_be_asked_for(tmp_path: Path) -> None:
    with Meeting(tmp_path, "tell()\nwait()\n") as meeting, Launcher(tmp_path, "train.py") as launcher:
        (told,) = meeting.hear(1)
        os.kill(told.pid, 10)
        launcher.await_message('meeting.py", line')
        meeting.open_gate()
        assert launcher.wait().code == 0


def test_faults_of_the_test_kit_strike_inside_a_worker(tmp_path: Path) -> None:
    from paceline.testing.faults import FaultPlan, Kill

    script = (
        "import os\n"
        "from paceline.observability.events import PhaseStarted, emit\n"
        "for number in range(3):\n"
        "    emit(PhaseStarted(number, 'talk'))\n"
        "    print(number, 'of', os.environ['PACELINE_INCARNATION'])\n"
    )
    plan = FaultPlan((Kill(round=1, phase="talk", worker=0),))
    result, _ = launch(tmp_path, "train.py", script=script, **plan.environment())
    assert result.code == 0
    assert result.out.splitlines() == ["0 of 1", "0 of 2", "1 of 2", "2 of 2"]
    plan = FaultPlan((Kill(round=1, phase="talk", worker=0, delay_microseconds=1),))
    endless = (
        "import signal\n"
        + script
        + "    if os.environ['PACELINE_INCARNATION'] == '1' and number == 1: signal.pause()\n"
    )
    result, _ = launch(tmp_path, "train.py", script=endless, **plan.environment())
    assert result.code == 0
    assert "paceline: worker 0 was killed (SIGKILL)\n" in result.err


def test_what_cannot_work_is_told_at_the_door(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases = {
            ("none.py",): "paceline: error: --script: there is no file none.py",
            ("--log-dir", "file/logs", "train.py"): "paceline: error: --log-dir: cannot write ",
            ("--events", "file/e", "train.py"): "paceline: error: --events: cannot write ",
            ("--port", str(taken.getsockname()[1]), "train.py"): "address already in use",
        }
        for arguments, message in cases.items():
            result, _ = launch(tmp_path, *arguments)
            assert (result.code, message in result.err) == (2, True), result
            assert "Traceback" not in result.err


@pytest.mark.parametrize("arguments", [(), ("fly",), ("run", "--workerz", "2", "train.py")])
def test_a_wrong_command_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    run = subprocess.run([sys.executable, "-m", "paceline", *arguments], capture_output=True, timeout=30, check=False)
    assert run.returncode == 2
    assert b"Usage: " in run.stderr
