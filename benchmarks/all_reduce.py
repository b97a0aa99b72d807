"""How long does an all-reduce take? Ours over shared memory and TCP, beside others, in one run.

    python benchmarks/all_reduce.py [--gloo-python PATH] [--mpi-python PATH] [--processes 2 4] [--rounds 3] [--check]

Contestants: Paceline over shared memory and over TCP; TensorFlow's ring collective (`CollectiveReduceV2`, what
MultiWorkerMirroredStrategy runs); Gloo through PyTorch and MPI through mpi4py where an interpreter has them (the one
that is given, or that runs this, or `/usr/bin/python3`). Each is N processes that live through the whole run and sleep
while others are measured. For each size the contestants take turns, so that a slow spell hits all alike. A repetition
is a barrier and then an all-reduce of float32; its time is that of the slowest process. The result of ours is compared
over the ranks, bit for bit, and with numpy's sum.

Writes benchmarks/results/all_reduce.md. With `--worker` this file is one process of a contestant.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RESULTS = Path(__file__).parent / "results" / "all_reduce.md"
SOURCE = Path(__file__).parent.parent / "src"
KIBIBYTE, MEBIBYTE = 1 << 10, 1 << 20
SIZES = (1, 4, 16, 64, 256, 1 * 1024, 4 * 1024, 16 * 1024, 64 * 1024, 256 * 1024)  # KiB
OURS = ("paceline shared memory", "paceline TCP")
OTHERS = ("tensorflow ring", "gloo", "mpi")
PERIOD = 251  # elements after which the arrays repeat
MARK = "RESULT "  # other libraries write to standard output too
START_SECONDS = 120

# What the figures are held to by --check: N = 2.
LEAST_OVER_TENSORFLOW, LEAST_OVER_GLOO, LEAST_OVER_GLOO_TCP, MOST_SMALL_SECONDS = 10.0, 2.0, 1.2, 200e-6


# ---- one process of a contestant


class Contestant(NamedTuple):
    """What a worker needs to take part: its all-reduce as `run()`, the array that it fills, and a barrier."""

    prepare: Callable[[np.ndarray], Callable[[], Any]]
    """Given this rank's values, return the function to be timed; it returns the sum."""
    barrier: Callable[[], None]
    close: Callable[[], None]


def make_paceline(kind: str, rank: int, size: int, _ports: Sequence[int]) -> Contestant:
    sys.path.insert(0, str(SOURCE))
    from paceline.communication.listener import DataListener
    from paceline.communication.rendezvous import connect
    from paceline.types import Group, Member, WorkerIdentity
    from paceline.wire.handshake import Credentials

    credentials = Credentials("benchmark", b"benchmark")
    listener = DataListener(WorkerIdentity(rank, 1), credentials)
    say({"address": listener.address})
    addresses = json.loads(sys.stdin.readline())["addresses"]
    members = tuple(
        Member(WorkerIdentity(other, 1), "one" if kind == "shared memory" else f"host-{other}", address, 0)
        for other, address in enumerate(addresses)
    )
    communicator = connect(Group(1, members), listener.identity, listener, credentials)

    def prepare(values: np.ndarray) -> Callable[[], np.ndarray]:
        out = np.zeros_like(values)

        def run() -> np.ndarray:
            communicator.all_reduce(values, out)
            return out

        return run

    def close() -> None:
        communicator.close()
        listener.close()

    return Contestant(prepare, communicator.barrier, close)


def make_tensorflow(_kind: str, rank: int, size: int, ports: Sequence[int]) -> Contestant:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    import tensorflow as tf

    tf.distribute.MultiWorkerMirroredStrategy()  # connects the cluster; the operation itself is called bare

    @tf.function(reduce_retracing=True)
    def reduce(values: Any, instance: Any) -> Any:
        return tf.raw_ops.CollectiveReduceV2(
            input=values,
            group_size=size,
            group_key=17,
            instance_key=instance,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="ring",
        )

    def prepare(values: np.ndarray) -> Callable[[], Any]:
        tensor, instance = tf.constant(values), tf.constant(len(values))  # an instance has one shape for ever
        return lambda: reduce(tensor, instance).numpy()

    token = prepare(np.zeros(1, np.float32))
    return Contestant(prepare, token, lambda: None)


def make_gloo(_kind: str, rank: int, size: int, ports: Sequence[int]) -> Contestant:
    import torch

    torch.set_num_threads(1)
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{ports[0]}", rank=rank, world_size=size)

    def prepare(values: np.ndarray) -> Callable[[], np.ndarray]:
        # In place, as it is made to be used; the first result is the sum, later ones are of no interest.
        tensor = torch.from_numpy(values.copy())

        def run() -> np.ndarray:
            distributed.all_reduce(tensor)
            return tensor.numpy()

        return run

    return Contestant(prepare, distributed.barrier, distributed.destroy_process_group)


def make_mpi(_kind: str, _rank: int, _size: int, _ports: Sequence[int]) -> Contestant:
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def prepare(values: np.ndarray) -> Callable[[], np.ndarray]:
        out = np.zeros_like(values)

        def run() -> np.ndarray:
            world.Allreduce(values, out)
            return out

        return run

    return Contestant(prepare, world.Barrier, lambda: None)


MAKERS = {"paceline": make_paceline, "tensorflow": make_tensorflow, "gloo": make_gloo, "mpi": make_mpi}


def values_of(rank: int, num_elements: int) -> np.ndarray:
    """Small whole numbers and halves, so that their sum is exact in any order and can be checked."""
    return np.resize((np.arange(PERIOD, dtype=np.float32) + rank) / 2, num_elements)


def is_right(result: np.ndarray, size: int) -> bool:
    """Whether this is the sum over all ranks; looked at in stretches, to save memory."""
    stretch = 4096 * PERIOD
    expected = sum(values_of(rank, min(stretch, len(result))) for rank in range(size))
    parts = (result[first : first + stretch] for first in range(0, len(result), stretch))
    return all(np.array_equal(part, expected[: len(part)]) for part in parts)


def work(name: str, rank: int, size: int, ports: Sequence[int]) -> None:
    """Serve the conductor: for each line {"bytes", "repeats"} time that many repetitions."""
    library, _, kind = name.partition(" ")
    if library == "mpi":
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        rank, size = world.rank, world.size
    contestant = MAKERS[library](kind, rank, size, ports)
    contestant.barrier()
    if library != "mpi" or rank == 0:
        say({"ready": True})
    while True:
        line = sys.stdin.readline() if library != "mpi" else next_mpi_line(world)
        if not line:
            break
        order = json.loads(line)
        run = contestant.prepare(values_of(rank, order["bytes"] // 4))
        result = np.asarray(run())
        answer: dict[str, Any] = {"digest": hashlib.sha256(result.data).hexdigest(), "right": is_right(result, size)}
        del result
        # Processes that were all asleep may wake on one core; give them time to spread.
        for _ in range(max(1, order["repeats"] // 2)):
            run()
        seconds = []
        for _ in range(order["repeats"]):
            contestant.barrier()
            begin = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begin)
        del run
        answer["seconds"] = seconds
        answers = [answer] if library != "mpi" else world.gather(answer)
        if answers is not None:
            say({"answers": answers})
    contestant.close()


def next_mpi_line(world: Any) -> str:
    """Rank 0 reads a line for all. The others look now and then: a blocking receive would burn a core meanwhile."""
    if world.rank == 0:
        line = sys.stdin.readline()
        for other in range(1, world.size):
            world.send(line, other)
        return line
    while not world.iprobe(0):
        time.sleep(0.01)
    return str(world.recv(source=0))


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


# ---- the conductor


class Team:
    """The processes of one contestant."""

    def __init__(self, name: str, size: int, python: str) -> None:
        self.name = name
        ports = ",".join(str(port) for port in free_ports(size))
        command = [python, __file__, "--worker", name, "--ports", ports, "--size", str(size)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        if name == "mpi":
            launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(size)]
            environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
            commands = [[*launch, *command]]
        else:
            commands = [[*command, "--rank", str(rank)] for rank in range(size)]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            for command in commands
        ]

    def get_ready(self) -> None:
        if self.name in OURS:
            addresses = [self._hear(process)["address"] for process in self.processes]
            self._tell({"addresses": addresses})
        for process in self.processes:
            self._hear(process)

    def measure(self, num_bytes: int, repeats: int) -> list[dict[str, Any]]:
        """One answer for each rank."""
        self._tell({"bytes": num_bytes, "repeats": repeats})
        return [answer for process in self.processes for answer in self._hear(process)["answers"]]

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _tell(self, message: dict[str, Any]) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()

    def _hear(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                return dict(json.loads(line[len(MARK) :]))
        raise RuntimeError(f"a process of {self.name} ended with exit code {process.wait()}")


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def has_module(python: str, module: str) -> bool:
    """Whether that interpreter can import the module."""
    try:
        return subprocess.run([python, "-c", f"import {module}"], capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


def find_python(given: str | None, module: str) -> str | None:
    return next(
        (python for python in (given, sys.executable, "/usr/bin/python3") if python and has_module(python, module)),
        None,
    )


def repeats_for(num_bytes: int) -> int:
    return max(3, min(400, 64 * MEBIBYTE // num_bytes))


Figures = dict[tuple[str, int], float]
"""(contestant, bytes) -> median seconds."""


def conduct(names: dict[str, str], size: int, sizes: Sequence[int], rounds: int) -> Figures:
    """Measure all contestants (name -> interpreter) with `size` processes each."""
    teams = [Team(name, size, python) for name, python in names.items()]
    samples: dict[tuple[str, int], list[float]] = {}
    try:
        for team in teams:
            team.get_ready()
        for num_bytes in sizes:
            for turn in range(rounds):
                for team in teams[turn % len(teams) :] + teams[: turn % len(teams)]:
                    answers = team.measure(num_bytes, repeats_for(num_bytes))
                    check_answers(team.name, num_bytes, answers)
                    slowest = [max(times) for times in zip(*(answer["seconds"] for answer in answers), strict=True)]
                    samples.setdefault((team.name, num_bytes), []).extend(slowest)
            line = ", ".join(
                f"{team.name} {1e3 * statistics.median(samples[team.name, num_bytes]):.3f}" for team in teams
            )
            print(f"N = {size}, {text_of_size(num_bytes)}: {line} ms", flush=True)
    finally:
        for team in teams:
            team.close()
    return {key: statistics.median(values) for key, values in samples.items()}


def check_answers(name: str, num_bytes: int, answers: Sequence[dict[str, Any]]) -> None:
    if len({answer["digest"] for answer in answers}) != 1:
        raise SystemExit(f"{name}, {num_bytes} bytes: the ranks' results differ")
    if not all(answer["right"] for answer in answers):
        raise SystemExit(f"{name}, {num_bytes} bytes: the result is wrong")


def text_of_size(num_bytes: int) -> str:
    return f"{num_bytes // MEBIBYTE} MiB" if num_bytes >= MEBIBYTE else f"{num_bytes // KIBIBYTE} KiB"


def text_of_seconds(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def table(figures: Figures, names: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """Medians, then how many times faster ours are than each other contestant."""
    ratios = [(ours, other) for other in OTHERS for ours in OURS if ours in names and other in names]
    heads = [*names, *(f"{other} / {ours.removeprefix('paceline ')}" for ours, other in ratios)]
    lines = [f"| size | {' | '.join(heads)} |", "|---:|" + "---:|" * len(heads)]
    for num_bytes in sizes:
        cells = [text_of_seconds(figures[name, num_bytes]) for name in names]
        cells += [f"{figures[other, num_bytes] / figures[ours, num_bytes]:.1f}x" for ours, other in ratios]
        lines.append(f"| {text_of_size(num_bytes)} | {' | '.join(cells)} |")
    return lines


def shortfalls(figures: Figures) -> list[str]:
    """What two processes do not reach, one line each. Contestants that are absent are not asked for."""
    large, small = 64 * MEBIBYTE, 4 * KIBIBYTE
    shared, tcp = OURS
    wanted = [
        ("tensorflow ring", shared, LEAST_OVER_TENSORFLOW),
        ("gloo", shared, LEAST_OVER_GLOO),
        ("gloo", tcp, LEAST_OVER_GLOO_TCP),
    ]
    found = [
        f"64 MiB: {ours} is {figures[other, large] / figures[ours, large]:.2f}x {other}, wanted {least}x"
        for other, ours, least in wanted
        if (other, large) in figures and figures[other, large] / figures[ours, large] < least
    ]
    if figures.get((shared, small), 0.0) > MOST_SMALL_SECONDS:
        found.append(f"4 KiB: {text_of_seconds(figures[shared, small])}, wanted {text_of_seconds(MOST_SMALL_SECONDS)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gloo-python", help="an interpreter that has PyTorch")
    parser.add_argument("--mpi-python", help="an interpreter that has mpi4py")
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="in KiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="only these contestants")
    parser.add_argument("--check", action="store_true", help="fail when the targets are not reached")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ports", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.rank, options.size, [int(port) for port in options.ports.split(",")])
        return
    pythons = {
        **dict.fromkeys(OURS, sys.executable),
        "tensorflow ring": find_python(None, "tensorflow"),
        "gloo": find_python(options.gloo_python, "torch.distributed"),
        "mpi": find_python(options.mpi_python, "mpi4py.MPI"),
    }
    names = {name: python for name, python in pythons.items() if python and (not options.only or name in options.only)}
    sizes = [size * KIBIBYTE for size in options.sizes]
    text = [*HEADING.format(absent=", ".join(set(pythons) - set(names)) or "none", **machine()).splitlines(), ""]
    missed: list[str] = []
    for size in options.processes:
        figures = conduct(names, size, sizes, options.rounds)
        text += [f"## {size} processes", "", *table(figures, list(names), sizes), ""]
        missed += shortfalls(figures) if size == 2 else []
    if not options.only and list(options.sizes) == list(SIZES):
        RESULTS.write_text("\n".join(text))
    print("\n".join(text))
    if missed:
        print("not reached:", *missed, sep="\n  ")
        sys.exit(1 if options.check else 0)


HEADING = """# All-reduce of float32

Written by `benchmarks/all_reduce.py`. Medians over all repetitions of the slowest process; all contestants in one run,
in turns; load average before the run: {load}. {cores} cores, {memory} GiB of memory, {processor}, Linux {kernel},
Python {python}, numpy {numpy}. Absent: {absent}.
The results were compared over the ranks bit for bit, and with numpy's sum."""


def machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "cores": os.cpu_count(),
        "memory": round(memory),
        "processor": platform.machine(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "kernel": ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    main()
