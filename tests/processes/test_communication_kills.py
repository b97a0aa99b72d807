"""Members that die or freeze in the middle of talk: the survivors are told at once, whichever way they talk."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).parent / "communication_worker.py"


class Member:
    """One worker process and what it says."""

    def __init__(self, rank: int, size: int, transport: str, timeout_seconds: float, num_elements: int) -> None:
        arguments = [str(rank), str(size), transport, str(timeout_seconds), str(num_elements)]
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the worker ended with exit code {self.process.wait(10)}"
        return dict(json.loads(line))

    def tell(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def members(size: int, transport: str, *, timeout_seconds: float = 60.0, num_elements: int) -> Iterator[list[Member]]:
    """A group that is all-reducing."""
    started = [Member(rank, size, transport, timeout_seconds, num_elements) for rank in range(size)]
    try:
        addresses = [member.hear()["address"] for member in started]
        for member in started:
            member.tell(addresses)
        kind = "TCP" if transport == "tcp" else "shared memory"
        for member in started:
            first = member.hear()
            assert first["sum"] == sum(range(size))
            assert first["transport"].startswith(f"{kind} to {size - 1} peer")
        yield started
    finally:
        for member in started:
            member.process.kill()
            member.process.wait()
            for pipe in (member.process.stdin, member.process.stdout):
                assert pipe is not None
                pipe.close()


@pytest.mark.parametrize("transport", ["tcp", "shared"])
@pytest.mark.parametrize("num_elements", [64, 4_000_000])
def test_a_kill_in_the_middle_of_an_all_reduce_is_known_within_a_second(transport: str, num_elements: int) -> None:
    with members(3, transport, num_elements=num_elements) as (first, victim, last):
        killed = time.monotonic()
        victim.process.send_signal(signal.SIGKILL)
        told = [first.hear(), last.hear()]
        assert all(word["time"] - killed < 1.0 for word in told), told
        assert {word["error"] for word in told} <= {"PeerLost", "GenerationOver"}
        # Whoever noticed first knows whom; the others may hear it from that one.
        assert [1] in [word["peers"] for word in told], told
        assert all(member.process.wait(10) == 0 for member in (first, last))


@pytest.mark.parametrize("transport", ["tcp", "shared"])
def test_of_two_members_the_survivor_names_the_other(transport: str) -> None:
    with members(2, transport, num_elements=1_000_000) as (victim, survivor):
        victim.process.send_signal(signal.SIGKILL)
        word = survivor.hear()
        assert (word["error"], word["peers"]) == ("PeerLost", [0])
        assert "connection closed" in word["text"]


@pytest.mark.parametrize("transport", ["tcp", "shared"])
def test_a_frozen_member_is_lost_after_the_time_out(transport: str) -> None:
    with members(2, transport, num_elements=1_000_000, timeout_seconds=1.0) as (frozen, survivor):
        frozen.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        word = survivor.hear()
        assert (word["error"], word["peers"]) == ("PeerLost", [0])
        assert "silent for 1 s" in word["text"]
        assert 0.9 < word["time"] - begin < 3.0
        frozen.process.send_signal(signal.SIGCONT)
        assert frozen.hear()["error"] in ("PeerLost", "GenerationOver")
