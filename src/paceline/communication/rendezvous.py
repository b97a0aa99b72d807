"""How the members of a generation find each other: one listener for each process, and links made on first use.

The lower rank dials, the higher rank waits for the connection to arrive; the hello says for which generation and from
whom. Members of one host meet over a unix socket first and then share memory; where that does not work they use TCP,
and `describe` says so. Connections for generations that are over are refused; those for generations that have not
begun here are kept until they do.

`listener.py` has the thread that accepts. Next file: `communicator.py`.
"""

from __future__ import annotations

import os
import socket

from paceline.clock import Deadline
from paceline.communication.communicator import GroupCommunicator
from paceline.communication.listener import DataListener, Greeting, unix_name
from paceline.communication.transfer import DuplexLink, LinkKind
from paceline.communication.transports import shared_memory
from paceline.communication.transports.polling import PollWaiter
from paceline.communication.transports.tcp import TcpLink
from paceline.errors import AuthenticationError, GenerationOver, PeerLost, ProtocolError
from paceline.types import Group, Member, WorkerIdentity
from paceline.wire.addresses import split_address
from paceline.wire.channels import shake_hands, tune
from paceline.wire.handshake import Credentials, Handshake, NotAdmitted
from paceline.wire.waiting import connect as connect_socket

SPIN_SECONDS = 50e-6


def connect(
    group: Group,
    identity: WorkerIdentity,
    listener: DataListener | None,
    credentials: Credentials,
    *,
    timeout_seconds: float = 30.0,
) -> GroupCommunicator:
    """This member's means of talk in `group`. Does not wait: links are made on first use.

    Args:
        listener: of this process; it outlives the communicator. Generations below the group's are over for it now.
            None for a group of one.
        timeout_seconds: a peer that is silent for so long, while we wait for it, is lost.
    """
    links = PeerLinks(group, identity, listener, credentials, timeout_seconds=timeout_seconds)
    return GroupCommunicator(rank=group.rank_of(identity), size=group.size, generation=group.generation, links=links)


class PeerLinks:
    """The links of one member of a group, by rank."""

    def __init__(
        self,
        group: Group,
        identity: WorkerIdentity,
        listener: DataListener | None,
        credentials: Credentials,
        *,
        timeout_seconds: float,
    ) -> None:
        assert listener is not None or group.size == 1, "peers need a listener to find each other"
        self._group = group
        self._rank = group.rank_of(identity)
        self._listener = listener
        self._credentials = credentials
        self._links: dict[int, DuplexLink] = {}
        self._waiter = PollWaiter(timeout_seconds=timeout_seconds, spin_seconds=self._spin_seconds())
        if listener is not None:
            listener.begin(group.generation)

    @property
    def kinds(self) -> frozenset[LinkKind]:
        """The kinds of link that this group has, as far as every member can tell alike."""
        hosts = {member.host for member in self._group.members}
        if len(hosts) == 1 and shared_memory.is_supported():
            return frozenset({"shared memory"})
        return frozenset({"TCP"})

    def to(self, peer: int) -> DuplexLink:
        """The link to rank `peer`; the first call makes it. Raises `PeerLost`, `GenerationOver`."""
        link = self._links.get(peer)
        if link is None:
            self._waiter.check()
            link = self._links[peer] = self._dial(peer) if self._rank < peer else self._await(peer)
        return link

    def describe(self) -> str:
        """For people: "shared memory to 1 peer, TCP to 2"."""
        counts: dict[LinkKind, int] = {}
        for peer, member in enumerate(self._group.members):
            if peer != self._rank:
                kind = self._links[peer].kind if peer in self._links else self._expected_kind(member)
                counts[kind] = counts.get(kind, 0) + 1
        parts = [f"{kind} to {count}" for kind, count in sorted(counts.items(), reverse=True)]
        if not parts:
            return "no peers"
        first = f"{parts[0]} peer{'s' if not parts[0].endswith(' 1') else ''}"
        return ", ".join([first, *parts[1:]])

    @property
    def bytes_sent(self) -> int:
        return sum(link.bytes_sent for link in self._links.values())

    @property
    def bytes_received(self) -> int:
        return sum(link.bytes_received for link in self._links.values())

    def check(self) -> None:
        self._waiter.check()

    def abort(self, reason: str) -> None:
        self._waiter.abort(reason)
        if self._listener is not None:
            self._listener.wake()

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._waiter.abort("this generation's communicator is closed")
        self._waiter.close()

    def _expected_kind(self, member: Member) -> LinkKind:
        near = member.host == self._group.members[self._rank].host
        return (
            "shared memory"
            if near and self._listener is not None and self._listener.has_unix and shared_memory.is_supported()
            else "TCP"
        )

    def _spin_seconds(self) -> float:
        """Looking again before sleeping pays only while every member of this host has a core of its own."""
        host = self._group.members[self._rank].host
        neighbours = sum(member.host == host for member in self._group.members)
        return SPIN_SECONDS if neighbours <= (os.cpu_count() or 1) else 0.0

    def _dial(self, peer: int) -> DuplexLink:
        deadline = Deadline(self._waiter.timeout_seconds)
        member = self._group.members[peer]
        if self._expected_kind(member) == "shared memory":
            link = self._dial_near(peer, member, deadline)
            if link is not None:
                return link
        sock = self._connect(peer, split_address(member.address), deadline)
        return TcpLink(sock, peer, self._group.generation, self._waiter)

    def _dial_near(self, peer: int, member: Member, deadline: Deadline) -> DuplexLink | None:
        """Over the unix socket; None when that cannot be, whatever the reason: TCP will do, or tell what is wrong."""
        try:
            descriptors = shared_memory.make_descriptors()
        except OSError:
            return None
        try:
            sock = self._connect(peer, unix_name(member.address), deadline)
        except PeerLost:
            shared_memory.close_all(descriptors)
            return None
        except GenerationOver:
            shared_memory.close_all(descriptors)
            raise
        return shared_memory.create(sock, descriptors, peer, self._waiter)

    def _connect(self, peer: int, address: tuple[str, int] | str, deadline: Deadline) -> socket.socket:
        """A connection to `peer` that has been greeted and has answered as the one it should be."""
        hello = Greeting(self._group.generation, self._rank, self._group.members[self._rank].identity).encode()
        try:
            sock = connect_socket(address, deadline, self._waiter.interrupt)
            tune(sock)
            handshake = Handshake("dialer", self._credentials, hello)
            answer = shake_hands(sock, handshake, deadline, self._waiter.interrupt)
        except NotAdmitted as error:
            raise GenerationOver(str(error)) from error
        except (OSError, AuthenticationError, ProtocolError) as error:
            raise PeerLost((peer,), str(error)) from error
        identity = Greeting.decode(answer).identity
        if identity != self._group.members[peer].identity:
            sock.close()
            raise PeerLost((peer,), f"{identity} answers in its place")
        return sock

    def _await(self, peer: int) -> DuplexLink:
        deadline = Deadline(self._waiter.timeout_seconds)
        generation = self._group.generation
        try:
            assert self._listener is not None
            sock, greeting = self._listener.take(generation, peer, deadline, self._waiter.check)
        except OSError as error:
            raise PeerLost((peer,), str(error)) from error
        if greeting.identity != self._group.members[peer].identity:
            sock.close()
            raise PeerLost((peer,), f"{greeting.identity} called in its place")
        if sock.family == getattr(socket, "AF_UNIX", None):
            return shared_memory.receive(sock, peer, self._waiter, deadline)
        return TcpLink(sock, peer, generation, self._waiter)
