"""The in-memory transport keeps the contracts of links and communicators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from paceline.communication.communicator import GroupCommunicator
from paceline.communication.transports.memory import MemoryLinks, MemoryNetwork
from paceline.testing.cluster import make_group
from paceline.testing.contracts.communicators import CommunicatorContract
from paceline.testing.contracts.links import LinkContract, Pair


class TestMemoryLink(LinkContract):
    @contextlib.contextmanager
    def pair(self, *, timeout_seconds: float = 20.0) -> Iterator[Pair]:
        network = MemoryNetwork()
        links = [MemoryLinks(network, rank, timeout_seconds=timeout_seconds) for rank in range(2)]
        yield links[0].to(1), links[1].to(0)
        for link in links:
            link.close()


class TestMemoryCommunicator(CommunicatorContract):
    def group(
        self, size: int, *, timeout_seconds: float = 20.0
    ) -> contextlib.AbstractContextManager[list[GroupCommunicator]]:
        return make_group(size, transport="memory", timeout_seconds=timeout_seconds)
