"""Channels and streams over real sockets: blocking and asyncio ends meet, strangers are refused, nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from paceline.clock import Deadline
from paceline.errors import AuthenticationError, CorruptFrame, GenerationOver, ProtocolError
from paceline.wire.channels import Channel, accept, dial
from paceline.wire.handshake import Credentials
from paceline.wire.streams import Stream, StreamServer, dial_stream, serve_streams
from paceline.wire.waiting import Interrupt

JOB = Credentials("job-1", b"secret")


@contextlib.contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[tuple[socket.socket, str]]:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        port = listener.getsockname()[1]
        yield listener, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def pair(host: str = "127.0.0.1") -> Iterator[tuple[Channel, Channel]]:
    accepted: list[Channel] = []
    with listening(host) as (listener, address):
        thread = threading.Thread(
            target=lambda: accepted.append(accept(listener.accept()[0], JOB, b"listener", deadline=Deadline(5)))
        )
        thread.start()
        dialed = dial(address, JOB, b"dialer", deadline=Deadline(5))
        thread.join()
    try:
        yield dialed, accepted[0]
    finally:
        dialed.close()
        accepted[0].close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_payloads_arrive_whole_and_in_order(host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("no IPv6 on this machine")
    with pair(host) as (one, two):
        assert (one.peer_hello, two.peer_hello) == (b"listener", b"dialer")
        payloads = [b"", b"a", bytes(3_000_000)]
        sender = threading.Thread(target=lambda: [one.send(payload) for payload in payloads])
        sender.start()
        assert [two.receive(5) for _ in payloads] == payloads
        sender.join()


def _has_ipv6() -> bool:
    try:
        with listening("::1"):
            return True
    except OSError:
        return False


def test_a_receive_that_timed_out_loses_nothing() -> None:
    with pair() as (one, two):
        with pytest.raises(TimeoutError):
            two.receive(0.01)
        one.send(b"late")
        assert two.receive(5) == b"late"


def test_a_closed_peer_is_noticed_at_once() -> None:
    with pair() as (one, two):
        one.close()
        with pytest.raises(ConnectionError):
            two.receive(30)
        with pytest.raises(ConnectionError):
            two.send(bytes(50_000_000))


def test_closing_wakes_a_receive_in_another_thread() -> None:
    with pair() as (one, _two):
        errors: list[BaseException] = []

        def receive() -> None:
            try:
                one.receive(30)
            except ConnectionError as error:
                errors.append(error)

        thread = threading.Thread(target=receive)
        thread.start()
        one.close()
        thread.join(5)
        assert len(errors) == 1


def test_a_peer_that_takes_nothing_ends_a_send_by_its_deadline() -> None:
    with pair() as (one, _two):
        one.send_timeout_seconds = 0.05
        with pytest.raises(ConnectionError, match=r"took nothing for 0\.05 s"):
            one.send(bytes(50_000_000))


def test_damaged_bytes_are_noticed() -> None:
    with pair() as (one, two):
        one.send(b"whole")
        assert two.receive(5) == b"whole"
        one.socket.send(b"PCL\x01" + bytes(60))
        with pytest.raises(CorruptFrame):
            two.receive(5)


def test_nobody_answers_a_dial_to_a_closed_port() -> None:
    with listening() as (_, address):
        pass
    with pytest.raises(ConnectionError, match="cannot connect"):
        dial(address, JOB, b"", deadline=Deadline(5))


def test_a_dial_to_a_silent_listener_ends_by_deadline_or_interrupt() -> None:
    with listening() as (_, address):
        with pytest.raises(TimeoutError):
            dial(address, JOB, b"", deadline=Deadline(0.05))
        interrupt = Interrupt()
        timer = threading.Timer(0.05, interrupt.set, args=["told to"])
        timer.start()
        with pytest.raises(GenerationOver, match="told to"):
            dial(address, JOB, b"", deadline=Deadline(30), interrupt=interrupt)
        timer.join()
        interrupt.close()


@contextlib.asynccontextmanager
async def echoing(**options: float) -> AsyncIterator[StreamServer]:
    async def echo(stream: Stream) -> None:
        while True:
            await stream.send(await stream.receive())

    server = await serve_streams(echo, host="127.0.0.1", port=0, credentials=JOB, hello=b"server", **options)
    try:
        yield server
    finally:
        await server.close()


def test_streams_and_channels_meet() -> None:
    async def scenario() -> None:
        async with echoing() as server:
            stream = await dial_stream(server.address, JOB, b"client", timeout_seconds=5)
            assert stream.peer_hello == b"server"
            for payload in (b"", b"a", bytes(2_000_000)):
                await stream.send(payload)
                assert await stream.receive() == payload
            await stream.close()

            def blocking() -> bytes:
                channel = dial(server.address, JOB, b"client", deadline=Deadline(5))
                try:
                    channel.send(b"hi")
                    return channel.receive(5)
                finally:
                    channel.close()

            assert await asyncio.get_running_loop().run_in_executor(None, blocking) == b"hi"

    asyncio.run(scenario())


def test_a_handler_may_speak_first() -> None:
    async def scenario() -> None:
        async def greet(stream: Stream) -> None:
            await stream.send(b"welcome " + stream.peer_hello)

        server = await serve_streams(greet, host="127.0.0.1", port=0, credentials=JOB, hello=b"")
        stream = await dial_stream(server.address, JOB, b"you", timeout_seconds=5)
        assert await stream.receive() == b"welcome you"
        with pytest.raises(ConnectionError):
            await stream.receive()
        await stream.close()
        await server.close()

    asyncio.run(scenario())


def test_bad_clients_are_refused_with_a_line_and_the_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with echoing(handshake_timeout_seconds=0.1) as server:
            with pytest.raises(AuthenticationError, match="wrong secret"):
                await dial_stream(server.address, Credentials("job-1", b"guess"), b"", timeout_seconds=5)
            with pytest.raises(AuthenticationError, match="job 'job-1'"):
                await dial_stream(server.address, Credentials("job-2", b"secret"), b"", timeout_seconds=5)
            for words in (b"GET / HTTP/1.1\r\n\r\n", b"", bytes(1_000_000)):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(words)
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                writer.close()
            stream = await dial_stream(server.address, JOB, b"", timeout_seconds=5)
            await stream.send(b"still here")
            assert await stream.receive() == b"still here"
            await stream.close()

    with caplog.at_level(logging.WARNING, "paceline.wire"):
        asyncio.run(scenario())
    refusals = [record.getMessage() for record in caplog.records if record.name == "paceline.wire"]
    assert len(refusals) == 5
    assert any("not a frame" in text for text in refusals)
    assert any("no handshake within 0.1 s" in text for text in refusals)


def test_a_dial_to_a_server_that_is_no_server_of_ours_is_refused() -> None:
    async def scenario() -> None:
        async def speak_http(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(speak_http, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ProtocolError, match="not a frame"):
            await dial_stream(f"127.0.0.1:{port}", JOB, b"", timeout_seconds=5)
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())
