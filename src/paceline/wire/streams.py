"""The asyncio twin of `channels.py`, for servers with many peers: dial or serve, shake hands, exchange payloads.

A stranger, a foreign job or a silent client is refused with one line in the log and costs the server nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from paceline.errors import PacelineError
from paceline.wire.addresses import join_address, split_address
from paceline.wire.channels import tune
from paceline.wire.frames import MAX_MESSAGE_BYTES, Frame, FrameDecoder, Kind, encode
from paceline.wire.handshake import Credentials, Handshake

logger = logging.getLogger("paceline.wire")

HANDSHAKE_TIMEOUT_SECONDS = 10.0
_RECEIVE_BYTES = 256 * 1024


class Stream:
    """An authenticated connection that carries payloads, for one event loop. One task receives; any task may send."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer_hello: bytes,
        *,
        send_timeout_seconds: float = 30.0,
    ) -> None:
        self.peer_hello = peer_hello
        self.send_timeout_seconds = send_timeout_seconds
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder(limit=MAX_MESSAGE_BYTES)
        self._arrived: list[Frame] = []
        self._num_sent = 0

    @property
    def peer_address(self) -> str:
        return _address_of(self._writer)

    async def send(self, payload: bytes) -> None:
        """Send one payload. Payloads leave in the order of the calls. Raises `ConnectionError` when the peer is gone
        or takes nothing for `send_timeout_seconds`."""
        if self._writer.is_closing():
            raise ConnectionError("the connection is closed")
        self._writer.write(encode(Kind.MESSAGE, payload, sequence=self._num_sent))
        self._num_sent += 1
        try:
            await asyncio.wait_for(self._writer.drain(), self.send_timeout_seconds)
        except asyncio.TimeoutError as error:
            self._writer.transport.abort()
            raise ConnectionError(f"the peer took nothing for {self.send_timeout_seconds:.3g} s") from error
        except OSError as error:
            raise ConnectionError(f"the connection broke: {error}") from error

    async def receive(self) -> bytes:
        """The next payload. May be cancelled: nothing is lost. Raises `ConnectionError` when the peer is gone,
        `CorruptFrame` and `ProtocolError` when what arrived cannot be used."""
        while not self._arrived:
            try:
                data = await self._reader.read(_RECEIVE_BYTES)
            except OSError as error:
                raise ConnectionError(f"the connection broke: {error}") from error
            if not data:
                raise ConnectionError("the peer closed the connection")
            self._arrived = self._decoder.feed(data)
        return self._arrived.pop(0).payload

    async def close(self) -> None:
        """Send what was written, then close. A peer that takes nothing does not hold this up."""
        await _close(self._writer)


Handler = Callable[[Stream], Awaitable[None]]


class StreamServer:
    """Listens until closed; each authenticated peer gets a task that runs the handler."""

    def __init__(self, handler: Handler, credentials: Credentials, hello: bytes, handshake_timeout: float) -> None:
        self._handler = handler
        self._credentials = credentials
        self._hello = hello
        self._handshake_timeout = handshake_timeout
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.host = ""
        self.port = 0

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    async def start(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._on_connection, host, port)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        """Stop listening, cancel the handlers, close their connections, wait until all of it is done."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # `close` ended this task; asyncio would log the cancellation of a connection's task as an error.
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _tune(writer)
        handshake = Handshake("listener", self._credentials, self._hello)
        try:
            hello = await asyncio.wait_for(_shake_hands(reader, writer, handshake), self._handshake_timeout)
        except (PacelineError, OSError, asyncio.TimeoutError) as error:
            reason = str(error) or f"no handshake within {self._handshake_timeout:.3g} s"
            logger.warning("refused a connection from %s: %s", _address_of(writer), reason)
            return
        stream = Stream(reader, writer, hello)
        try:
            await self._handler(stream)
            await stream.close()
        except ConnectionError as error:
            logger.debug("the connection from %s ended: %s", stream.peer_address, error)
        except PacelineError as error:
            logger.warning("closed the connection from %s: %s", stream.peer_address, error)
        except Exception:
            logger.exception("the handler of the connection from %s failed", stream.peer_address)


async def serve_streams(
    handler: Handler,
    *,
    host: str,
    port: int,
    credentials: Credentials,
    hello: bytes,
    handshake_timeout_seconds: float = HANDSHAKE_TIMEOUT_SECONDS,
) -> StreamServer:
    """Listen on `host`:`port` (0 picks a free port). Raises `OSError` when the port is taken."""
    server = StreamServer(handler, credentials, hello, handshake_timeout_seconds)
    await server.start(host, port)
    return server


async def dial_stream(address: str, credentials: Credentials, hello: bytes, *, timeout_seconds: float) -> Stream:
    """Connect to "host:port" and shake hands.

    Raises `ConnectionError`, `TimeoutError`, `AuthenticationError` and `ProtocolError`.
    """
    try:
        return await asyncio.wait_for(_dial(address, credentials, hello), timeout_seconds)
    except asyncio.TimeoutError as error:
        raise TimeoutError(f"{address} did not answer within {timeout_seconds:.3g} s") from error


async def _dial(address: str, credentials: Credentials, hello: bytes) -> Stream:
    try:
        reader, writer = await asyncio.open_connection(*split_address(address))
    except OSError as error:
        raise ConnectionError(f"cannot connect to {address}: {error}") from error
    _tune(writer)
    try:
        return Stream(reader, writer, await _shake_hands(reader, writer, Handshake("dialer", credentials, hello)))
    except BaseException:
        writer.transport.abort()
        raise


async def _shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handshake: Handshake) -> bytes:
    try:
        writer.write(handshake.start())
        while not handshake.done:
            data = await reader.read(handshake.num_wanted)
            if not data:
                raise ConnectionError("the peer closed the connection during the handshake")
            writer.write(handshake.feed(data))
        await writer.drain()
    except (PacelineError, ConnectionError):
        if handshake.refusal:
            writer.write(handshake.refusal)
            await _close(writer)
        raise
    return handshake.peer_hello


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), 1.0)
    except (OSError, asyncio.TimeoutError):
        writer.transport.abort()


def _tune(writer: asyncio.StreamWriter) -> None:
    tune(writer.get_extra_info("socket"))


def _address_of(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return join_address(*peer[:2]) if peer else "a peer that is gone"
