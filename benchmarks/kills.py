"""What does a kill cost? Fifty kills at random points of training, and how long each kept the survivors waiting.

Six jobs of three workers train a small Keras model; `tests/killing.py` plans who dies when (seeded), runs the jobs, and
checks each as the tests do: exit code, every sample exactly once, equal replicas, the weights of an undisturbed run
(every second job: bit for bit). The times come from the jobs' event files:

    next commit   from the first word of the loss (`MemberLost` or `WorkerExited`) to the next `RoundCommitted`
    victim back   from there to `MemberJoined` of the process that replaces it: start of Python, import of TensorFlow,
                  building and tracing included

    python benchmarks/kills.py [--seed 0] [--check]

writes benchmarks/results/kills.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from killing import Sweep, Trial, round_seconds, summarise

RESULTS = Path(__file__).parent / "results" / "kills.md"
MOST_SECONDS = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="fail when the median is above a second and a round")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="paceline-kills-") as folder:
        trials = Sweep(Path(folder), seed=arguments.seed).run()
    for trial in trials:
        trial.check()
    text, is_met = report(trials, arguments.seed, load, time.monotonic() - began)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    print(text)
    return 0 if is_met or not arguments.check else 1


def report(trials: list[Trial], seed: int, load: float, seconds: float) -> tuple[str, bool]:
    """The page, and whether the bound is met."""
    found = [recovery for trial in trials for recovery in trial.recoveries()]
    work = statistics.median(round_seconds(trial.run) for trial in trials)
    median = statistics.median(recovery.seconds for recovery in found)
    is_met = median < MOST_SECONDS + work
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("tensorflow", "keras", "numpy"))
    lines = [
        "# Kills during training",
        "",
        f"Written by `benchmarks/kills.py --seed {seed}` in {seconds:.0f} s: {len(found)} kills (SIGKILL) in "
        f"{len(trials)} jobs of three workers, two jobs at a time; load average before the run: {load:.1f}. "
        f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {versions}.",
        "",
        "Every job ended with exit code 0, every sample of every epoch was used exactly once, the replicas were equal,",
        "and the weights were those of an undisturbed run (within 1e-5; bit for bit in the deterministic jobs).",
        "",
        summarise(found),
        "",
        f"Bound: a median below {MOST_SECONDS:.0f} s and one round's work ({work * 1000:.0f} ms): "
        f"{'met' if is_met else 'missed'}.",
        "",
    ]
    return "\n".join(lines), is_met


if __name__ == "__main__":
    sys.exit(main())
