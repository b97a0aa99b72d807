"""What does `fit` cost under Paceline? Time per step and peak memory, peers beside ours in one run.

Setups, each in fresh processes, in turn, several times over:

    keras         plain Keras, one process
    paceline-1    the same script with `pl.distribute`, one process, no launcher
    paceline-2    the same script under `paceline run -n 2`
    mwms-2        tf_keras with MultiWorkerMirroredStrategy, two processes (Keras 3 does not run there)

The model, the data and the global batch are the same. Two models: `dense` (20 million parameters, where talk is what
costs) and `small` (a step of some 20 ms, where overhead is what shows). Time per step is the median over all epochs but
the first, memory the peak of resident bytes of one process while `fit` runs.

    python benchmarks/fit_overhead.py [--repeats 3] [--check]

writes benchmarks/results/fit_overhead.md. This file is both the conductor (no TensorFlow) and, with `--setup`, one
worker.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "fit_overhead.md"
GLOBAL_BATCH = 64
INPUTS = 1024
CLASSES = 10
WIDTHS = {"dense": (2048, 2048, 2048, 2048, 2048, 512), "small": (1024, 1024, 1024, 512)}
SETUPS = {"dense": ("keras", "paceline-1", "paceline-2", "mwms-2"), "small": ("keras", "paceline-1")}
EPOCHS = 4
STEPS = {"dense": 10, "small": 50}
RUN_SECONDS = 300

# What the results are held to by --check.
MOST_SOLO_OVERHEAD = 0.05
LEAST_GAIN_OVER_MWMS = 4.0
MOST_EXTRA_GRADIENTS = 2.0


@dataclass(frozen=True)
class Measurement:
    """One run of one setup. Seconds per step of each epoch but the first; bytes of its largest process."""

    step_seconds: tuple[float, ...]
    peak_bytes: int
    parameters: int


# ---- one worker: everything below here until `conduct` runs in a process of its own, with TensorFlow


def build(keras: Any, model_name: str) -> Any:
    """The same model from either Keras."""
    layers = [keras.layers.Dense(width, activation="relu") for width in WIDTHS[model_name]]
    model = keras.Sequential([keras.Input((INPUTS,)), *layers, keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])
    return model


def peak_resident_bytes() -> int:
    """The most memory that this process has held since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def forget_peak() -> None:
    """Let the kernel count the peak from now on (see proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def train(setup: str, model_name: str) -> dict[str, Any]:
    """Train and say how long the epochs took."""
    import numpy as np
    import tensorflow as tf

    if setup.startswith("mwms"):
        import tf_keras as keras

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        with strategy.scope():
            model = build(keras, model_name)
    else:
        import keras

        model = build(keras, model_name)
        if setup.startswith("paceline"):
            import paceline as pl

            model = pl.distribute(model)

    class EpochClock(keras.callbacks.Callback):
        """Seconds of each epoch."""

        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._start = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds.append(time.perf_counter() - self._start)

    steps = STEPS[model_name]
    random = np.random.default_rng(0)
    x = random.standard_normal((steps * GLOBAL_BATCH, INPUTS), dtype=np.float32)
    y = random.integers(0, CLASSES, steps * GLOBAL_BATCH)
    clock = EpochClock()
    forget_peak()
    model.fit(x, y, batch_size=GLOBAL_BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[clock])
    return {
        "step_seconds": [seconds / steps for seconds in clock.seconds[1:]],
        "peak_bytes": peak_resident_bytes(),
        "parameters": int(model.count_params()),
    }


# ---- the conductor


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def commands(setup: str, model_name: str, folder: Path) -> list[tuple[list[str], dict[str, str]]]:
    """The processes that make up a run: (command, extra environment) each."""
    script = [str(Path(__file__).resolve()), "--setup", setup, "--model", model_name, "--results", str(folder)]
    match setup:
        case "keras" | "paceline-1":
            return [([sys.executable, *script], {})]
        case "paceline-2":
            launcher = [sys.executable, "-m", "paceline", "run", "-n", "2", "--log-dir", str(folder / "logs")]
            return [([*launcher, *script], {})]
        case "mwms-2":
            cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
            # Cores are divided as Paceline's launcher divides them; without it the peer is slower.
            threads = str(max(1, (os.cpu_count() or 2) // 2))
            return [
                (
                    [sys.executable, *script],
                    {
                        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
                        "TF_NUM_INTRAOP_THREADS": threads,
                    },
                )
                for index in range(2)
            ]
    raise ValueError(f"no such setup: {setup}")


def measure(setup: str, model_name: str) -> Measurement:
    """Run one setup in fresh processes; raise when one of them fails or takes too long."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # No oneDNN message, no search for GPUs: all setups train on the CPU.
        common = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        output = (folder / "output").open("w+")
        processes = [
            subprocess.Popen(
                command, env={**common, **extra}, stdout=output, stderr=output, cwd=folder, start_new_session=True
            )
            for command, extra in commands(setup, model_name, folder)
        ]
        end = time.monotonic() + RUN_SECONDS
        try:
            failed = [process.wait(timeout=end - time.monotonic()) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        output.seek(0)
        text = output.read()
        output.close()
        if any(failed):
            raise RuntimeError(f"{setup} on {model_name} failed:\n{text[-4000:]}")
        records = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
        if not records:
            raise RuntimeError(f"{setup} on {model_name} gave no result:\n{text[-4000:]}")
    slowest = max(records, key=lambda record: statistics.median(record["step_seconds"]))
    return Measurement(
        step_seconds=tuple(slowest["step_seconds"]),
        peak_bytes=max(record["peak_bytes"] for record in records),
        parameters=slowest["parameters"],
    )


@dataclass(frozen=True)
class Summary:
    """All runs of one setup: milliseconds a step (median and range over epochs), megabytes, parameters."""

    median_ms: float
    least_ms: float
    most_ms: float
    peak_mb: float
    parameters: int


def summarise(runs: list[Measurement]) -> Summary:
    steps = [1000 * seconds for run in runs for seconds in run.step_seconds]
    return Summary(
        median_ms=statistics.median(steps),
        least_ms=min(steps),
        most_ms=max(steps),
        peak_mb=statistics.median(run.peak_bytes for run in runs) / 1e6,
        parameters=runs[0].parameters,
    )


def conduct(repeats: int) -> dict[str, dict[str, Summary]]:
    """Run everything in turn, `repeats` times, so that a slow minute of the machine touches all alike."""
    runs: dict[tuple[str, str], list[Measurement]] = {}
    for turn in range(repeats):
        for model_name, setups in SETUPS.items():
            for setup in setups:
                measurement = measure(setup, model_name)
                runs.setdefault((model_name, setup), []).append(measurement)
                step_ms = 1000 * statistics.median(measurement.step_seconds)
                print(f"{turn + 1}/{repeats}  {model_name:6} {setup:11} {step_ms:8.1f} ms a step", flush=True)
    return {
        model_name: {setup: summarise(runs[model_name, setup]) for setup in setups}
        for model_name, setups in SETUPS.items()
    }


def bounds(summaries: dict[str, dict[str, Summary]]) -> list[tuple[str, bool]]:
    """What the project holds itself to, each with whether it held."""
    small, dense = summaries["small"], summaries["dense"]
    overhead = small["paceline-1"].median_ms / small["keras"].median_ms - 1
    gain = dense["mwms-2"].median_ms / dense["paceline-2"].median_ms
    gradients_mb = 4 * dense["keras"].parameters / 1e6
    extra = {
        setup: (dense[setup].peak_mb - dense["keras"].peak_mb) / gradients_mb for setup in ("paceline-1", "paceline-2")
    }
    step_ms = small["keras"].median_ms
    return [
        (
            f"one process: {100 * overhead:+.1f} % on a step of {step_ms:.1f} ms"
            f" (at most {100 * MOST_SOLO_OVERHEAD:.0f} %)",
            overhead <= MOST_SOLO_OVERHEAD,
        ),
        (
            f"two processes: {gain:.1f} times as fast as MultiWorkerMirroredStrategy"
            f" (at least {LEAST_GAIN_OVER_MWMS:g})",
            gain >= LEAST_GAIN_OVER_MWMS,
        ),
        *(
            (
                f"{setup}: peak memory of a process is plain Keras' {more:+.1f} times the gradients"
                f" of {gradients_mb:.0f} MB (at most {MOST_EXTRA_GRADIENTS:g})",
                more <= MOST_EXTRA_GRADIENTS,
            )
            for setup, more in extra.items()
        ),
    ]


def report(summaries: dict[str, dict[str, Summary]], held: list[tuple[str, bool]], repeats: int) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("tensorflow", "keras", "tf_keras", "numpy"))
    lines = [
        "# What `fit` costs under Paceline",
        "",
        f"Written by `benchmarks/fit_overhead.py`: {os.cpu_count()} cores ({platform.machine()}), Python"
        f" {platform.python_version()}, {versions}. Global batch {GLOBAL_BATCH}, float32, Adam; {repeats} runs of each"
        f" setup, in turn; each run {EPOCHS} epochs, the first not counted. Memory is the peak of one process"
        " while `fit` runs.",
    ]
    for model_name, setups in summaries.items():
        base = setups["keras"]
        lines += [
            "",
            f"## `{model_name}`: {base.parameters / 1e6:.1f} million parameters",
            "",
            "| setup | ms a step (median) | least - most | times plain Keras | peak memory, MB |",
            "|---|---:|---:|---:|---:|",
            *(
                f"| {setup} | {row.median_ms:.1f} | {row.least_ms:.1f} - {row.most_ms:.1f}"
                f" | {row.median_ms / base.median_ms:.2f} | {row.peak_mb:.0f} |"
                for setup, row in setups.items()
            ),
        ]
    lines += [
        "",
        "## What it is held to",
        "",
        *(f"- {'held' if good else 'MISSED'}: {line}" for line, good in held),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="fail when a bound is missed")
    parser.add_argument("--only", nargs=2, metavar=("MODEL", "SETUP"), help="measure one setup once and print it")
    parser.add_argument("--setup", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.setup:
        record = train(arguments.setup, arguments.model)
        (arguments.results / f"result-{os.getpid()}.json").write_text(json.dumps(record))
        return 0
    if arguments.only:
        model_name, setup = arguments.only
        print(summarise([measure(setup, model_name)]))
        return 0
    summaries = conduct(arguments.repeats)
    held = bounds(summaries)
    text = report(summaries, held, arguments.repeats)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    print(text)
    return 1 if arguments.check and not all(good for _, good in held) else 0


if __name__ == "__main__":
    sys.exit(main())
