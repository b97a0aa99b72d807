"""A group of threads in one process: each runs the same function with a communicator of its own.

Over the in-memory transport it needs no socket and no time; over the real ones it is what the contract tests use.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

from paceline.communication.communicator import GroupCommunicator
from paceline.communication.listener import DataListener
from paceline.communication.rendezvous import PeerLinks, connect
from paceline.communication.transfer import DuplexLink
from paceline.communication.transports.memory import MemoryNetwork, connect_memory
from paceline.errors import CommunicationError
from paceline.types import Group, Member, WorkerIdentity
from paceline.wire.handshake import Credentials

T = TypeVar("T")
Transport = Literal["memory", "TCP", "shared memory", "mixed"]

CREDENTIALS = Credentials("test-job", b"test secret")


def run_group(
    size: int,
    body: Callable[[GroupCommunicator], T],
    *,
    transport: Transport = "memory",
    timeout_seconds: float = 20.0,
) -> list[T]:
    """Run `body(communicator)` on `size` threads; return what they return, in rank order.

    When one raises, its communicator is closed, which ends the others' waits; the first error that is no mere
    consequence of another is raised.
    """
    with make_group(size, transport=transport, timeout_seconds=timeout_seconds) as communicators:
        return run_threads([functools.partial(body, communicator) for communicator in communicators], communicators)


def run_threads(bodies: Sequence[Callable[[], T]], communicators: list[GroupCommunicator]) -> list[T]:
    """Run each body on a thread of its own; see `run_group`."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = bodies[rank]()
        except BaseException as error:
            errors.append(error)
            communicators[rank].close()

    threads = [threading.Thread(target=run, args=[rank], name=f"rank-{rank}") for rank in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, CommunicationError)), errors[0])
    return [results[rank] for rank in range(len(bodies))]


@contextlib.contextmanager
def make_group(
    size: int, *, transport: Transport, timeout_seconds: float = 20.0, generation: int = 1
) -> Iterator[list[GroupCommunicator]]:
    """The communicators of one generation, in rank order; closed at the end."""
    with contextlib.ExitStack() as stack:
        if transport == "memory":
            network = MemoryNetwork()
            made = [
                connect_memory(network, rank, size, generation=generation, timeout_seconds=timeout_seconds)
                for rank in range(size)
            ]
        else:
            listeners = [stack.enter_context(listening(worker)) for worker in range(size)]
            group = group_of(listeners, transport=transport, generation=generation)
            made = [
                connect(group, listener.identity, listener, CREDENTIALS, timeout_seconds=timeout_seconds)
                for listener in listeners
            ]
        for communicator in made:
            stack.callback(communicator.close)
        yield made


@contextlib.contextmanager
def make_links(transport: Transport, *, timeout_seconds: float = 20.0) -> Iterator[tuple[DuplexLink, DuplexLink]]:
    """Rank 0's link to rank 1 and rank 1's link to rank 0, over sockets; closed at the end."""
    with listening(0) as one, listening(1) as two, contextlib.ExitStack() as stack:
        group = group_of([one, two], transport=transport)
        links = [
            PeerLinks(group, listener.identity, listener, CREDENTIALS, timeout_seconds=timeout_seconds)
            for listener in (one, two)
        ]
        for made in links:
            stack.callback(made.close)
        yield links[0].to(1), links[1].to(0)


@contextlib.contextmanager
def listening(worker: int, *, incarnation: int = 1) -> Iterator[DataListener]:
    """A data listener on loopback, closed at the end."""
    listener = DataListener(WorkerIdentity(worker, incarnation), CREDENTIALS)
    try:
        yield listener
    finally:
        listener.close()


def group_of(listeners: list[DataListener], *, transport: Transport, generation: int = 1) -> Group:
    """The group of these listeners. Members "on different hosts" use TCP; in a mixed group every two share a host."""
    per_host = {"TCP": 1, "shared memory": len(listeners), "mixed": 2, "memory": 1}[transport]
    members = tuple(
        Member(listener.identity, f"host-{rank // per_host}", listener.address, os.getpid())
        for rank, listener in enumerate(listeners)
    )
    return Group(generation, members)
