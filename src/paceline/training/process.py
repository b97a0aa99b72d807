"""This process's place in a job: made once from what the launcher left in the environment, used by everything above.

Without a launcher it is a group of one. Next file: `session.py`.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.communication.listener import DataListener
from paceline.communication.rendezvous import connect
from paceline.coordinator.client import CoordinatorClient
from paceline.coordinator.protocols import Membership
from paceline.coordinator.solo import SoloMembership
from paceline.errors import ConfigError
from paceline.training.calls import Calls
from paceline.training.session import Session
from paceline.types import Member, WorkerIdentity
from paceline.wire.addresses import routing_address
from paceline.wire.handshake import Credentials

logger = logging.getLogger("paceline.training")

TALK_TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True)
class JobEnvironment:
    """What the launcher tells a worker.

    Attributes:
        coordinator: "host:port"; None without a launcher.
        seed: of the job's order of samples; None lets the script choose.
        settings: values of `--set`, for strategies and time-outs.
    """

    coordinator: str | None = None
    job_id: str = "solo"
    secret: bytes = b"a group of one talks to nobody"
    identity: WorkerIdentity = field(default_factory=lambda: WorkerIdentity(0, 1))
    workers: int = 1
    host: str = "localhost"
    deterministic: bool = False
    seed: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(environment: Mapping[str, str]) -> JobEnvironment:
        """Read PACELINE_* variables. Raises `ConfigError` naming the variable that is missing or malformed."""
        deterministic = environment.get("PACELINE_DETERMINISTIC", "0") == "1"
        seed = _number(environment, "PACELINE_SEED") if "PACELINE_SEED" in environment else None
        if "PACELINE_COORDINATOR" not in environment:
            return JobEnvironment(deterministic=deterministic, seed=seed)
        for name in ("PACELINE_JOB_ID", "PACELINE_WORKER_ID", "PACELINE_WORKERS", "PACELINE_SECRET_FILE"):
            if name not in environment:
                raise ConfigError(
                    f"PACELINE_COORDINATOR is set but {name} is not: start workers with 'paceline run', which sets both"
                )
        secret_file = Path(environment["PACELINE_SECRET_FILE"])
        try:
            secret = secret_file.read_bytes()
        except OSError as error:
            raise ConfigError(f"PACELINE_SECRET_FILE: cannot read {secret_file}: {error.strerror}") from error
        return JobEnvironment(
            coordinator=environment["PACELINE_COORDINATOR"],
            job_id=environment["PACELINE_JOB_ID"],
            secret=secret,
            identity=WorkerIdentity(
                _number(environment, "PACELINE_WORKER_ID"), _number(environment, "PACELINE_INCARNATION", 1)
            ),
            workers=_number(environment, "PACELINE_WORKERS"),
            host=environment.get("PACELINE_HOST", socket.gethostname()),
            deterministic=deterministic,
            seed=seed,
            settings=json.loads(environment.get("PACELINE_SETTINGS", "{}")),
        )


@dataclass(frozen=True)
class Process:
    """The session of this process, its calls, and what the launcher said."""

    environment: JobEnvironment
    session: Session
    calls: Calls
    listener: DataListener | None

    def close(self) -> None:
        """Drop all connections. Without `leave` before it, the coordinator sees that and judges by the exit code."""
        self.session.close()
        if self.listener is not None:
            self.listener.close()


_lock = threading.Lock()
_current: Process | None = None


def current() -> Process:
    """This process's place in the job. The first call waits until all workers have started."""
    global _current
    with _lock:
        if _current is None:
            _current = _start(JobEnvironment.read(os.environ))
        return _current


def is_started() -> bool:
    return _current is not None


def leave() -> None:
    """End well: wait until every rank has come to the end of its script, then leave the job."""
    global _current
    process = _current
    if process is None:
        return
    if process.environment.coordinator is not None:
        process.calls.come_to_end()
        process.session.membership.leave()
    _current = None  # not before: whoever asks for its rank meanwhile would join a second time
    process.close()


def worker_finished() -> None:
    """The script has ended well. Called by the worker's bootstrap."""
    leave()


def worker_failed(summary: str, traceback: str) -> None:
    """The script raised: tell the job, which stops and shows `traceback`. Called by the worker's bootstrap."""
    global _current
    process, _current = _current, None
    if process is not None:
        process.session.membership.fail(summary, traceback)
        process.close()
        return
    environment = JobEnvironment.read(os.environ)
    if environment.coordinator is None:
        return
    client = _client(environment)
    client.fail(summary, traceback)
    client.close()


def _start(environment: JobEnvironment) -> Process:
    credentials = Credentials(environment.job_id, environment.secret)
    if environment.coordinator is None:
        member = Member(environment.identity, environment.host, "", os.getpid())
        membership: Membership = SoloMembership()
        listener: DataListener | None = None
    else:
        listener = DataListener(environment.identity, credentials, interface=routing_address(environment.coordinator))
        member = Member(environment.identity, environment.host, listener.address, os.getpid())
        membership = _client(environment)
    session = Session(
        membership,
        member,
        connect=functools.partial(
            connect,
            identity=environment.identity,
            listener=listener,
            credentials=credentials,
            timeout_seconds=float(environment.settings.get("talk_timeout_seconds", TALK_TIMEOUT_SECONDS)),
        ),
    )
    process = Process(environment, session, Calls(session), listener)
    session.start()
    atexit.register(process.close)
    return process


def _client(environment: JobEnvironment) -> CoordinatorClient:
    assert environment.coordinator is not None
    credentials = Credentials(environment.job_id, environment.secret)
    return CoordinatorClient(environment.coordinator, credentials, environment.identity)


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise ConfigError(f"{name} must be a whole number, got '{text}'") from None
