"""Every exception of Paceline, in one tree. It splits by remedy: what can be retried, what must stop.

PacelineError
├── CommunicationError            retry: the group meets the coordinator and goes on without the lost
│   ├── PeerLost                  a peer's connection closed, was silent past its deadline, or was ruled lost
│   ├── GenerationOver            this generation was ended by a verdict; old frames are dropped
│   └── CorruptFrame              a checksum did not match
├── JobStopped                    stop: the job ends, and this process is not the reason
├── Fenced                        stop: this process was replaced; it must end (its agent starts another)
├── CoordinatorLost               stop: the coordinator cannot be reached within its deadline
├── AuthenticationError           refuse: wrong secret, foreign job
├── ProtocolError                 refuse: garbage, or a message that cannot be
└── UserError                     stop: what the user gave cannot work; says what, where and what to do
    ├── ConfigError               an argument, option, variable or file
    ├── RanksDisagree             the ranks' models, data or calls differ; carries one table
    └── StartTimeout              a worker did not start in time
"""

from __future__ import annotations


class PacelineError(Exception):
    """Base of all errors that Paceline raises on purpose."""


class CommunicationError(PacelineError):
    """Talk failed; nothing has changed, and the round can be settled with the coordinator."""


class PeerLost(CommunicationError):
    """A peer does not answer.

    Args:
        peers: ranks (in the generation that was talking) that are suspected.
        reason: what was seen, for people: "connection closed", "silent for 30 s".
    """

    def __init__(self, peers: tuple[int, ...], reason: str) -> None:
        super().__init__(f"lost rank{'s' if len(peers) != 1 else ''} {', '.join(map(str, peers))}: {reason}")
        self.peers = peers
        self.reason = reason


class GenerationOver(CommunicationError):
    """The coordinator ended this generation; meet it to learn of the next."""


class CorruptFrame(CommunicationError):
    """A frame's checksum did not match its bytes."""


class JobStopped(PacelineError):
    """The job was told to stop, or another worker's failure stopped it.

    Args:
        reason: one line for people.
        exit_code: what this process should exit with.
    """

    def __init__(self, reason: str, exit_code: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.exit_code = exit_code


class Fenced(PacelineError):
    """This process was declared lost and replaced: it may not take part any more."""


class CoordinatorLost(PacelineError):
    """The coordinator cannot be reached."""


class AuthenticationError(PacelineError):
    """The other side does not know the job's secret, or belongs to another job."""


class ProtocolError(PacelineError):
    """The other side sent something that the protocol does not allow."""


class UserError(PacelineError):
    """Something that the user can put right. The message says what, where, and what to do."""


class ConfigError(UserError, ValueError):
    """An argument, option, variable or file cannot be used.

    Args:
        message: what is wrong, with which value, and what to do.
        field: the field of the value that was being made, so that the caller can say where it came from.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class RanksDisagree(UserError):
    """Ranks built different models, data or calls; the message holds one table, the same on every rank."""


class StartTimeout(UserError):
    """A worker did not start within the time that was given."""
