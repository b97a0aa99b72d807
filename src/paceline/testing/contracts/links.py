"""What every `Link` promises, as tests. Inherit, and say how a pair of links is made."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from paceline.communication.transfer import SEGMENT_BYTES, DuplexLink, exchange
from paceline.errors import CommunicationError, GenerationOver, PeerLost, ProtocolError

Pair = tuple[DuplexLink, DuplexLink]
SIZES = (1, 7, 4096, SEGMENT_BYTES, SEGMENT_BYTES + 1, 3 * SEGMENT_BYTES + 17)


def pattern(num_bytes: int, seed: int = 0) -> memoryview:
    return memoryview(bytearray(np.random.default_rng(seed).bytes(num_bytes)))


def run_both(one: Callable[[], object], two: Callable[[], object]) -> None:
    """Run both at once; raise what either raised."""
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(one), pool.submit(two)]:
            future.result()


class LinkContract(ABC):
    """Both ends are used from threads of this process."""

    @abstractmethod
    def pair(self, *, timeout_seconds: float = 20.0) -> contextlib.AbstractContextManager[Pair]:
        """Rank 0's link to rank 1 and rank 1's link to rank 0; closed at the end."""

    @pytest.mark.parametrize("num_bytes", SIZES)
    def test_bytes_arrive_as_they_were_sent(self, num_bytes: int) -> None:
        with self.pair() as (one, two):
            sent, target = pattern(num_bytes), memoryview(bytearray(num_bytes))
            run_both(lambda: one.send(sent), lambda: two.receive_into(target))
            assert target == sent

    def test_nothing_is_sent_for_no_bytes(self) -> None:
        with self.pair() as (one, two):
            one.send(memoryview(b""))
            two.receive_into(memoryview(bytearray()))
            two.consume(0, lambda view: pytest.fail("nothing was sent"))

    def test_messages_keep_their_order(self) -> None:
        with self.pair() as (one, two):
            messages = [pattern(size, seed) for seed, size in enumerate((10, 100_000, 1, 700_000, 5))]
            targets = [memoryview(bytearray(len(message))) for message in messages]
            run_both(
                lambda: deque(map(one.send, messages)),
                lambda: deque(map(two.receive_into, targets)),
            )
            assert targets == messages

    def test_a_consumer_sees_all_bytes_in_pieces_that_start_at_multiples_of_eight(self) -> None:
        num_bytes = 3 * SEGMENT_BYTES + 17
        with self.pair() as (one, two):
            sent, seen, starts = pattern(num_bytes), bytearray(), []

            def consumer(view: memoryview) -> None:
                starts.append(len(seen))
                seen.extend(view)

            run_both(lambda: one.send(sent), lambda: two.consume(num_bytes, consumer))
            assert seen == sent
            assert all(start % 8 == 0 for start in starts)

    def test_two_peers_that_send_at_once_do_not_block_each_other(self) -> None:
        num_bytes = 16 * SEGMENT_BYTES
        with self.pair() as (one, two):
            sent = [pattern(num_bytes, 1), pattern(num_bytes, 2)]
            got = [memoryview(bytearray(num_bytes)) for _ in range(2)]

            def both_ways(link: DuplexLink, mine: int) -> None:
                pieces = [got[mine][i : i + SEGMENT_BYTES] for i in range(0, num_bytes, SEGMENT_BYTES)]
                exchange(link, sent[mine], link, pieces)

            run_both(lambda: both_ways(one, 0), lambda: both_ways(two, 1))
            assert got == sent[::-1]
            assert one.bytes_sent >= num_bytes <= one.bytes_received

    def test_what_was_sent_may_be_changed_after_send_returned(self) -> None:
        with self.pair() as (one, two):
            sent, target = pattern(1000), memoryview(bytearray(1000))
            expected = bytes(sent)
            one.send(sent)
            sent[:] = bytes(1000)
            two.receive_into(target)
            assert target == expected

    def test_abort_ends_a_wait_in_another_thread(self) -> None:
        with self.pair() as (one, _):
            timer = threading.Timer(0.05, one.abort, args=["the coordinator said so"])
            timer.start()
            with pytest.raises(GenerationOver, match="the coordinator said so"):
                one.receive_into(memoryview(bytearray(8)))
            timer.join()
            with pytest.raises(GenerationOver):
                one.send(memoryview(b"later"))

    def test_a_peer_that_closes_is_noticed_at_once(self) -> None:
        with self.pair() as (one, two):
            timer = threading.Timer(0.05, two.close)
            timer.start()
            with pytest.raises(CommunicationError):
                one.receive_into(memoryview(bytearray(8)))
            timer.join()

    def test_what_a_peer_sent_before_it_closed_is_not_lost(self) -> None:
        with self.pair() as (one, two):
            target = memoryview(bytearray(5))
            two.send(memoryview(b"adieu"))
            two.close()
            one.receive_into(target)
            assert bytes(target) == b"adieu"
            with pytest.raises(CommunicationError):
                one.receive_into(target)

    def test_a_peer_that_takes_nothing_ends_a_send_when_it_closes(self) -> None:
        with self.pair() as (one, two):
            timer = threading.Timer(0.05, two.close)
            timer.start()
            with pytest.raises(CommunicationError):
                one.send(pattern(64 * SEGMENT_BYTES))
            timer.join()

    def test_a_silent_peer_is_lost_after_the_time_out(self) -> None:
        with self.pair(timeout_seconds=0.1) as (one, _):
            with pytest.raises(PeerLost, match=r"silent for 0\.1 s") as caught:
                one.receive_into(memoryview(bytearray(8)))
            assert caught.value.peers == (1,)

    def test_a_frame_of_another_size_is_told_from_damage(self) -> None:
        with self.pair() as (one, two):
            one.send(pattern(10))
            with pytest.raises(ProtocolError, match="rank 0 sent 10 bytes where 8 were due"):
                two.receive_into(memoryview(bytearray(8)))
