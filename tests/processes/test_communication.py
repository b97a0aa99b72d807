"""TCP and shared memory keep the contracts of links and communicators, over real sockets between threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from paceline.communication.communicator import GroupCommunicator
from paceline.testing.cluster import Transport, make_group, make_links
from paceline.testing.contracts.communicators import CommunicatorContract
from paceline.testing.contracts.links import LinkContract, Pair


class _SocketLinkContract(LinkContract):
    transport: Transport

    @contextlib.contextmanager
    def pair(self, *, timeout_seconds: float = 20.0) -> Iterator[Pair]:
        with make_links(self.transport, timeout_seconds=timeout_seconds) as links:
            yield links


class TestTcpLink(_SocketLinkContract):
    transport = "TCP"


class TestSharedMemoryLink(_SocketLinkContract):
    transport = "shared memory"


class _SocketCommunicatorContract(CommunicatorContract):
    transport: Transport

    def group(
        self, size: int, *, timeout_seconds: float = 20.0
    ) -> contextlib.AbstractContextManager[list[GroupCommunicator]]:
        return make_group(size, transport=self.transport, timeout_seconds=timeout_seconds)


class TestTcpCommunicator(_SocketCommunicatorContract):
    transport = "TCP"


class TestSharedMemoryCommunicator(_SocketCommunicatorContract):
    transport = "shared memory"


class TestMixedCommunicator(_SocketCommunicatorContract):
    transport = "mixed"
