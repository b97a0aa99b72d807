"""Jobs whose workers are killed at random points of their training, and what must hold of each of them.

A plan strikes in clusters: one or two of three workers, in one or two neighbouring rounds; then the rounds are patient
(the script's `Patience`) until the group is whole again, so that the next cluster finds three members. Shared by
`tests/processes/test_kills.py` and `benchmarks/kills.py`.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from launching import PATIENT
from paceline.testing.faults import PHASES, FaultPlan, Kill

WORKERS = 3
SAMPLES = 100
BATCH = 12
EPOCHS = 5
STEPS = -(-SAMPLES // BATCH)
ROUNDS_OF_EPOCH = STEPS + 2  # the steps, one round of validation, the agreement to go on
LAST_ROUND = EPOCHS * ROUNDS_OF_EPOCH
RUN_SECONDS = 1800.0

SCRIPT = '''
"""Train a small model whose metrics tell which samples it has seen."""
import hashlib, json, os, sys, time
import keras
import numpy as np
import tensorflow as tf
import paceline as pl
from paceline.training import process

samples, batch, epochs = (int(word) for word in sys.argv[1:4])
impatient = {int(word) for word in os.environ.get("IMPATIENT_ROUNDS", "").split()}


class Total(keras.metrics.Metric):
    """Sum of a function of the samples' ids, which stand beside the targets."""

    def __init__(self, name, power):
        super().__init__(name=name)
        self.power = power
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(y_true[:, 1] ** self.power))

    def result(self):
        return self.total + 0.0


class Patience(keras.callbacks.Callback):
    """Before a round: wait until the group is whole, or somebody asks to be let in."""

    def on_train_batch_begin(self, batch, logs=None):
        session = process.current().session
        end = time.monotonic() + 240
        while (
            session.round not in impatient
            and session.size < session.membership.expected_workers
            and session.membership.newest_generation <= session.group.generation
        ):
            assert time.monotonic() < end, "nobody has come back"
            time.sleep(0.01)

    on_test_batch_begin = on_train_batch_begin


def loss(y_true, y_pred):
    return keras.ops.square(y_true[:, 0] - y_pred[:, 0])


keras.utils.set_random_seed(3)
source = np.random.default_rng(5)
x = source.normal(size=(samples, 6)).astype(np.float32)
ids = np.arange(samples, dtype=np.float32)
y = np.stack([np.tanh(x.sum(axis=1)), ids], axis=1).astype(np.float32)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), loss, metrics=[Total("ids", 1), Total("squares", 2), Total("count", 0)])
pl.distribute(model, microbatch=4)
history = model.fit(
    x, y, batch_size=batch, epochs=epochs, verbose=0, callbacks=[Patience()], validation_data=(x[:40], y[:40])
).history
weights = [np.asarray(v) for v in model.weights + model.optimizer.variables]
digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).digest()
digests = pl.allgather(np.frombuffer(digest, np.uint8)[None])
if pl.rank() == 0:
    np.savez(sys.argv[4], *weights)
    print("RESULT", json.dumps({"history": history, "digests": [row.tobytes().hex() for row in digests]}))
'''


COLLECTIVES = '''
"""Sum up what all ranks tell each other, call after call; no TensorFlow, so that a worker is back in a second."""
import json, os, sys, time
import numpy as np
import paceline as pl
from paceline.training import process

impatient = {int(word) for word in os.environ.get("IMPATIENT_ROUNDS", "").split()}


def patience():
    """Before a call: wait until the group is whole, or somebody asks to be let in."""
    session = process.current().session
    end = time.monotonic() + 240
    while (
        session.group is not None
        and session.round not in impatient
        and session.size < session.membership.expected_workers
        and session.membership.newest_generation <= session.group.generation
    ):
        assert time.monotonic() < end, "nobody has come back"
        time.sleep(0.01)


total = np.zeros(1000)
for step in range(int(sys.argv[1])):
    patience()
    total += pl.allreduce(np.full(1000, step + 1.0))
if pl.rank() == 0:
    print("RESULT", json.dumps({"total": sorted(set(total.tolist())), "size": pl.size()}))
'''


@dataclass(frozen=True)
class Plan:
    """Who is killed when, and the rounds that do not wait for the group to be whole."""

    kills: tuple[Kill, ...]
    impatient: tuple[int, ...]

    @classmethod
    def random(cls, seed: int, *, num_kills: int, last_round: int = LAST_ROUND, rounds_of_step: int = 1) -> Plan:
        """`num_kills` kills (fewer if the rounds do not suffice) of any worker at any phase. At most two die between
        two moments at which the group is whole, so that somebody who holds the state is always alive."""
        source = random.Random(seed)
        incarnations = dict.fromkeys(range(WORKERS), 1)
        kills: list[Kill] = []
        impatient: list[int] = []
        first = 1 + source.randrange(3)
        while len(kills) < num_kills and first + 8 < last_round:
            victims = source.sample(range(WORKERS), min(source.choice([1, 2, 2]), num_kills - len(kills)))
            for worker in victims:
                delay = source.choice([0, source.randrange(3000)])
                place = first + source.randrange(2)
                kills.append(Kill(place, source.choice(PHASES), worker, incarnations[worker], delay))
                incarnations[worker] += 1
            impatient += [first, first + 1, first + 2]
            # one step for each that comes back, and one in which all are there
            first += 3 + rounds_of_step * (len(victims) + 1) + source.randrange(4)
        return cls(tuple(kills), tuple(impatient))

    def environment(self) -> dict[str, str]:
        return {
            **FaultPlan(self.kills).environment({}),
            "IMPATIENT_ROUNDS": " ".join(map(str, self.impatient)),
        }


@dataclass(frozen=True)
class Run:
    """A job that has ended."""

    code: int
    text: str
    events: list[dict[str, Any]]
    result: dict[str, Any] | None
    weights: list[np.ndarray]

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] in kinds]


@dataclass(frozen=True)
class Recovery:
    """What one kill cost.

    Attributes:
        phase: of the round, in which it was meant to strike.
        seconds: from the first word of the loss to the survivors' next commit.
        away_seconds: from there to the moment in which the victim's replacement took part again.
    """

    phase: str
    seconds: float
    away_seconds: float


def run_job(
    folder: Path,
    *arguments: str,
    script: str = SCRIPT,
    script_arguments: Sequence[object] = (SAMPLES, BATCH, EPOCHS, "weights.npz"),
    environment: Mapping[str, str] | None = None,
) -> Run:
    """`paceline run ARGUMENTS train.py` in `folder`, to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "paceline", "run", *PATIENT, "--seed", "7"]
    options = ["--events", "events", "--log-dir", "logs", *arguments]
    done = subprocess.run(
        [*command, *options, "train.py", *map(str, script_arguments)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS,
        env={**os.environ, "TMPDIR": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})},
        check=False,
    )
    events = [json.loads(line) for line in (folder / "events").read_text().splitlines()]
    results = [line.partition("RESULT ")[2] for line in done.stdout.splitlines() if "RESULT " in line]
    weights: list[np.ndarray] = []
    if (folder / "weights.npz").exists():
        with np.load(folder / "weights.npz") as saved:
            weights = [saved[name] for name in saved.files]
    result = json.loads(results[0]) if results else None
    return Run(done.returncode, done.stdout, events, result, weights)


@dataclass(frozen=True)
class Sweep:
    """Fifty kills in six jobs; every second job promises the bits of an undisturbed one."""

    folder: Path
    kills_of_jobs: tuple[int, ...] = (9, 9, 8, 8, 8, 8)
    seed: int = 0

    def run(self) -> list[Trial]:
        """Two jobs at a time, since each spends half of its time waiting for one process to come back."""
        with ThreadPoolExecutor(2) as pool:
            undisturbed = list(pool.map(self._undisturbed, (False, True)))
            return list(pool.map(lambda number: self._disturbed(number, undisturbed), range(len(self.kills_of_jobs))))

    def _undisturbed(self, deterministic: bool) -> Run:
        options = ["--deterministic"] if deterministic else []
        return run_job(self.folder / f"undisturbed-{deterministic}", "-n", "1", *options)

    def _disturbed(self, number: int, undisturbed: Sequence[Run]) -> Trial:
        deterministic = number % 2 == 1
        plan = Plan.random(self.seed + number, num_kills=self.kills_of_jobs[number])
        options = ["--deterministic"] if deterministic else []
        folder = self.folder / f"job-{number}"
        run = run_job(folder, "-n", str(WORKERS), *options, environment=plan.environment())
        return Trial(plan, run, undisturbed[deterministic], deterministic)


@dataclass(frozen=True)
class Trial:
    """A job in which the plan was carried out, and one that nobody disturbed (with one worker)."""

    plan: Plan
    run: Run
    undisturbed: Run
    deterministic: bool

    def check(self) -> None:
        """Raises `AssertionError` unless all is as promised."""
        check(self.run, self.plan, self.undisturbed, same_bits=self.deterministic)

    def recoveries(self) -> Iterator[Recovery]:
        yield from recoveries(self.run, self.plan.kills)


def check(run: Run, plan: Plan, undisturbed: Run, *, same_bits: bool) -> None:
    """Everything that is promised of a job whose workers were killed. Raises `AssertionError`."""
    assert run.code == 0, run.text
    assert undisturbed.result is not None
    killed = sorted((e["worker"], e["incarnation"]) for e in run.of("WorkerExited") if e["signal"] == "SIGKILL")
    assert killed == sorted((kill.worker, kill.incarnation) for kill in plan.kills), "every kill of the plan was done"
    assert run.result is not None, run.text
    assert len(run.result["digests"]) == WORKERS, "at the end the group is whole"
    assert len(set(run.result["digests"])) == 1, "and all replicas are equal"
    history = run.result["history"]
    ids = np.arange(SAMPLES)
    assert history["ids"] == [ids.sum()] * EPOCHS, "every sample of every epoch exactly once"
    assert history["squares"] == [(ids**2).sum()] * EPOCHS
    assert history["count"] == [SAMPLES] * EPOCHS
    rounds = [event["round"] for event in run.of("RoundCommitted")]
    assert rounds == sorted(rounds), "what is told as committed stays so"
    if same_bits:
        assert run.result["digests"][0] == undisturbed.result["digests"][0], "the bits of an undisturbed run"
        assert history == undisturbed.result["history"]
    else:
        for ours, theirs in zip(run.weights, undisturbed.weights, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(history["loss"], undisturbed.result["history"]["loss"], rtol=1e-5)
        np.testing.assert_allclose(history["val_loss"], undisturbed.result["history"]["val_loss"], rtol=1e-5)


def recoveries(run: Run, kills: Iterable[Kill]) -> list[Recovery]:
    """How long each kill kept the survivors from their next commit, and its victim from taking part again."""
    found = []
    for kill in kills:
        who = (kill.worker, kill.incarnation)
        noticed = min(
            event["time"]
            for event in run.of("WorkerExited", "MemberLost")
            if (event["worker"], event["incarnation"]) == who
        )
        commit = min(event["time"] for event in run.of("RoundCommitted") if event["time"] >= noticed)
        back = [
            event["time"]
            for event in run.of("MemberJoined")
            if event["worker"] == kill.worker and event["incarnation"] == kill.incarnation + 1
        ]
        away = back[0] - noticed if back else float("nan")
        found.append(Recovery(kill.phase, commit - noticed, away))
    return found


def round_seconds(run: Run) -> float:
    """What a round takes that nobody disturbs: the median."""
    names = ("work_seconds", "talk_seconds", "vote_seconds", "change_seconds")
    return statistics.median(sum(event[name] for name in names) for event in run.of("RoundCommitted"))


def summarise(found: Sequence[Recovery]) -> str:
    """The table of `benchmarks/results/kills.md`."""
    lines = [
        "| phase of the kill | kills | next commit, median | 90 % | worst | victim back, median |",
        "|---|---|---|---|---|---|",
    ]
    for phase in (*PHASES, "all"):
        some = [one for one in found if phase in (one.phase, "all")]
        if some:
            times = sorted(one.seconds for one in some)
            away = statistics.median(one.away_seconds for one in some)
            ninth = times[min(len(times) - 1, int(0.9 * len(times)))]
            lines.append(
                f"| {phase} | {len(some)} | {statistics.median(times) * 1000:.0f} ms | {ninth * 1000:.0f} ms "
                f"| {times[-1] * 1000:.0f} ms | {away:.1f} s |"
            )
    return "\n".join(lines)
