"""A job on this machine: one coordinator, one agent and the workers, under one event loop.

`plan_job` decides everything (pure; `--dry-run` shows it), `run_job` does it. Next file: `interruptions.py`, what
Ctrl-C means.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.clusters.agent import Agent, HostPlan
from paceline.clusters.detection import Machine
from paceline.clusters.environment import JobContext
from paceline.clusters.guard import Guard
from paceline.clusters.interruptions import Interruptions
from paceline.clusters.placement import Place, assign
from paceline.clusters.restart import RestartRules
from paceline.clusters.spec import JobSpec
from paceline.coordinator.agent_link import AgentLink
from paceline.coordinator.rules import JobRules, Outcome
from paceline.coordinator.server import CoordinatorServer
from paceline.errors import ConfigError
from paceline.observability.console import Stream
from paceline.observability.events import Event, JobEnded, JobStarted, emit, subscribe, unsubscribe
from paceline.observability.logging import LauncherLog, Output
from paceline.observability.narration import narrate
from paceline.observability.sinks import JsonLinesSink
from paceline.observability.summary import JobSummary, fold
from paceline.wire.handshake import Credentials

SETTLE_SECONDS = 10.0


@dataclass(frozen=True)
class LocalJob:
    """Everything that is decided before the first process starts."""

    spec: JobSpec
    job_id: str
    machine: Machine
    places: tuple[Place, ...]
    log_directory: Path


def plan_job(spec: JobSpec, machine: Machine, job_id: str) -> LocalJob:
    """Places for the workers of `spec`, whose seed is decided, on `machine`."""
    places = assign(
        machine,
        tuple(range(spec.workers)),
        threads_per_worker=spec.threads_per_worker,
        affinity=spec.affinity,
        deterministic=spec.deterministic,
    )
    directory = Path(spec.log_dir) if spec.log_dir else Path("paceline-logs") / job_id
    return LocalJob(spec, job_id, machine, places, directory)


def run_job(job: LocalJob, *, is_quiet: bool = False) -> int:
    """Run the job to its end. The launcher's exit code: 0 only when the job is complete."""
    workers = tuple(range(job.spec.workers))
    with ExitStack() as stack:
        output = stack.enter_context(Output(job.log_directory, workers, is_quiet=is_quiet))
        narrator = Narrator(output)
        stack.enter_context(_warnings_to(output, narrator))
        if job.spec.events:
            sink = JsonLinesSink(Path(job.spec.events), lambda text: output.say(text, is_warning=True))
            stack.enter_context(_subscribed(stack.enter_context(sink)))
        stack.enter_context(_subscribed(narrator))
        began = time.monotonic()
        emit(JobStarted(job.job_id, job.spec.workers, job.spec.command))
        output.say(describe(job))
        with private_folder() as folder, Guard(folder) as guard:
            outcome = asyncio.run(_run(job, output, narrator, guard, folder))
        emit(JobEnded(outcome.exit_code, outcome.reason))
        _tell_outcome(output, job, outcome, seconds=time.monotonic() - began)
        return outcome.exit_code


async def _run(job: LocalJob, output: Output, narrator: Narrator, guard: Guard, folder: Path) -> Outcome:
    """Start everything; on return nothing of it runs any more."""
    spec = job.spec
    credentials = Credentials(job.job_id, secrets.token_hex(32).encode())
    rules = JobRules(
        workers=spec.workers,
        min_workers=spec.min_workers,
        hosts=(job.machine.host,) * spec.workers,
        start_timeout_seconds=spec.start_timeout,
        heartbeat_seconds=spec.heartbeat,
        lost_after_seconds=spec.lost_after,
    )
    async with CoordinatorServer(rules, credentials, on_event=emit, port=spec.port) as server:
        context = JobContext(
            spec=spec,
            job_id=job.job_id,
            coordinator=server.address,
            secret_file=str(write_secret(folder, credentials.secret)),
            host=job.machine.host,
            agent_pid=os.getpid(),
            log_directory=job.log_directory,
        )
        link = await AgentLink.connect(server.address, credentials, host=job.machine.host)
        try:
            plan = HostPlan(context, job.places, sys.executable, os.environ, terminals=_terminals())
            agent = Agent(plan, link, output, guard, RestartRules(max_restarts=spec.max_restarts))
            with Interruptions(server, agent, output.say, narrator.fall_silent, grace_seconds=spec.grace):
                return await _until_ended(server, agent, narrator)
        finally:
            await link.close()


async def _until_ended(server: CoordinatorServer, agent: Agent, narrator: Narrator) -> Outcome:
    running = asyncio.create_task(agent.run())
    ending = asyncio.create_task(server.outcome())
    try:
        await asyncio.wait({running, ending}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running  # raises what ended it
            outcome = await asyncio.wait_for(ending, SETTLE_SECONDS)
        else:
            outcome = await ending
            narrator.fall_silent()
            agent.end()
            await running
        return outcome
    finally:
        for task in (running, ending):
            task.cancel()
        await asyncio.wait({running, ending})


class Narrator:
    """A subscriber that says what happens."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._summary = JobSummary()
        self._is_silent = False

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        line = None if self._is_silent else narrate(event, self._summary, now=now)
        if line is not None:
            self._output.say(line.text, is_warning=line.is_warning)
        self._summary = fold(self._summary, event, now=now)

    def is_silent(self) -> bool:
        return self._is_silent or self._summary.is_ending

    def fall_silent(self) -> None:
        """The job is ending: how each process goes is no news."""
        self._is_silent = True


def describe(job: LocalJob) -> str:
    """The launcher's first line."""
    count = len(job.places)
    threads = job.places[0].threads
    pinned = ", each on cores of its own" if job.places[0].cores else ""
    devices = f", {len(job.machine.gpus)} GPUs" if job.machine.gpus else ""
    return (
        f"{job.job_id}: {_counted(count, 'worker')} on {job.machine.host} "
        f"({_counted(job.machine.usable_cores, 'core')}{devices}; {_counted(threads, 'thread')} per worker{pinned}), "
        f"seed {job.spec.seed}, logs in {job.log_directory}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _tell_outcome(output: Output, job: LocalJob, outcome: Outcome, *, seconds: float) -> None:
    if outcome.failure is not None:
        failure = outcome.failure
        output.say(f"worker {failure.worker} failed: {failure.summary}", is_warning=True)
        output.show(failure.traceback)
    elif outcome.exit_code == 0:
        output.say(f"complete after {seconds:.1f} s")
    else:
        output.say(f"ended after {seconds:.1f} s: {outcome.reason} (logs in {job.log_directory})", is_warning=True)


def write_secret(folder: Path, secret: bytes) -> Path:
    """A file that only this user can read. Its bytes, as they are, are the secret."""
    path = folder / "secret"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(secret)
    return path


@contextmanager
def private_folder() -> Iterator[Path]:
    """A temporary folder that only this user can enter."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="paceline-"))  # made with mode 0700
    except OSError as error:
        raise ConfigError(f"cannot make a temporary folder: {error}; set TMPDIR to one that can be written") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # what is left, the guardian takes


@contextmanager
def _subscribed(subscriber: Narrator | JsonLinesSink) -> Iterator[None]:
    subscribe(subscriber)
    try:
        yield
    finally:
        unsubscribe(subscriber)


@contextmanager
def _warnings_to(output: Output, narrator: Narrator) -> Iterator[None]:
    """Show the warnings of Paceline's own modules as lines of the launcher."""
    handler = LauncherLog(output, narrator.is_silent)
    logger = logging.getLogger("paceline")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _terminals() -> frozenset[Stream]:
    """The streams of worker 0 that should look like a terminal, because ours are."""
    descriptors: Mapping[Stream, int] = {"stdout": 1, "stderr": 2}
    return frozenset(stream for stream, descriptor in descriptors.items() if os.isatty(descriptor))
