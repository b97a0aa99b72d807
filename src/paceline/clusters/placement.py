"""Who gets what on one machine: cores, threads and GPUs divided among its workers. Pure.

Next file: `environment.py`, which tells each worker.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.clusters.detection import Machine


@dataclass(frozen=True)
class Place:
    """One worker's share of its host.

    Attributes:
        worker: its number in the job.
        local_id: its number on this host.
        threads: for each of TensorFlow's pools, and OpenMP's.
        cores: processors to keep to; empty for any.
        gpu: its device; None when the host has none.
        gpu_is_shared: another worker has the same one.
    """

    worker: int
    local_id: int
    threads: int
    cores: tuple[int, ...] = ()
    gpu: str | None = None
    gpu_is_shared: bool = False


def assign(
    machine: Machine,
    workers: tuple[int, ...],
    *,
    threads_per_worker: int | None = None,
    affinity: bool = True,
    deterministic: bool = False,
) -> tuple[Place, ...]:
    """A place for each of `workers`, all with the same number of threads, so that none is the slow one by design.

    Workers are pinned only when each can have a core of its own and the kernel gives us the cores whole: under a
    quota (a container's 2 of 64 cores) a fixed core may be another tenant's busy one.
    """
    count = len(workers)
    usable = machine.usable_cores
    threads = threads_per_worker or (1 if deterministic else max(1, usable // count))
    pinned = affinity and len(machine.cores) >= count and usable == len(machine.cores)
    return tuple(
        Place(
            worker=worker,
            local_id=local,
            threads=threads,
            cores=_share(machine.cores, local, count) if pinned else (),
            gpu=machine.gpus[local % len(machine.gpus)] if machine.gpus else None,
            gpu_is_shared=count > len(machine.gpus) > 0,
        )
        for local, worker in enumerate(workers)
    )


def _share(cores: tuple[int, ...], place: int, count: int) -> tuple[int, ...]:
    """Consecutive cores, all handed out, shares differing by at most one."""
    return cores[place * len(cores) // count : (place + 1) * len(cores) // count]
