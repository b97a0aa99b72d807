"""Who may talk: a mutual challenge and response, sans-I/O. Both sides prove that they know the job's secret.

    dialer   -> listener   its nonce, its job
    listener -> dialer     its nonce, its job
    dialer   -> listener   proof, hello
    listener -> dialer     proof, hello

    proof = HMAC-SHA256(secret, role | dialer's nonce | listener's nonce | job | hello)

The role keeps a proof from being sent back to its maker, fresh nonces keep an old one from being used again. The
secret never travels. A hello is a few bytes of the layer above (who I am), authenticated with the rest. What follows
the handshake is not encrypted: links that leave the machine room want TLS around them.

Next file: `waiting.py`, then `channels.py`, which runs this over a socket.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from paceline.errors import AuthenticationError, CorruptFrame, ProtocolError
from paceline.wire.frames import FrameDecoder, Kind, encode

Role = Literal["dialer", "listener"]
Admit = Callable[[bytes], "str | None"]

MAX_HELLO_BYTES = 16 * 1024
_MAX_JOB_ID_BYTES = 256
_NONCE_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Credentials:
    """What makes a process part of a job."""

    job_id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.secret:
            raise ValueError("a job's secret must not be empty")
        if len(self.job_id.encode()) > _MAX_JOB_ID_BYTES:
            raise ValueError(f"a job's id must not exceed {_MAX_JOB_ID_BYTES} bytes")


class NotAdmitted(ConnectionError):
    """The listener knows who we are and does not want to talk; the text says why."""


class _Step(enum.Enum):
    CHALLENGE = "challenge"
    PROOF = "proof"
    DONE = "done"


class Handshake:
    """One side of a handshake: send what `start` and `feed` return, feed what arrives, until `done`.

    Args:
        role: the dialer speaks first.
        hello: what to tell the other side about us.
        admit: on the listener, looks at the authenticated hello; a text refuses it with that reason.

    When `feed` raises, send `refusal` (if any) and close.
    """

    def __init__(self, role: Role, credentials: Credentials, hello: bytes, *, admit: Admit | None = None) -> None:
        if len(hello) > MAX_HELLO_BYTES:
            raise ValueError(f"a hello of {len(hello)} bytes exceeds {MAX_HELLO_BYTES}")
        self.role = role
        self.refusal = b""
        self.peer_hello = b""
        self._credentials = credentials
        self._hello = hello
        self._admit = admit
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._peer_nonce = b""
        self._step = _Step.CHALLENGE
        self._num_sent = 0
        self._decoder = FrameDecoder(limit=_PROOF_BYTES + MAX_HELLO_BYTES)

    @property
    def done(self) -> bool:
        return self._step is _Step.DONE

    @property
    def num_wanted(self) -> int:
        """How many bytes to read next; what lies beyond belongs to whoever reads after the handshake."""
        return self._decoder.num_missing

    def start(self) -> bytes:
        """What to send before anything has arrived."""
        return self._challenge() if self.role == "dialer" else b""

    def feed(self, data: bytes) -> bytes:
        """Take up to `num_wanted` bytes of the peer; return the answer to send (may be empty).

        Raises:
            ProtocolError: not a peer of ours at all.
            AuthenticationError: another job, or another secret.
            NotAdmitted: the listener's `admit` gave a reason against us.
        """
        try:
            frames = self._decoder.feed(data)
        except CorruptFrame as error:
            raise ProtocolError(f"a damaged handshake: {error}") from error
        if not frames:
            return b""
        frame = frames[0]
        match frame.kind:
            case Kind.HANDSHAKE:
                return (
                    self._take_challenge(frame.payload)
                    if self._step is _Step.CHALLENGE
                    else self._take_proof(frame.payload)
                )
            case Kind.REFUSED:
                raise self._told_refusal(frame.payload)
            case _:
                raise ProtocolError(f"a frame of kind {frame.kind} before the handshake was done")

    def _take_challenge(self, payload: bytes) -> bytes:
        self._peer_nonce = payload[:_NONCE_BYTES]
        if len(self._peer_nonce) != _NONCE_BYTES or len(payload) > _NONCE_BYTES + _MAX_JOB_ID_BYTES:
            raise ProtocolError("a malformed challenge")
        peer_job = payload[_NONCE_BYTES:].decode(errors="replace")
        if peer_job != self._credentials.job_id:
            text = f"the {self.role} belongs to job {self._credentials.job_id!r}, its peer to job {peer_job!r}"
            raise self._refuse(AuthenticationError(text))
        self._step = _Step.PROOF
        return self._challenge() if self.role == "listener" else self._proof()

    def _take_proof(self, payload: bytes) -> bytes:
        proof, hello = payload[:_PROOF_BYTES], payload[_PROOF_BYTES:]
        peer_role: Role = "listener" if self.role == "dialer" else "dialer"
        if not hmac.compare_digest(proof, self._sign(peer_role, hello)):
            raise self._refuse(AuthenticationError(f"wrong secret for job {self._credentials.job_id!r}"))
        reason = self._admit(hello) if self._admit is not None else None
        if reason is not None:
            raise self._refuse(NotAdmitted(reason))
        self.peer_hello = hello
        self._step = _Step.DONE
        return self._proof() if self.role == "listener" else b""

    def _challenge(self) -> bytes:
        return self._encode(Kind.HANDSHAKE, self._nonce + self._credentials.job_id.encode())

    def _proof(self) -> bytes:
        return self._encode(Kind.HANDSHAKE, self._sign(self.role, self._hello) + self._hello)

    def _sign(self, role: Role, hello: bytes) -> bytes:
        dialer, listener = (self._nonce, self._peer_nonce) if self.role == "dialer" else (self._peer_nonce, self._nonce)
        parts = (role.encode(), dialer, listener, self._credentials.job_id.encode(), hello)
        message = b"".join(struct.pack("<I", len(part)) + part for part in parts)
        return hmac.new(self._credentials.secret, message, hashlib.sha256).digest()

    def _encode(self, kind: Kind, payload: bytes) -> bytes:
        frame = encode(kind, payload, sequence=self._num_sent)
        self._num_sent += 1
        return frame

    def _refuse(self, error: Exception) -> Exception:
        """Prepare the word that tells the peer why, and give back `error` to raise."""
        tag = b"a" if isinstance(error, AuthenticationError) else b"n"
        self.refusal = self._encode(Kind.REFUSED, tag + str(error).encode()[:1000])
        return error

    def _told_refusal(self, payload: bytes) -> Exception:
        reason = payload[1:].decode(errors="replace")
        if payload[:1] == b"a":
            return AuthenticationError(f"refused by the {'listener' if self.role == 'dialer' else 'dialer'}: {reason}")
        return NotAdmitted(reason)
