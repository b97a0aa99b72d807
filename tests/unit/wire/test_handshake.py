"""The handshake: both sides learn the other's hello, or are told why not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import AuthenticationError, ProtocolError
from paceline.wire.frames import Kind, encode
from paceline.wire.handshake import Credentials, Handshake, NotAdmitted

JOB = Credentials("job-1", b"secret")


def run(dialer: Handshake, listener: Handshake) -> None:
    """Carry bytes between the two until both are done."""
    to_listener = dialer.start()
    while not (dialer.done and listener.done):
        to_dialer = b""
        while to_listener:
            count = listener.num_wanted
            to_dialer += listener.feed(to_listener[:count])
            to_listener = to_listener[count:]
        while to_dialer:
            count = dialer.num_wanted
            to_listener += dialer.feed(to_dialer[:count])
            to_dialer = to_dialer[count:]


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_both_sides_learn_the_others_hello(one: bytes, two: bytes) -> None:
    dialer, listener = Handshake("dialer", JOB, one), Handshake("listener", JOB, two)
    run(dialer, listener)
    assert (dialer.peer_hello, listener.peer_hello) == (two, one)


def test_a_wrong_secret_is_refused_and_the_dialer_is_told() -> None:
    dialer, listener = Handshake("dialer", Credentials("job-1", b"guess"), b""), Handshake("listener", JOB, b"")
    with pytest.raises(AuthenticationError, match="wrong secret"):
        run(dialer, listener)
    assert not listener.done
    with pytest.raises(AuthenticationError, match="refused by the listener: wrong secret"):
        dialer.feed(listener.refusal)


def test_a_listener_without_the_secret_is_refused_too() -> None:
    dialer = Handshake("dialer", JOB, b"")
    impostor = Handshake("listener", Credentials("job-1", b"guess"), b"")
    impostor._sign = lambda role, hello: bytes(32)  # type: ignore[method-assign]
    dialer.start()
    challenge = encode(Kind.HANDSHAKE, bytes(32) + b"job-1")
    dialer.feed(challenge)
    with pytest.raises(AuthenticationError):
        dialer.feed(encode(Kind.HANDSHAKE, bytes(32) + b"hello", sequence=1))


def test_a_proof_cannot_be_sent_back_to_its_maker() -> None:
    dialer = Handshake("dialer", JOB, b"")
    challenge = dialer.start()
    proof = dialer.feed(challenge)
    with pytest.raises(AuthenticationError):
        dialer.feed(proof)


def test_another_job_is_named() -> None:
    dialer, listener = Handshake("dialer", Credentials("job-2", b"secret"), b""), Handshake("listener", JOB, b"")
    with pytest.raises(AuthenticationError, match=r"job 'job-1', its peer to job 'job-2'"):
        run(dialer, listener)


def test_a_listener_may_decline_by_the_hello() -> None:
    listener = Handshake("listener", JOB, b"", admit=lambda hello: f"no {hello.decode()} here")
    dialer = Handshake("dialer", JOB, b"strangers")
    with pytest.raises(NotAdmitted, match="no strangers here"):
        run(dialer, listener)
    with pytest.raises(NotAdmitted, match="no strangers here"):
        dialer.feed(listener.refusal)


@given(st.binary(min_size=3, max_size=100).filter(lambda data: not b"PCL".startswith(data[:3])))
def test_garbage_is_not_a_peer(garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        Handshake("listener", JOB, b"").feed(garbage)


def test_little_is_read_before_the_peer_is_known() -> None:
    with pytest.raises(ProtocolError, match="at most"):
        Handshake("listener", JOB, b"").feed(encode(Kind.HANDSHAKE, bytes(100_000))[:64])


def test_a_secret_never_shows_in_a_text() -> None:
    assert "secret'" not in repr(JOB)
