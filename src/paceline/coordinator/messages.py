"""What travels between workers, agents and the coordinator: one small msgpack value each, never unpickled.

Each union below is one direction of one kind of connection. Next file: `inputs.py`, how they reach the pure part.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from paceline.coordinator.protocols import Replay, Report, Ruling, Stop, Verdict
from paceline.errors import ProtocolError
from paceline.observability import events
from paceline.types import Member, WorkerIdentity

# ------------------------------------------------------------------------------------------- hello: who is connecting


class WorkerHello(msgspec.Struct, frozen=True, tag="worker"):
    identity: WorkerIdentity


class AgentHello(msgspec.Struct, frozen=True, tag="agent"):
    host: str


Hello = WorkerHello | AgentHello

# --------------------------------------------------------------------------------------------- a worker says


class Join(msgspec.Struct, frozen=True, tag="join"):
    member: Member


class Meet(msgspec.Struct, frozen=True, tag="meet"):
    report: Report


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    pass


class RecordCall(msgspec.Struct, frozen=True, tag="record-call"):
    call: int
    result: bytes


class AtEnd(msgspec.Struct, frozen=True, tag="at-end"):
    """Its script has come to its end: it only waits for the others."""


class ForwardEvent(msgspec.Struct, frozen=True, tag="event"):
    name: str
    fields: dict[str, Any]


class Fail(msgspec.Struct, frozen=True, tag="fail"):
    summary: str
    traceback: str


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    pass


FromWorker = Join | Meet | Heartbeat | RecordCall | AtEnd | ForwardEvent | Fail | Leave

# --------------------------------------------------------------------------------------------- a worker is told


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """Answers `Join`."""

    generation: int
    expected_workers: int
    heartbeat_seconds: float


class Ruled(msgspec.Struct, frozen=True, tag="ruled"):
    """Answers `Meet`: the next group."""

    ruling: Ruling


class Replayed(msgspec.Struct, frozen=True, tag="replayed"):
    """Answers `Meet`: the call has ended, and perhaps the next ones too."""

    replays: tuple[Replay, ...]


class StartTimedOut(msgspec.Struct, frozen=True, tag="start-timed-out"):
    """Answers `Meet`: the others did not come."""

    message: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Answers anything that cannot be."""

    reason: str


class FencedOff(msgspec.Struct, frozen=True, tag="fenced-off"):
    """Answers anything from a process that was declared lost."""

    reason: str


class Received(msgspec.Struct, frozen=True, tag="received"):
    """Answers `Fail` and `Leave`."""


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Answers `Heartbeat`."""


class Awaiting(msgspec.Struct, frozen=True, tag="awaiting"):
    """Pushed to those who wait in `Meet`: for whom, and for how long already."""

    text: str


class Announced(msgspec.Struct, frozen=True, tag="announced"):
    """Pushed: someone waits to join; meet after the round in whose vote all have heard of this generation."""

    generation: int


class PushedVerdict(msgspec.Struct, frozen=True, tag="verdict"):
    verdict: Verdict


class PushedStop(msgspec.Struct, frozen=True, tag="stop"):
    stop: Stop


ToWorker = (
    Joined
    | Ruled
    | Replayed
    | StartTimedOut
    | Refused
    | FencedOff
    | Received
    | Alive
    | Awaiting
    | Announced
    | PushedVerdict
    | PushedStop
)

# --------------------------------------------------------------------------------------------- an agent says


class ProcessStarted(msgspec.Struct, frozen=True, tag="process-started"):
    identity: WorkerIdentity
    pid: int


class ProcessExited(msgspec.Struct, frozen=True, tag="process-exited"):
    identity: WorkerIdentity
    exit_code: int | None
    signal: str | None


class GaveUp(msgspec.Struct, frozen=True, tag="gave-up"):
    worker: int
    reason: str


FromAgent = ProcessStarted | ProcessExited | GaveUp

# --------------------------------------------------------------------------------------------- an agent is told


class StopWorkers(msgspec.Struct, frozen=True, tag="stop-workers"):
    """The job stops: start no worker any more. `immediate`: end those that run, now (first gently, then by force);
    otherwise they stop by themselves at the next round's end, and only those that have not joined yet need a signal."""

    reason: str
    immediate: bool
    exit_code: int


class Dismiss(msgspec.Struct, frozen=True, tag="dismiss"):
    """The job is complete: workers that still run (a replacement that was starting) are not needed. End them."""

    reason: str


class KillWorker(msgspec.Struct, frozen=True, tag="kill-worker"):
    """This process was ruled lost but may still exist (frozen, stuck): kill it by force, report its exit, and let the
    restart policy decide about the next."""

    worker: int
    incarnation: int
    reason: str


Order = StopWorkers | Dismiss | KillWorker

# --------------------------------------------------------------------------------------------- bytes


def _plain(value: Any) -> Any:
    """Numbers in events often come from numpy."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot travel in a message: {value!r}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_hello = msgspec.msgpack.Decoder(Hello)
_from_worker = msgspec.msgpack.Decoder(FromWorker)
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_agent = msgspec.msgpack.Decoder(FromAgent)
_order = msgspec.msgpack.Decoder(Order)


def encode(message: Hello | FromWorker | ToWorker | FromAgent | Order) -> bytes:
    return _encoder.encode(message)


def decode_hello(payload: bytes) -> WorkerHello | AgentHello:
    try:
        hello: WorkerHello | AgentHello = _hello.decode(payload)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a hello that cannot be read: {error}") from error
    return hello


def decode_from_worker(payload: bytes) -> FromWorker:
    try:
        message: FromWorker = _from_worker.decode(payload)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a worker's message that cannot be read: {error}") from error
    return message


def decode_to_worker(payload: bytes) -> ToWorker:
    try:
        message: ToWorker = _to_worker.decode(payload)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a coordinator's message that cannot be read: {error}") from error
    return message


def decode_from_agent(payload: bytes) -> FromAgent:
    try:
        message: FromAgent = _from_agent.decode(payload)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"an agent's message that cannot be read: {error}") from error
    return message


def decode_order(payload: bytes) -> Order:
    try:
        order: Order = _order.decode(payload)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"an order that cannot be read: {error}") from error
    return order


# --------------------------------------------------------------------------------------------- forwarded events


def forward(event: object) -> ForwardEvent:
    """An event of `observability.events` as a message."""
    if not isinstance(event, events.Event):
        raise TypeError(f"{event!r} is not an event of paceline.observability.events")
    fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    return ForwardEvent(type(event).__name__, fields)


def unwrap(message: ForwardEvent) -> events.Event:
    """The event that a worker forwarded. Raises `ProtocolError` when there is none of that name and those fields."""
    kind = getattr(events, message.name, None)
    if not (isinstance(kind, type) and issubclass(kind, events.Event)):
        raise ProtocolError(f"an event {message.name!r} is not known")
    try:
        event: events.Event = msgspec.convert(message.fields, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"an event {message.name} that cannot be read: {error}") from error
    return event
