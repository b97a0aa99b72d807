"""The frozen values that every floor shares: who works, and in which group. No behaviour lives here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class WorkerIdentity:
    """One process of a job. `worker` is the place that the launcher gave it (0..N-1) and survives a restart;
    `incarnation` counts the processes that have held that place (1 for the first)."""

    worker: int
    incarnation: int


@dataclass(frozen=True)
class Member:
    """A worker as its peers see it.

    Attributes:
        identity: who it is.
        host: name of the machine; two members with equal `host` share memory.
        address: "ip:port" where its data listener answers.
        pid: process id on its host, for messages to people.
    """

    identity: WorkerIdentity
    host: str
    address: str
    pid: int

    @property
    def worker(self) -> int:
        return self.identity.worker


@dataclass(frozen=True)
class Group:
    """Ordered members who talk to each other; `generation` is the number of this membership and only grows.

    A member's rank is its place in `members`. `newcomers` are the members that have not yet received the state of
    the others; they are never donors.
    """

    generation: int
    members: tuple[Member, ...]
    newcomers: frozenset[WorkerIdentity] = frozenset()

    @property
    def size(self) -> int:
        return len(self.members)

    def rank_of(self, identity: WorkerIdentity) -> int:
        """Place of `identity` in the group. Raises `ValueError` when it is not a member."""
        for rank, member in enumerate(self.members):
            if member.identity == identity:
                return rank
        raise ValueError(f"{identity} is not a member of generation {self.generation}")

    def local_rank_of(self, identity: WorkerIdentity) -> int:
        """Place of `identity` among the members on its own host."""
        rank = self.rank_of(identity)
        host = self.members[rank].host
        return sum(member.host == host for member in self.members[:rank])

    @property
    def donors(self) -> tuple[Member, ...]:
        """Members that hold the committed state."""
        return tuple(member for member in self.members if member.identity not in self.newcomers)
