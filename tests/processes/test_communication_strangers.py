"""Who comes too late, from elsewhere, or damaged: told from each other, refused, and never a hang."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from paceline.clock import Deadline
from paceline.communication.communicator import GroupCommunicator
from paceline.communication.listener import DataListener, Greeting
from paceline.communication.rendezvous import connect
from paceline.communication.transports import shared_memory
from paceline.errors import CommunicationError, CorruptFrame, GenerationOver, PeerLost
from paceline.testing.cluster import CREDENTIALS, group_of, listening, run_threads
from paceline.types import Group, WorkerIdentity
from paceline.wire.addresses import split_address
from paceline.wire.channels import dial
from paceline.wire.handshake import Credentials, NotAdmitted


@contextlib.contextmanager
def connected(
    groups: list[Group], listeners: list[DataListener], *, timeout_seconds: float = 20.0
) -> Iterator[list[GroupCommunicator]]:
    """One communicator for each listener, each with its own view of the group."""
    with contextlib.ExitStack() as stack:
        made = []
        for group, listener in zip(groups, listeners, strict=True):
            communicator = connect(group, listener.identity, listener, CREDENTIALS, timeout_seconds=timeout_seconds)
            stack.callback(communicator.close)
            made.append(communicator)
        yield made


def reduce(communicator: GroupCommunicator, length: int = 100) -> np.ndarray:
    out = np.empty(length, np.float32)
    communicator.all_reduce(np.ones(length, np.float32), out)
    return out


def test_a_member_of_an_older_generation_is_told_that_it_is_over() -> None:
    with listening(0) as old, listening(1) as ahead:
        group = group_of([old, ahead], transport="TCP", generation=4)
        ahead.begin(5)
        with connected([group], [old]) as (communicator,), pytest.raises(GenerationOver, match="generation 4 is over"):
            reduce(communicator)


def test_a_member_of_a_newer_generation_waits_until_it_begins_here() -> None:
    with listening(0) as ahead, listening(1) as late:
        group = group_of([ahead, late], transport="TCP", generation=7)
        with connected([group], [ahead]) as (first,):
            results: list[np.ndarray] = []
            thread = threading.Thread(target=lambda: results.append(reduce(first)))
            thread.start()
            late.begin(6)  # its old generation; the call for 7 stays parked
            with connected([group], [late]) as (second,):
                assert reduce(second)[0] == 2
                thread.join()
            assert results[0][0] == 2


def test_two_generations_of_the_same_processes_follow_each_other() -> None:
    with listening(0) as one, listening(1) as two:
        for generation in range(1, 6):
            group = group_of([one, two], transport="shared memory", generation=generation)
            with connected([group, group], [one, two]) as made:
                assert all(result[0] == 2 for result in run_threads([lambda c=c: reduce(c) for c in made], made))


def test_a_wrong_secret_is_refused_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as stack, caplog.at_level(logging.WARNING, "paceline.wire"):
        one = stack.enter_context(listening(0))
        other = DataListener(WorkerIdentity(1, 1), Credentials("test-job", b"another secret"))
        stack.callback(other.close)
        group = group_of([one, other], transport="TCP")
        made = stack.enter_context(connected([group], [one]))
        with pytest.raises(PeerLost, match="wrong secret"):
            reduce(made[0])
    assert any("wrong secret" in record.getMessage() for record in caplog.records)


def test_another_process_at_the_same_address_is_not_taken_for_the_member() -> None:
    with listening(0) as one, listening(1, incarnation=2) as restarted:
        group = group_of([one, restarted], transport="TCP")
        stale = dataclasses.replace(group.members[1], identity=WorkerIdentity(1, 1))
        group = dataclasses.replace(group, members=(group.members[0], stale))
        with connected([group], [one]) as (communicator,), pytest.raises(PeerLost, match="incarnation=2"):
            reduce(communicator)


def test_a_member_that_is_gone_before_the_first_word_is_lost_at_once() -> None:
    with listening(0) as one:
        with listening(1) as two:
            group = group_of([one, two], transport="shared memory")
        begin = time.monotonic()
        with connected([group], [one]) as (communicator,), pytest.raises(PeerLost, match="cannot connect"):
            reduce(communicator)
        assert time.monotonic() - begin < 5


def test_a_member_that_never_calls_is_lost_after_the_time_out() -> None:
    with listening(0) as silent, listening(1) as two:
        group = group_of([silent, two], transport="TCP")
        with (
            connected([group], [two], timeout_seconds=0.1) as (communicator,),
            pytest.raises(PeerLost, match=r"no call from it within 0\.1 s"),
        ):
            reduce(communicator)


@pytest.mark.parametrize("rank", [0, 1])
def test_abort_ends_the_making_of_a_link(rank: int) -> None:
    """Rank 0 dials a port where nobody answers the handshake; rank 1 waits for a call that never comes."""
    with listening(0) as one, listening(1) as two, socket.create_server(("127.0.0.1", 0)) as mute:
        group = group_of([one, two], transport="TCP")
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        group = dataclasses.replace(
            group, members=(group.members[0], dataclasses.replace(group.members[1], address=address))
        )
        with connected([group], [[one, two][rank]], timeout_seconds=60) as (communicator,):
            timer = threading.Timer(0.1, communicator.abort, args=["verdict"])
            timer.start()
            with pytest.raises(GenerationOver, match="verdict"):
                reduce(communicator)
            timer.join()


def test_strangers_on_the_data_port_disturb_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with listening(0) as one, listening(1) as two, caplog.at_level(logging.WARNING, "paceline.wire"):
        strangers = [socket.create_connection(split_address(two.address)) for _ in range(3)]
        strangers[0].send(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            strangers[0].recv(100)
        strangers[1].send(b"PCL")  # goes on saying nothing
        with pytest.raises(NotAdmitted, match="not the hello of a data connection"):
            dial(two.address, CREDENTIALS, b"something else", deadline=Deadline(5))
        group = group_of([one, two], transport="TCP")
        with connected([group, group], [one, two]) as made:
            assert all(result[0] == 2 for result in run_threads([lambda c=c: reduce(c) for c in made], made))
        for stranger in strangers:
            stranger.close()
    assert any("not a frame" in record.getMessage() for record in caplog.records)


def test_members_of_one_host_use_tcp_where_there_is_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "is_supported", lambda: False)
    with listening(0) as one, listening(1) as two:
        group = group_of([one, two], transport="shared memory")
        with connected([group, group], [one, two]) as made:
            run_threads([lambda c=c: reduce(c) for c in made], made)
            assert [communicator.describe() for communicator in made] == ["TCP to 1 peer"] * 2


def test_members_that_cannot_meet_over_a_unix_socket_use_tcp() -> None:
    """As two containers with one host name would: the name leads nowhere from there."""
    with listening(0) as one, listening(1) as two, relay(two.address) as pipe:
        group = group_of([one, two], transport="shared memory")
        seen_by_one = dataclasses.replace(
            group, members=(group.members[0], dataclasses.replace(group.members[1], address=pipe.address))
        )
        with connected([seen_by_one, group], [one, two]) as made:
            assert all(result[0] == 2 for result in run_threads([lambda c=c: reduce(c) for c in made], made))
            assert [communicator.describe() for communicator in made] == ["TCP to 1 peer"] * 2


@pytest.mark.parametrize("length", [100, 1_000_000])
@pytest.mark.parametrize("towards_listener", [True, False])
def test_a_bit_that_flips_on_the_way_is_found(length: int, towards_listener: bool) -> None:
    with listening(0) as one, listening(1) as two, relay(two.address) as pipe:
        group = group_of([one, two], transport="TCP")
        seen_by_one = dataclasses.replace(
            group, members=(group.members[0], dataclasses.replace(group.members[1], address=pipe.address))
        )
        with connected([seen_by_one, group], [one, two]) as made:
            run_threads([lambda c=c: reduce(c) for c in made], made)
            pipe.flip_bit(towards_listener=towards_listener)
            errors = run_threads([lambda c=c: failure_of(c, length) for c in made], made)
        # Who received the damage knows it; the other sees that it left.
        assert isinstance(errors[1 if towards_listener else 0], CorruptFrame)
        assert isinstance(errors[0 if towards_listener else 1], CommunicationError)


def failure_of(communicator: GroupCommunicator, length: int) -> CommunicationError:
    try:
        reduce(communicator, length)
        communicator.barrier()
    except CommunicationError as error:
        communicator.close()
        return error
    raise AssertionError("nothing was noticed")


class Relay:
    """Passes bytes on between a caller and `target`, and damages one of them when told to."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._flip: dict[bool, bool] = {True: False, False: False}
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="relay")]
        self._threads[0].start()

    def flip_bit(self, *, towards_listener: bool) -> None:
        """Damage the next bytes that go that way."""
        self._flip[towards_listener] = True

    def close(self) -> None:
        for sock in [self._server, *self._sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in [self._server, *self._sockets]:
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._server.accept()
                target = socket.create_connection(split_address(self._target))
                self._sockets += [caller, target]
                for source, sink, towards in ((caller, target, True), (target, caller, False)):
                    thread = threading.Thread(target=self._pump, args=[source, sink, towards], name="relay")
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, towards_listener: bool) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(65536)):
                if self._flip[towards_listener]:
                    self._flip[towards_listener] = False
                    data[len(data) // 2] ^= 4
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def relay(target: str) -> Iterator[Relay]:
    made = Relay(target)
    try:
        yield made
    finally:
        made.close()


def test_a_greeting_comes_back_as_it_was() -> None:
    greeting = Greeting(3, 2, WorkerIdentity(7, 4))
    assert Greeting.decode(greeting.encode()) == greeting
