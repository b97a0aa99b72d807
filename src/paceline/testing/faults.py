"""`FaultPlan`: kill a worker at a chosen point of its training, or within some microseconds after it.

A plan travels in the environment and takes effect inside the workers, where the phases of a round begin:

    plan = FaultPlan((Kill(round=7, phase="vote", worker=1),))
    subprocess.run(["paceline", "run", "-n", "3", "train.py"], env={**os.environ, **plan.environment()})

The package itself knows nothing of this: `PACELINE_PLUGINS` names this module, and the worker's bootstrap calls
`install`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import get_args

from paceline.errors import ConfigError
from paceline.observability.events import Event, Phase, PhaseStarted, subscribe

PLUGINS_VARIABLE = "PACELINE_PLUGINS"
FAULTS_VARIABLE = "PACELINE_FAULTS"
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class Kill:
    """End a worker with `kill -9`.

    Attributes:
        round: number of the round.
        phase: of that round.
        worker: who.
        incarnation: which process of that worker; the one that replaces it goes on unharmed.
        delay_microseconds: after the phase has begun; 0 kills before it does anything.
    """

    round: int
    phase: Phase
    worker: int
    incarnation: int = 1
    delay_microseconds: int = 0

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ConfigError(f"phase '{self.phase}' is not known; known: {', '.join(PHASES)}")
        if self.delay_microseconds < 0:
            raise ConfigError(f"delay_microseconds must be 0 or more, got {self.delay_microseconds}")


@dataclass(frozen=True)
class FaultPlan:
    """What shall go wrong in a job."""

    kills: tuple[Kill, ...] = ()

    @classmethod
    def random(
        cls,
        seed: int,
        *,
        workers: int,
        rounds: int,
        phases: Sequence[Phase] = PHASES,
        max_delay_microseconds: int = 20_000,
    ) -> FaultPlan:
        """One kill at a random point: of any worker, in any of `rounds`, up to so long after any of `phases` began."""
        source = random.Random(seed)
        kill = Kill(
            round=source.randrange(rounds),
            phase=source.choice(phases),
            worker=source.randrange(workers),
            delay_microseconds=source.randrange(max_delay_microseconds + 1),
        )
        return cls((kill,))

    def to_json(self) -> str:
        """A JSON list with one object per kill."""
        return json.dumps([asdict(kill) for kill in self.kills])

    @classmethod
    def from_json(cls, text: str) -> FaultPlan:
        """Raises `ConfigError` for anything that is not such a list."""
        try:
            return cls(tuple(Kill(**fields) for fields in json.loads(text)))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{FAULTS_VARIABLE} is not a list of kills: {error}") from None

    def environment(self, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables that bring this plan into the workers; other plugins of `inherited` are kept."""
        before = (os.environ if inherited is None else inherited).get(PLUGINS_VARIABLE, "")
        names = [name for name in before.split(",") if name and name != __name__]
        return {PLUGINS_VARIABLE: ",".join([*names, __name__]), FAULTS_VARIABLE: self.to_json()}

    def of_process(self, worker: int, incarnation: int) -> tuple[Kill, ...]:
        """The kills that are meant for this process."""
        return tuple(kill for kill in self.kills if (kill.worker, kill.incarnation) == (worker, incarnation))


class Executioner:
    """A subscriber that carries out the kills of its own process. It has a thread only while a delay runs."""

    def __init__(self, kills: Sequence[Kill]) -> None:
        self._kills = {(kill.round, kill.phase): kill for kill in kills}

    def __call__(self, event: Event) -> None:
        if not isinstance(event, PhaseStarted):
            return
        kill = self._kills.get((event.round, event.phase))
        if kill is None:
            return
        if kill.delay_microseconds == 0:
            kill_own_process()
            return
        seconds = kill.delay_microseconds * 1e-6
        threading.Thread(target=self._kill_later, args=(seconds,), name="paceline-fault", daemon=True).start()

    def _kill_later(self, seconds: float) -> None:
        time.sleep(seconds)  # not a wait for anything: the delay is the fault
        kill_own_process()


def kill_own_process() -> None:
    """`kill -9`, from inside."""
    os.kill(os.getpid(), signal.SIGKILL)


def install() -> None:
    """Take the kills for this process from the environment; called by the worker's bootstrap."""
    plan = FaultPlan.from_json(os.environ.get(FAULTS_VARIABLE, "[]"))
    kills = plan.of_process(int(os.environ["PACELINE_WORKER_ID"]), int(os.environ["PACELINE_INCARNATION"]))
    if kills:
        subscribe(Executioner(kills))
