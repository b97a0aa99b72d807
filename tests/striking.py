"""Scripts that kill their own process at named places, once each, as a test says.

`run(folder, script, strikes={"0.1 tail"})` runs a job in which incarnation 1 of worker 0 dies where the script (or one
of the seams that `strikes.py` watches) comes to the place "tail". Waiting is by conditions: `patience()` lasts until
the group is whole, or somebody asks to be let in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launching import PATIENT

STRIKES = '''
"""Places at which this process may die, and waiting for others."""
import os, signal, time

ME = os.environ["PACELINE_WORKER_ID"] + "." + os.environ["PACELINE_INCARNATION"]
HERE = os.path.dirname(__file__)


def strike(place):
    """Die here, if the test wants it."""
    if f"{ME} {place}" in os.environ["STRIKES"].split(","):
        with open(os.path.join(HERE, "struck"), "a") as struck:
            struck.write(f"{ME} {place}\\n")
        os.kill(os.getpid(), signal.SIGKILL)


def until(condition, what):
    """Poll: nothing tells a script what it is not meant to know."""
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.01)


def session():
    from paceline.training import process
    return process.current().session


def patience(size=None):
    """Wait until the group is whole, or somebody asks to be let in."""
    mine = session()
    if mine.group is None:
        return  # this worker is itself the one that is missing
    whole = size or mine.membership.expected_workers
    until(
        lambda: mine.size >= whole or mine.membership.newest_generation > mine.group.generation,
        "somebody came back",
    )


def mark():
    """Note that this worker has come to the end of its script."""
    open(os.path.join(HERE, "mark-" + ME), "w").close()


def marks():
    return [name for name in os.listdir(HERE) if name.startswith("mark-")]


def watch_seams():
    """Places inside: the agreement of each call, and the handing over of state."""
    from paceline.training import calls

    def named(kind, function):
        def wrapped(self, *arguments):
            number = session().call
            strike(f"{kind} {number}")
            result = function(self, *arguments)
            strike(f"{kind} {number} done")
            return result
        return wrapped

    calls.Agreement.talk = named("agreement", calls.Agreement.talk)
    calls.Agreement.ballot = named("ballot", calls.Agreement.ballot)
    transfer = calls.transfer

    def watched(communicator, **arguments):
        role = "donor" if arguments["state"] is not None else "receiver"
        strike(f"{role} begins")
        result = transfer(communicator, **arguments)
        strike(f"{role} is done")
        return result

    calls.transfer = watched


watch_seams()
'''


@dataclass(frozen=True)
class Result:
    """How a job ended.

    Attributes:
        results: the objects of the lines "RESULT {...}" that reached the terminal from worker 0 or others.
        struck: the strikes that were carried out.
    """

    code: int
    text: str
    events: list[dict[str, Any]]
    results: list[dict[str, Any]]
    struck: list[str]

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] in kinds]


def run(
    folder: Path,
    script: str,
    *arguments: str,
    strikes: Iterable[str] = (),
    workers: int = 3,
    timeout_seconds: float = 1800.0,
) -> Result:
    """Run `script` as a job. Raises `AssertionError` when a strike was not carried out."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = list(strikes)
    (folder / "train.py").write_text(script)
    (folder / "strikes.py").write_text(STRIKES)
    options = [*PATIENT, "-n", str(workers), "--seed", "7", "--events", "events", "--log-dir", "logs", *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "run", *options, "train.py"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_seconds,
        env={**os.environ, "TMPDIR": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3", "STRIKES": ",".join(wanted)},
        check=False,
    )
    lines = [line.partition("RESULT ")[2] for line in done.stdout.splitlines() if "RESULT " in line]
    struck = (folder / "struck").read_text().splitlines() if (folder / "struck").exists() else []
    assert sorted(struck) == sorted(wanted), f"not every strike was carried out: {struck}\n{done.stdout}"
    return Result(
        done.returncode,
        done.stdout,
        [json.loads(line) for line in (folder / "events").read_text().splitlines()],
        [json.loads(line) for line in lines],
        struck,
    )
