"""What a test may not leave behind: processes, threads, listening sockets, shared memory.

`take_stock` lists what is there, `wait_for_none` tells what came since and does not go away by itself. Things of other
programs on this machine do not count: a process is ours when it carries our mark in its environment or has our process
among its parents; an entry of /dev/shm is ours when no process but ours has it open.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "PACELINE_TEST_RUN"
_SHARED_MEMORY = Path("/dev/shm")
# Helpers that Python itself starts once and keeps until the interpreter ends.
_KEPT_BY_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True)
class Stock:
    """What is there at one moment."""

    processes: frozenset[int]
    threads: frozenset[threading.Thread]
    sockets: frozenset[tuple[str, int]]
    shared_memory: frozenset[str]
    memory_files: int


def take_stock() -> Stock:
    """List what is there now. Costs about a millisecond."""
    return Stock(
        processes=frozenset(_all_processes()),
        threads=frozenset(threading.enumerate()),
        sockets=frozenset(_listening_sockets()),
        shared_memory=frozenset(_shared_memory_entries()),
        memory_files=_num_memory_files(),
    )


def wait_for_none(before: Stock, *, seconds: float) -> list[str]:
    """What came since `before` and is still there when `seconds` have passed; one line each. Empty is good."""
    end = time.monotonic() + seconds
    found = _leftovers(before)
    if found:
        gc.collect()
    pause = threading.Event()
    while found and time.monotonic() < end:
        pause.wait(0.02)
        found = _leftovers(before)
    return found


def _leftovers(before: Stock) -> list[str]:
    return [
        *_new_processes(before.processes),
        *_new_threads(before.threads),
        *(f"a socket that listens on {ip}:{port}" for ip, port in sorted(_listening_sockets() - before.sockets)),
        *_new_shared_memory(before.shared_memory),
        *_new_memory_files(before.memory_files),
    ]


def _all_processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _new_processes(before: frozenset[int]) -> list[str]:
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for pid in sorted(_all_processes() - before):
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                if process.ppid() == os.getpid():
                    found.append(f"process {pid}: it has ended, but nobody waited for it")
                continue
            command = " ".join(process.cmdline())
            ours = process.ppid() == os.getpid() or mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if ours and not any(helper in command for helper in _KEPT_BY_PYTHON):
                found.append(f"process {pid} ({process.status()}): {command[:200]}")
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or belongs to somebody else
    return found


def _new_threads(before: frozenset[threading.Thread]) -> list[str]:
    return [
        f"thread {thread.name!r} ({'daemon' if thread.daemon else 'not a daemon'})"
        for thread in threading.enumerate()
        if thread not in before and thread.is_alive() and (not thread.daemon or thread.name.startswith("paceline"))
    ]


def _listening_sockets() -> set[tuple[str, int]]:
    return {
        (connection.laddr.ip, connection.laddr.port)
        for connection in psutil.Process().net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }


def _shared_memory_entries() -> set[str]:
    try:
        return set(os.listdir(_SHARED_MEMORY))
    except FileNotFoundError:
        return set()


def _new_shared_memory(before: frozenset[str]) -> list[str]:
    new = sorted(_shared_memory_entries() - before)
    return [f"shared memory {_SHARED_MEMORY / name}" for name in new if not _is_used_by_others(_SHARED_MEMORY / name)]


def _is_used_by_others(path: Path) -> bool:
    """True when a process that is not of this test run has `path` mapped. Slow, but only asked when there is a find."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    needle = str(path).encode()
    for pid in _all_processes() - {os.getpid()}:
        try:
            if needle in Path(f"/proc/{pid}/maps").read_bytes():
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if mark not in environment:
                    return True
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or belongs to somebody else
    return False


def _num_memory_files() -> int:
    """Open files of this process that live in memory alone and bear our name (`memfd_create`)."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:paceline")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return count


def _new_memory_files(before: int) -> list[str]:
    more = _num_memory_files() - before
    return [f"{more} open memory file{'s' if more != 1 else ''} named paceline*"] if more > 0 else []
