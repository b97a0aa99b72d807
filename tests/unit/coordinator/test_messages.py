"""Every message comes back as it was sent; what is none is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from paceline.coordinator import messages
from paceline.coordinator.protocols import Replay, Report, RoundState, Ruling, Settlement, Stop, Verdict
from paceline.errors import ProtocolError
from paceline.observability.events import DataSharded, GroupFormed, MemberJoined, RoundCommitted
from paceline.types import Group, Member, WorkerIdentity

WHO = WorkerIdentity(1, 2)
MEMBER = Member(WHO, "host", "10.0.0.1:4000", 77)
RULING = Ruling(Group(3, (MEMBER,), frozenset({WHO})), Settlement.COMMIT, "because")


@pytest.mark.parametrize(
    "message",
    [
        messages.Join(MEMBER),
        messages.Meet(Report(1, 2, 3, RoundState.VOTED, (WHO,), "why", False, False)),
        messages.Heartbeat(),
        messages.RecordCall(4, b"\x00result"),
        messages.Fail("ValueError", "Traceback"),
        messages.Leave(),
    ],
)
def test_a_workers_messages_come_back_as_they_were(message: Any) -> None:
    assert messages.decode_from_worker(messages.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        messages.Joined(1, 2, 0.5),
        messages.Ruled(RULING),
        messages.Replayed((Replay(0, b"result"), Replay(1, None))),
        messages.StartTimedOut("worker 1"),
        messages.Refused("why"),
        messages.FencedOff("why"),
        messages.Received(),
        messages.Alive(),
        messages.Awaiting("worker 1"),
        messages.Announced(4),
        messages.PushedVerdict(Verdict(3, (WHO,), "why")),
        messages.PushedStop(Stop("why", 1, True)),
    ],
)
def test_messages_to_a_worker_come_back_as_they_were(message: Any) -> None:
    assert messages.decode_to_worker(messages.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [messages.ProcessStarted(WHO, 5), messages.ProcessExited(WHO, None, "SIGKILL"), messages.GaveUp(1, "why")],
)
def test_an_agents_messages_come_back_as_they_were(message: Any) -> None:
    assert messages.decode_from_agent(messages.encode(message)) == message


@pytest.mark.parametrize(
    "order", [messages.StopWorkers("why", True, 1), messages.Dismiss("why"), messages.KillWorker(1, 2, "why")]
)
def test_orders_come_back_as_they_were(order: Any) -> None:
    assert messages.decode_order(messages.encode(order)) == order


@pytest.mark.parametrize("hello", [messages.WorkerHello(WHO), messages.AgentHello("host")])
def test_hellos_come_back_as_they_were(hello: Any) -> None:
    assert messages.decode_hello(messages.encode(hello)) == hello


@pytest.mark.parametrize(
    "event",
    [
        RoundCommitted(1, None, "fit", 2, 3, 4, 0.1, 0.2, 0.3, 0.4),
        GroupFormed(1, (0, 2), (2,), "why"),
        DataSharded("numpy", "global shuffle", None, (1, 2)),
    ],
)
def test_events_are_forwarded_with_their_types(event: Any) -> None:
    message = messages.decode_from_worker(messages.encode(messages.forward(event)))
    assert isinstance(message, messages.ForwardEvent)
    assert messages.unwrap(message) == event


def test_numbers_from_numpy_are_forwarded_as_plain_ones() -> None:
    event = MemberJoined(np.int64(1), 2, 3, np.float32(0.5), 4)  # type: ignore[arg-type]
    message = messages.decode_from_worker(messages.encode(messages.forward(event)))
    assert isinstance(message, messages.ForwardEvent)
    assert messages.unwrap(message) == MemberJoined(1, 2, 3, 0.5, 4)


@pytest.mark.parametrize(
    "decode",
    [
        messages.decode_hello,
        messages.decode_from_worker,
        messages.decode_to_worker,
        messages.decode_from_agent,
        messages.decode_order,
    ],
)
@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"type": "no such"}), msgspec.msgpack.encode([1, 2])]
)
def test_what_is_no_message_is_refused(decode: Any, payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode(payload)


@pytest.mark.parametrize(
    ("name", "fields"),
    [("NoSuchEvent", {}), ("emit", {}), ("Any", {}), ("GroupFormed", {}), ("GroupFormed", {"generation": "many"})],
)
def test_events_that_do_not_exist_are_refused(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match=r"is not known|cannot be read"):
        messages.unwrap(messages.ForwardEvent(name, fields))


def test_only_events_are_forwarded() -> None:
    with pytest.raises(TypeError, match="not an event"):
        messages.forward("text")
