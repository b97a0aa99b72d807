"""Cores, threads and GPUs are divided alike among the workers of a host."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.clusters.detection import Machine
from paceline.clusters.placement import assign

EIGHT = Machine("a", tuple(range(8)))


def test_cores_are_divided_and_each_worker_keeps_to_its_own() -> None:
    places = assign(EIGHT, (0, 1, 2))
    assert [place.cores for place in places] == [(0, 1), (2, 3, 4), (5, 6, 7)]
    assert [place.threads for place in places] == [2, 2, 2]


def test_more_workers_than_cores_share_them_with_one_thread_each() -> None:
    places = assign(Machine("a", (0, 1)), tuple(range(5)))
    assert all(place.cores == () and place.threads == 1 for place in places)


def test_under_a_quota_nobody_is_pinned() -> None:
    places = assign(Machine("a", tuple(range(64)), quota=4.0), (0, 1))
    assert all(place.cores == () and place.threads == 2 for place in places)


def test_deterministic_means_one_thread_unless_a_number_is_given() -> None:
    assert {place.threads for place in assign(EIGHT, (0, 1), deterministic=True)} == {1}
    assert {place.threads for place in assign(EIGHT, (0, 1), deterministic=True, threads_per_worker=3)} == {3}
    assert {place.threads for place in assign(EIGHT, (0, 1), threads_per_worker=5)} == {5}


def test_affinity_can_be_turned_off() -> None:
    assert all(place.cores == () for place in assign(EIGHT, (0, 1), affinity=False))


def test_each_worker_gets_a_gpu_and_only_too_many_share() -> None:
    machine = Machine("a", (0, 1), gpus=("0", "2"))
    assert [(place.gpu, place.gpu_is_shared) for place in assign(machine, (0, 1))] == [("0", False), ("2", False)]
    assert [place.gpu for place in assign(machine, (0, 1, 2))] == ["0", "2", "0"]
    assert all(place.gpu_is_shared for place in assign(machine, (0, 1, 2)))
    assert assign(EIGHT, (0,))[0].gpu is None


def test_workers_keep_their_numbers_on_a_host_of_their_own() -> None:
    assert [(place.worker, place.local_id) for place in assign(EIGHT, (4, 5))] == [(4, 0), (5, 1)]


@given(cores=st.integers(1, 70), workers=st.integers(1, 70))
def test_no_core_is_given_twice_or_forgotten(cores: int, workers: int) -> None:
    machine = Machine("a", tuple(range(cores)))
    places = assign(machine, tuple(range(workers)))
    given_out = [core for place in places for core in place.cores]
    if workers <= cores:
        assert sorted(given_out) == list(machine.cores)
        assert all(len(place.cores) >= place.threads >= 1 for place in places)
    else:
        assert given_out == []
