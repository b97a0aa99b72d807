"""What every `Communicator` promises, as tests. Inherit, and say how a group is made."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from paceline.communication.collectives.tree import TreeSum
from paceline.communication.communicator import GroupCommunicator
from paceline.errors import CommunicationError, GenerationOver
from paceline.testing.cluster import run_threads

DTYPES: tuple[Any, ...] = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, np.uint8)
LENGTHS = (0, 1, 2, 5, 1000, 40_001, 500_003)
NANS = np.array([0x7FC00001, 0xFFC00002, 0x7FC00003, 0xFFC00000], np.uint32).view(np.float32)


def values(rank: int, length: int, dtype: Any = np.float32) -> np.ndarray:
    """Small whole numbers, whose sum is exact in every dtype and any order."""
    return np.random.default_rng(rank).integers(0, 8, length).astype(dtype)


def awkward(rank: int, length: int) -> np.ndarray:
    """Values whose sum depends on the order of the additions."""
    random = np.random.default_rng(rank + 100)
    return (random.standard_normal(length) * 10.0 ** random.integers(-6, 7, length)).astype(np.float32)


class CommunicatorContract(ABC):
    """Each rank is a thread of this process."""

    @abstractmethod
    def group(
        self, size: int, *, timeout_seconds: float = 20.0
    ) -> contextlib.AbstractContextManager[list[GroupCommunicator]]:
        """Communicators in rank order, closed at the end."""

    def run(self, size: int, body: Callable[[GroupCommunicator], Any]) -> list[Any]:
        with self.group(size) as communicators:
            return run_threads([lambda c=c: body(c) for c in communicators], communicators)  # type: ignore[misc]

    @pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
    def test_all_reduce_sums_every_dtype_and_length(self, size: int) -> None:
        def body(communicator: GroupCommunicator) -> None:
            for dtype in DTYPES:
                for length in LENGTHS[:-1] if dtype is not np.float32 else LENGTHS:
                    source = values(communicator.rank, length, dtype)
                    before, out = source.copy(), np.empty(length, dtype)
                    communicator.all_reduce(source, out)
                    expected = sum(values(rank, length, dtype).astype(np.float64) for rank in range(size))
                    assert np.array_equal(out.astype(np.float64), expected), (dtype, length)
                    assert np.array_equal(source, before)
                    communicator.all_reduce(source, source)
                    assert np.array_equal(source, out)

        self.run(size, body)

    @pytest.mark.parametrize("size", [2, 3, 4])
    @pytest.mark.parametrize("length", [3, 1000, 300_000])
    def test_all_ranks_get_the_same_bits(self, size: int, length: int) -> None:
        def body(communicator: GroupCommunicator) -> bytes:
            source = awkward(communicator.rank, length)
            # NaNs that differ from rank to rank, and that meet in the same place
            source[:: 3 + communicator.rank] = NANS[communicator.rank]
            out = np.empty_like(source)
            with np.errstate(invalid="ignore"):
                communicator.all_reduce(source, out)
            return out.tobytes()

        assert len(set(self.run(size, body))) == 1

    @pytest.mark.parametrize("size", [1, 3])
    @pytest.mark.parametrize("length", [5, 100_000])
    def test_all_reduce_finds_extremes(self, size: int, length: int) -> None:
        def body(communicator: GroupCommunicator) -> None:
            everyone = [awkward(rank, length) for rank in range(size)]
            out = np.empty(length, np.float32)
            communicator.all_reduce(everyone[communicator.rank], out, operation="max")
            assert np.array_equal(out, np.max(everyone, axis=0))
            communicator.all_reduce(everyone[communicator.rank], out, operation="min")
            assert np.array_equal(out, np.min(everyone, axis=0))

        self.run(size, body)

    @pytest.mark.parametrize("num_leaves", [1, 5, 8])
    @pytest.mark.parametrize("length", [0, 3, 50_001])
    def test_a_tree_sum_has_the_same_bits_for_any_number_of_ranks(self, num_leaves: int, length: int) -> None:
        def body(communicator: GroupCommunicator) -> bytes:
            first = num_leaves * communicator.rank // communicator.size
            last = num_leaves * (communicator.rank + 1) // communicator.size
            tree = TreeSum(num_leaves, first)
            for leaf in range(first, last):
                tree.add(awkward(leaf, length))
            out = np.empty(length, np.float32)
            communicator.tree_all_reduce(tree.partials(), num_leaves, out)
            return out.tobytes()

        results = [result for size in (1, 2, 3, 6) for result in self.run(size, body)]
        assert len(set(results)) == 1

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    @pytest.mark.parametrize("length", [0, 1, 7, 200_000])
    def test_reduce_scatter_then_all_gather_is_an_all_reduce(self, size: int, length: int) -> None:
        def body(communicator: GroupCommunicator) -> None:
            source = values(communicator.rank, size * length)
            block, out = np.empty(length, np.float32), np.empty(size * length, np.float32)
            communicator.reduce_scatter(source, block)
            communicator.all_gather(block, out)
            assert np.array_equal(out, sum(values(rank, size * length) for rank in range(size)))

        self.run(size, body)

    @pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
    def test_all_gather_bytes_takes_any_lengths(self, size: int) -> None:
        def body(communicator: GroupCommunicator) -> None:
            for lengths in (lambda rank: rank, lambda rank: 0, lambda rank: 1_500_000 * (rank == 1)):
                expected = [bytes([rank]) * lengths(rank) for rank in range(size)]
                assert communicator.all_gather_bytes(expected[communicator.rank]) == expected

        self.run(size, body)

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_all_to_all_delivers_each_part(self, size: int) -> None:
        def part(source: int, to: int) -> bytes:
            return bytes([source, to]) * (300_000 * source + to)

        def body(communicator: GroupCommunicator) -> None:
            received = communicator.all_to_all([part(communicator.rank, to) for to in range(size)])
            assert received == [part(source, communicator.rank) for source in range(size)]

        self.run(size, body)

    @pytest.mark.parametrize("size", [1, 2, 3, 6])
    @pytest.mark.parametrize("length", [0, 9, 1_000_000])
    def test_broadcast_from_any_root(self, size: int, length: int) -> None:
        def body(communicator: GroupCommunicator) -> None:
            for root in {0, size - 1}:
                buffer = values(communicator.rank, length)
                communicator.broadcast(buffer, root=root)
                assert np.array_equal(buffer, values(root, length))

        self.run(size, body)

    def test_send_and_receive_between_two(self) -> None:
        def body(communicator: GroupCommunicator) -> None:
            target = np.empty(1_000_000, np.float32)
            if communicator.rank == 0:
                communicator.send(values(0, len(target)), to=2)
            elif communicator.rank == 2:
                communicator.receive(target, source=0)
                assert np.array_equal(target, values(0, len(target)))

        self.run(3, body)

    def test_nobody_leaves_a_barrier_before_all_have_come(self) -> None:
        come: list[int] = []

        def body(communicator: GroupCommunicator) -> None:
            for turn in range(1, 20):
                come.append(communicator.rank)
                communicator.barrier()
                assert len(come) >= turn * communicator.size

        self.run(3, body)

    def test_calls_of_all_kinds_follow_each_other(self) -> None:
        def body(communicator: GroupCommunicator) -> None:
            for turn in range(30):
                out = np.empty(1 + turn * 3001, np.float32)
                communicator.all_reduce(values(communicator.rank, len(out)), out)
                assert communicator.all_gather_bytes(bytes([turn])) == [bytes([turn])] * communicator.size
                communicator.broadcast(out, root=turn % communicator.size)

        self.run(4, body)

    def test_abort_from_another_thread_ends_every_wait(self) -> None:
        with self.group(3) as communicators:
            waiting = communicators[:2]  # the third never comes

            def body(communicator: GroupCommunicator) -> None:
                with pytest.raises(GenerationOver, match="verdict"):
                    communicator.all_reduce(values(0, 500_000), np.empty(500_000, np.float32))
                with pytest.raises(GenerationOver, match="verdict"):
                    communicator.barrier()

            timers = [threading.Timer(0.1, c.abort, args=["verdict"]) for c in waiting]
            for timer in timers:
                timer.start()
            begin = time.monotonic()
            run_threads([lambda c=c: body(c) for c in waiting], waiting)  # type: ignore[misc]
            assert time.monotonic() - begin < 5
            for timer in timers:
                timer.join()

    @pytest.mark.parametrize("length", [10, 3_000_000])
    def test_all_survivors_of_a_lost_member_are_told_at_once(self, length: int) -> None:
        def survive(communicator: GroupCommunicator) -> float:
            communicator.barrier()
            begin = time.monotonic()
            reduce = functools.partial(communicator.all_reduce, values(0, length), np.empty(length, np.float32))
            with pytest.raises(CommunicationError):
                for _ in iter(reduce, "never"):
                    pass
            communicator.close()
            return time.monotonic() - begin

        def leave(communicator: GroupCommunicator) -> float:
            communicator.barrier()
            communicator.all_reduce(values(0, length), np.empty(length, np.float32))
            communicator.close()
            return 0.0

        with self.group(4, timeout_seconds=60) as communicators:
            bodies = [(lambda c=c: leave(c) if c.rank == 2 else survive(c)) for c in communicators]
            assert max(run_threads(bodies, communicators)) < 10

    def test_calls_that_differ_are_an_error_and_not_a_wrong_sum(self) -> None:
        with self.group(2) as communicators:

            def body(communicator: GroupCommunicator) -> None:
                length = 100 + communicator.rank
                communicator.all_reduce(values(0, length), np.empty(length, np.float32))

            with pytest.raises(Exception, match="the ranks make different calls"):
                run_threads([lambda c=c: body(c) for c in communicators], communicators)  # type: ignore[misc]

    def test_wrong_arguments_are_refused_before_anything_is_sent(self) -> None:
        with self.group(1) as (communicator,):
            array = np.zeros(4, np.float32)
            wrong: Sequence[Callable[[], object]] = (
                lambda: communicator.all_reduce(array, np.zeros(5, np.float32)),
                lambda: communicator.all_reduce(array, np.zeros(4, np.float64)),
                lambda: communicator.all_reduce(array[::2], np.zeros(2, np.float32)),
                lambda: communicator.broadcast(array, root=1),
                lambda: communicator.all_to_all([]),
                lambda: communicator.send(array, to=0),
            )
            for call in wrong:
                with pytest.raises(ValueError, match="not possible"):
                    call()

    def test_bytes_are_counted(self) -> None:
        def body(communicator: GroupCommunicator) -> tuple[int, int]:
            communicator.all_reduce(values(0, 1_000_000), np.empty(1_000_000, np.float32))
            return communicator.bytes_sent, communicator.bytes_received

        for sent, received in self.run(2, body):
            assert 4_000_000 <= sent <= 4_100_000
            assert 4_000_000 <= received <= 4_100_000
