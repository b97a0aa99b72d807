"""`JobSpec`: all that a person says about a job, checked at once.

Each option is named here and nowhere else: `cli/run.py` makes the command line from these fields, and a job file
uses the same names. Next file: `placement.py`, which turns the spec and a machine into places for workers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.config import option, to_json
from paceline.errors import ConfigError


@dataclass(frozen=True)
class JobSpec:
    """One job. Times are in seconds. Raises `ConfigError` with the field's name for anything that cannot work."""

    script: str | None = option(
        "--script", default=None, help="Python file to run; on the command line simply the first argument."
    )
    module: str | None = option(
        "-m", "--module", default=None, metavar="NAME", help="Run a module, as python -m does; options end here."
    )
    arguments: tuple[str, ...] = option(
        "--arguments", default=(), help="The script's own arguments; on the command line simply what follows it."
    )
    workers: int = option("-n", "--workers", default=1, metavar="N", help="Processes that train together.")
    min_workers: int = option(
        "--min-workers", default=1, metavar="N", help="Below this many living workers the job waits for more."
    )
    name: str | None = option("--name", default=None, metavar="TEXT", help="Name of the job; default: the script's.")
    seed: int | None = option(
        "--seed", default=None, metavar="K", help="Seed of every worker's random numbers; default: random, and printed."
    )
    deterministic: bool = option(
        "--deterministic", default=False, help="The same bits for any number of workers; each gets one thread."
    )
    threads_per_worker: int | None = option(
        "--threads-per-worker", default=None, metavar="K", help="Default: the cores, divided among the workers."
    )
    affinity: bool = option("--affinity", default=True, help="Give each worker cores of its own, if there are enough.")
    settings: Mapping[str, Any] = option(
        "--set",
        key="settings",
        default={},
        metavar="KEY=VALUE",
        help="A setting for the script, as in TOML; repeatable.",
    )
    max_restarts: int = option(
        "--max-restarts", default=10, metavar="N", help="How often each worker that was killed is started again."
    )
    start_timeout: float = option(
        "--start-timeout", default=300.0, metavar="SECONDS", help="How long ready workers wait for one that is not."
    )
    heartbeat: float = option(
        "--heartbeat", default=0.5, metavar="SECONDS", help="How often a worker shows that it lives."
    )
    lost_after: float = option(
        "--lost-after", default=3.0, metavar="SECONDS", help="Silence after which a worker counts as lost."
    )
    grace: float = option(
        "--grace", default=10.0, metavar="SECONDS", help="Time that workers have to end before they are killed."
    )
    port: int = option("--port", default=0, metavar="PORT", help="Port of the coordinator; 0 takes any free one.")
    log_dir: str | None = option(
        "--log-dir",
        default=None,
        metavar="DIR",
        help="Where each worker's output is kept; default: paceline-logs/<job>.",
    )
    events: str | None = option("--events", default=None, metavar="FILE", help="Write every event as a line of JSON.")

    def __post_init__(self) -> None:
        self._check_program()
        _require(self.workers >= 1, "workers", f"must be at least 1, got {self.workers}")
        _require(
            1 <= self.min_workers <= self.workers,
            "min_workers",
            f"must be between 1 and the number of workers ({self.workers}), got {self.min_workers}",
        )
        _require(self.seed is None or 0 <= self.seed < 2**32, "seed", f"must be from 0 to 2**32 - 1, got {self.seed}")
        threads = self.threads_per_worker
        _require(threads is None or threads >= 1, "threads_per_worker", f"must be at least 1, got {threads}")
        _require(self.max_restarts >= 0, "max_restarts", f"must be 0 or more, got {self.max_restarts}")
        for field in ("start_timeout", "heartbeat", "lost_after", "grace"):
            seconds = getattr(self, field)
            least = 0.0 if field == "grace" else 0.01
            _require(seconds >= least, field, f"must be at least {least:g} seconds, got {seconds:g}")
        _require(
            self.lost_after >= 2 * self.heartbeat,
            "lost_after",
            f"must be at least twice the heartbeat ({self.heartbeat:g} s), or living workers are taken for lost; "
            f"got {self.lost_after:g}",
        )
        _require(0 <= self.port <= 65535, "port", f"must be from 0 (any free one) to 65535, got {self.port}")
        to_json(self.settings)

    def _check_program(self) -> None:
        if self.script and self.module:
            raise ConfigError("both a script and a module are given; a job runs one of them", field="module")
        if self.module:
            wellformed = all(part.isidentifier() for part in self.module.split("."))
            _require(wellformed, "module", f"'{self.module}' is not a module's name; for a file, leave out -m")
            return
        if not self.script:
            raise ConfigError("nothing to run: give a script (paceline run -n 2 train.py) or a module (-m my.train)")
        path = Path(self.script)
        _require(path.exists(), "script", f"there is no file {self.script} (looked in {path.resolve().parent})")
        _require(path.is_file(), "script", f"{self.script} is not a file; to run a package, use -m")

    @property
    def program(self) -> str:
        """What runs, in one word."""
        return self.module or Path(self.script or "").stem

    @property
    def command(self) -> tuple[str, ...]:
        """The program and its arguments, as a person would write them."""
        target = ("-m", self.module) if self.module else (self.script or "",)
        return (*target, *self.arguments)

    def with_seed(self, seed: int) -> JobSpec:
        """The same job, its seed decided."""
        return replace(self, seed=seed)


def new_job_id(spec: JobSpec, *, time_stamp: str, suffix: str) -> str:
    """A name that is unique, sorts by time among runs of one program, and is safe in a path."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", spec.name or spec.program).strip("-.") or "job"
    return f"{name}-{time_stamp}-{suffix}"


def _require(holds: bool, field: str, message: str) -> None:
    if not holds:
        raise ConfigError(message, field=field)
