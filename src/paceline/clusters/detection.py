"""What this machine has: its name, the cores and GPUs that this process may use, and the kernel's count of
out-of-memory kills. Pure functions read texts; thin ones fetch them. Next file: `placement.py`, which shares it out.
"""

from __future__ import annotations

import math
import os
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """What one host offers.

    Attributes:
        host: its name; workers with an equal one share memory.
        cores: numbers of the processors that this process may run on.
        quota: cores' worth of time that the control group allows; None without a limit.
        gpus: names as CUDA_VISIBLE_DEVICES takes them.
    """

    host: str
    cores: tuple[int, ...]
    quota: float | None = None
    gpus: tuple[str, ...] = ()

    @property
    def usable_cores(self) -> int:
        """Whole cores that can be kept busy; at least 1."""
        limit = len(self.cores) if self.quota is None else math.floor(self.quota + 0.01)
        return max(1, min(len(self.cores), limit))


def detect_machine() -> Machine:
    """Look at this machine. Takes a moment where a GPU driver must be asked."""
    return Machine(socket.gethostname(), detect_cores(), detect_quota(), detect_gpus(os.environ))


# ------------------------------------------------------------------------------------------------------------- cores


def detect_cores() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def detect_quota(root: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """The tightest limit among this process's control group and those around it."""
    groups = parse_cgroup_membership(_read(membership))
    limits = [parse_cpu_max(_read(path / "cpu.max")) for path in _nested(root, groups.get("", "/"))]
    for controller in ("cpu", "cpu,cpuacct"):
        if controller in groups:
            limits += [
                parse_cfs_quota(_read(path / "cpu.cfs_quota_us"), _read(path / "cpu.cfs_period_us"))
                for path in _nested(root / controller, groups[controller])
            ]
    return min((limit for limit in limits if limit is not None), default=None)


def parse_cgroup_membership(text: str) -> dict[str, str]:
    """The text of /proc/self/cgroup as controllers -> path; version 2's only group has the empty name.

    >>> parse_cgroup_membership("4:memory:/job\\n0::/job")
    {'memory': '/job', '': '/job'}
    """
    fields = (line.split(":", 2) for line in text.splitlines())
    return {field[1]: field[2] for field in fields if len(field) == 3}


def parse_cpu_max(text: str) -> float | None:
    """Version 2's cpu.max, "150000 100000" -> 1.5 cores; "max 100000" -> no limit."""
    quota, _, period = text.strip().partition(" ")
    return _ratio(quota, period)


def parse_cfs_quota(quota: str, period: str) -> float | None:
    """Version 1's two files; a quota of -1 is no limit."""
    return _ratio(quota.strip(), period.strip())


def _ratio(quota: str, period: str) -> float | None:
    if not (quota.isdigit() and period.isdigit()) or int(period) == 0:
        return None
    return int(quota) / int(period)


def _nested(root: Path, group: str) -> list[Path]:
    """The group's folder and those around it, up to `root`. In a container, only `root` may be there."""
    folder = root / group.strip("/")
    return [folder, *(parent for parent in folder.parents if parent == root or root in parent.parents)]


# -------------------------------------------------------------------------------------------------------------- GPUs


def detect_gpus(environment: Mapping[str, str], *, timeout_seconds: float = 20.0) -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES allows, or all that the driver names."""
    allowed = parse_visible_devices(environment.get("CUDA_VISIBLE_DEVICES"))
    if allowed is not None:
        return allowed
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=timeout_seconds, check=False
        ).stdout
    except FileNotFoundError:
        return gpus_of_driver(Path("/proc/driver/nvidia/gpus"))
    except (OSError, subprocess.TimeoutExpired):
        return ()  # a driver that hangs or fails cannot train either; `paceline info` shows that none was found
    return parse_gpu_listing(listing)


def parse_visible_devices(value: str | None) -> tuple[str, ...] | None:
    """What CUDA makes of the variable: entries up to the first bad one; None when it is not set.

    >>> parse_visible_devices("0,1"), parse_visible_devices(""), parse_visible_devices("0,-1,2")
    (('0', '1'), (), ('0',))
    """
    if value is None:
        return None
    entries: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        if not re.fullmatch(r"\d+|GPU-\S+|MIG-\S+", entry):
            break
        entries.append(entry)
    return tuple(entries)


def parse_gpu_listing(text: str) -> tuple[str, ...]:
    """`nvidia-smi -L` as device names: the index of a whole GPU, the UUIDs of a divided one's parts."""
    names: list[str] = []
    for line in text.splitlines():
        if whole := re.match(r"GPU (\d+):", line):
            names.append(whole.group(1))
        elif part := re.match(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)", line):
            if names and names[-1].isdigit():
                names.pop()  # a divided GPU is used through its parts only
            names.append(part.group(1))
    return tuple(names)


def gpus_of_driver(folder: Path) -> tuple[str, ...]:
    """One number per GPU that the kernel's driver shows, for machines without nvidia-smi."""
    try:
        return tuple(str(index) for index, _ in enumerate(sorted(folder.iterdir())))
    except OSError:
        return ()


# ------------------------------------------------------------------------------------------------------------ memory


def count_out_of_memory_kills(
    root: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup"), statistics: Path = Path("/proc/vmstat")
) -> int:
    """How often the kernel has killed for memory: in this control group, or, where that is not told, on this
    machine. Only a rise means something."""
    groups = parse_cgroup_membership(_read(membership))
    candidates = [folder / "memory.events" for folder in _nested(root, groups.get("", "/"))]
    if "memory" in groups:
        candidates += [folder / "memory.oom_control" for folder in _nested(root / "memory", groups["memory"])]
    for path in (*candidates, statistics):
        count = parse_out_of_memory_kills(_read(path))
        if count is not None:
            return count
    return 0


def parse_out_of_memory_kills(text: str) -> int | None:
    """The `oom_kill` line of memory.events, memory.oom_control or /proc/vmstat."""
    found = re.search(r"^oom_kill (\d+)$", text, flags=re.MULTILINE)
    return int(found.group(1)) if found else None


def _read(path: Path) -> str:
    """A kernel's file, or nothing where this kernel does not have it."""
    try:
        return path.read_text()
    except OSError:
        return ""
