"""State on its way from donors to newcomers, in stripes, over the in-memory transport."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.communication.communicator import GroupCommunicator
from paceline.errors import CommunicationError, CorruptFrame
from paceline.testing.cluster import run_group
from paceline.training.recovery import State, transfer


def make_state(seed: int = 0) -> State:
    source = np.random.default_rng(seed)
    arrays = (
        source.normal(size=(5, 3)).astype(np.float32),
        np.array(7, np.int64),
        np.empty((0, 4)),
        source.integers(0, 255, 1001).astype(np.uint8),
    )
    return State({"round": 3, "parts": [["a", "b"], 1.5]}, arrays)


def assert_equal(received: State | None, sent: State) -> None:
    assert received is not None
    assert received.values == sent.values
    assert received.digest() == sent.digest()
    for ours, theirs in zip(received.arrays, sent.arrays, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
        assert ours.flags.writeable


@settings(max_examples=30, deadline=None)
@given(size=st.integers(2, 6), data=st.data())
def test_every_newcomer_gets_the_whole_state_whoever_gives_it(size: int, data: st.DataObject) -> None:
    num_donors = data.draw(st.integers(1, size - 1))
    ranks = data.draw(st.permutations(range(size)))
    donors, receivers = sorted(ranks[:num_donors]), sorted(ranks[num_donors:])
    state = make_state()

    def body(communicator: GroupCommunicator) -> State | None:
        own = make_state() if communicator.rank in donors else None
        return transfer(communicator, donors=donors, receivers=receivers, state=own)

    results = run_group(size, body)
    for rank, received in enumerate(results):
        if rank in receivers:
            assert_equal(received, state)
        else:
            assert received is None


def test_the_work_of_giving_is_shared() -> None:
    big = State(None, (np.arange(300_000, dtype=np.float64),))

    def body(communicator: GroupCommunicator) -> int:
        own = big if communicator.rank < 3 else None
        transfer(communicator, donors=[0, 1, 2], receivers=[3], state=own)
        return communicator.bytes_sent

    sent = run_group(4, body)
    third = big.num_bytes / 3
    assert all(third <= num_bytes <= third + 2000 for num_bytes in sent[:3])


def test_a_donor_that_holds_another_state_does_not_serve() -> None:
    def body(communicator: GroupCommunicator) -> State | None:
        states = {0: make_state(), 1: make_state(seed=9), 2: make_state()}
        return transfer(communicator, donors=[0, 1, 2], receivers=[3], state=states.get(communicator.rank))

    assert_equal(run_group(4, body)[3], make_state())


def test_ranks_that_neither_give_nor_need_wait_for_the_end() -> None:
    def body(communicator: GroupCommunicator) -> State | None:
        own = make_state() if communicator.rank == 1 else None
        return transfer(communicator, donors=[1], receivers=[2], state=own)

    first, second, third = run_group(3, body)
    assert first is second is None
    assert_equal(third, make_state())


def test_a_state_without_arrays_travels() -> None:
    def body(communicator: GroupCommunicator) -> State | None:
        own = State([1, 2]) if communicator.rank == 0 else None
        return transfer(communicator, donors=[0], receivers=[1], state=own)

    assert run_group(2, body)[1] == State([1, 2], ())


def test_a_donor_that_is_lost_on_the_way_leaves_the_newcomer_without_a_state() -> None:
    big = State(None, (np.zeros(2_000_000, np.uint8),))
    failures: dict[int, Exception] = {}

    class Dying:
        """A communicator whose process ends when it is to send its stripe."""

        def __init__(self, inner: GroupCommunicator) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def send(self, payload: np.ndarray, *, to: int) -> None:
            self._inner.close()
            raise ConnectionError("this process has ended")

    def body(communicator: GroupCommunicator) -> None:
        member: Any = Dying(communicator) if communicator.rank == 0 else communicator
        own = big if communicator.rank < 2 else None
        try:
            transfer(member, donors=[0, 1], receivers=[2], state=own)
        except (CommunicationError, ConnectionError) as error:
            failures[communicator.rank] = error
            communicator.close()

    run_group(3, body)
    assert isinstance(failures[0], ConnectionError)
    assert isinstance(failures[1], CommunicationError)
    assert isinstance(failures[2], CommunicationError)


def test_a_stripe_that_does_not_match_the_digest_is_refused() -> None:
    class Lying:
        """A communicator that damages what it sends."""

        def __init__(self, inner: GroupCommunicator) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def send(self, payload: np.ndarray, *, to: int) -> None:
            damaged = payload.copy()
            damaged[0] ^= 1
            self._inner.send(damaged, to=to)

    def body(communicator: GroupCommunicator) -> None:
        member: Any = Lying(communicator) if communicator.rank == 0 else communicator
        transfer(member, donors=[0], receivers=[1], state=make_state() if communicator.rank == 0 else None)

    with pytest.raises(CommunicationError) as caught:
        run_group(2, body)
    assert isinstance(caught.value, CorruptFrame) or "closed" in str(caught.value)


def test_digests_are_equal_exactly_for_equal_states() -> None:
    state = make_state()
    assert state.digest() == make_state().digest()
    assert state.digest() != make_state(seed=1).digest()
    assert state.digest() != State({"round": 4}, state.arrays).digest()
    assert State(1, (np.zeros(2), np.ones(2))).digest() != State(1, (np.ones(2), np.zeros(2))).digest()
