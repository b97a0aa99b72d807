"""The demonstration behind `make demo`: three workers train, one is killed, and the answer is that of one process.

It uses only what any user has: the command line, the event file and an example. First a job of three workers on
handwritten digits (a convnet with BatchNormalization and dropout); halfway a worker is killed with SIGKILL, and what
happens is told from the events. Then the same script as one process, and a comparison of the two.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "digits.py"
ARGUMENTS = ("--epochs", "60", "--microbatch", "16")
SEED = 7
VICTIM = 1
KILL_AT_STEP = 300
TOLD_EVERY_STEPS = 200
DEADLINE_SECONDS = 600.0

Record = dict[str, Any]


def main() -> int:
    """Both jobs and the comparison. 0 when a worker was killed, came back, and the answers are equal."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-demo-"))
    say(f"Three workers train on handwritten digits; worker {VICTIM} is killed at step {KILL_AT_STEP}.")
    with Job(folder / "three", workers=3) as job:
        story = Story(job)
        for event in job.events():
            story.take(event)
        three = job.result()
    if not story.came_back:
        say(f"Worker {VICTIM} did not take part again before the training ended: something is wrong.")
        say(f"Logs and events: {folder}")
        return 1
    say("")
    say("The same script as one process, for comparison.")
    with Job(folder / "one", workers=1) as job:
        for _ in job.events():
            pass
        one = job.result()
    equal = compare(three, one)
    shutil.rmtree(folder)
    return 0 if equal else 1


def say(text: str) -> None:
    print(text, flush=True)


class Job:
    """One `paceline run`, its event file, and its last line of output.

    Args:
        folder: for logs and events.
        workers: how many.
    """

    def __init__(self, folder: Path, *, workers: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.end = time.monotonic() + DEADLINE_SECONDS
        self._events = folder / "events.jsonl"
        self._output = folder / "output.txt"
        options = ["-n", str(workers), "--seed", str(SEED), "--deterministic"]
        places = ["--events", str(self._events), "--log-dir", str(folder / "logs")]
        command = [sys.executable, "-m", "paceline", "run", *options, *places, str(SCRIPT), *ARGUMENTS]
        say("$ " + " ".join(["paceline", "run", *options, str(SCRIPT.relative_to(ROOT)), *ARGUMENTS]))
        with self._output.open("w") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        """End the job if it still runs: the launcher takes its workers with it."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def events(self) -> Iterator[Record]:
        """Each event as it is written, until the job has ended."""
        pause = threading.Event()
        while not self._events.exists() and self._process.poll() is None:
            self._check_deadline()
            pause.wait(0.05)
        if not self._events.exists():
            return
        with self._events.open() as lines:
            partial = ""
            while True:
                has_ended = self._process.poll() is not None
                partial += lines.read()
                *whole, partial = partial.split("\n")
                yield from map(json.loads, whole)
                if has_ended:
                    return
                self._check_deadline()
                pause.wait(0.02)

    def result(self) -> Record:
        """What the script printed last. Raises `SystemExit` with the output when the job failed."""
        text = self._output.read_text()
        code = self._process.wait()
        lines = [line for line in text.splitlines() if line.startswith("{")]
        if code != 0 or not lines:
            sys.exit(
                f"the job failed with exit code {code}; its output:\n{text[-4000:]}\nlogs and events: {self.folder}"
            )
        result: Record = json.loads(lines[-1])
        return result

    def _check_deadline(self) -> None:
        if time.monotonic() > self.end:
            sys.exit(f"the job has not ended within {DEADLINE_SECONDS:.0f} s; logs and events: {self.folder}")


class Story:
    """Tells what a job's events mean, and kills the victim when its step has come."""

    def __init__(self, job: Job) -> None:
        self.came_back = False
        self._job = job
        self._pids: dict[int, int] = {}
        self._killed_at: float | None = None
        self._awaits_commit = False
        self._committed = 0

    def take(self, event: Record) -> None:
        """One event, in order."""
        match event["event"]:
            case "WorkerStarted":
                self._pids[event["worker"]] = event["pid"]
                if self._killed_at is not None:
                    self._tell(event, f"worker {event['worker']} is started again, as process {event['pid']}")
            case "GroupFormed":
                self._tell(
                    event, f"group of {len(event['workers'])}, generation {event['generation']}: {event['reason']}"
                )
            case "RoundCommitted" if event["step"] is not None:
                self._step(event)
            case "WorkerExited" if event["signal"] == "SIGKILL":
                self._tell(event, f"worker {event['worker']} has died")
            case "MemberLost":
                self._tell(event, f"worker {event['worker']} is ruled lost: {event['reason']}")
            case "RoundDiscarded":
                self._tell(
                    event, f"round {event['round']} is discarded; its samples are used again by those who are left"
                )
            case "MemberJoined" if self._killed_at is not None:
                self.came_back = True
                seconds = event["time"] - self._killed_at
                self._tell(
                    event,
                    f"worker {event['worker']} has taken over {event['state_bytes'] / 1e6:.1f} MB of state from the"
                    f" others and takes part again, {seconds:.1f} s after it was killed",
                )
            case "JobEnded":
                self._tell(event, f"{self._committed} steps committed; {event['reason']}")

    def _step(self, event: Record) -> None:
        """A training step was committed."""
        self._committed += 1
        step, size = event["step"], event["size"]
        if self._awaits_commit and self._killed_at is not None and event["time"] > self._killed_at:
            self._awaits_commit = False
            milliseconds = 1000 * (event["time"] - self._killed_at)
            self._tell(event, f"step {step} is committed by {size} workers, {milliseconds:.0f} ms after the kill")
        elif step % TOLD_EVERY_STEPS == 0:
            self._tell(event, f"step {step} is committed by {size} workers")
        if self._killed_at is None and step >= KILL_AT_STEP:
            pid = self._pids[VICTIM]
            self._killed_at, self._awaits_commit = time.time(), True
            os.kill(pid, signal.SIGKILL)
            self._tell({"time": self._killed_at}, f"step {step}: kill -9 {pid}   (worker {VICTIM})")

    def _tell(self, event: Record, text: str) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(event["time"]))
        say(f"  {clock}.{int(event['time'] * 1000) % 1000:03d}  {text}")


def compare(three: Record, one: Record) -> bool:
    """Show both results; whether they are equal to the last bit of every weight."""
    say("")
    say(f"  {'':24}{'three workers, one killed':>28}{'one process':>28}")
    rows = {"steps": "steps", "loss": "loss", **{name: name for name in three["metrics"]}}
    for name in rows:
        left, right = (result["metrics"].get(name, result.get(name)) for result in (three, one))
        say(f"  {name:24}{left!s:>28}{right!s:>28}")
    digests = [str(result["weights_sha256"]) for result in (three, one)]
    say(f"  {'weights (sha256)':24}{digests[0][:16]:>28}{digests[1][:16]:>28}")
    say("")
    if digests[0] == digests[1]:
        say("The weights are the same, bit for bit.")
        return True
    say("The weights differ: something is wrong.")
    return False


if __name__ == "__main__":
    sys.exit(main())
