"""Global batches of data in memory: each sample once per epoch, the same steps for any number of workers."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.batches import ArrayBatches, Shuffle
from paceline.data.shares import assign, cut


def batches_of(num_samples: int, *, batch_size: int = 4, shuffle: Shuffle = True, seed: int = 3, **options: object):
    ids = np.arange(num_samples)
    return ArrayBatches((ids, ids * 2, None), batch_size=batch_size, shuffle=shuffle, seed=seed, **options)


def epoch_of(batches: ArrayBatches, epoch: int) -> list[list[int]]:
    batches.begin_epoch(epoch)
    steps = []
    while (batch := batches.batch(len(steps))) is not None:
        steps.append(batch.take(0, batch.num_samples)[0].tolist())
    return steps


@given(
    num_samples=st.integers(1, 200),
    batch_size=st.integers(1, 60),
    microbatch=st.integers(1, 20),
    size=st.integers(1, 9),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 50),
    shuffle=st.sampled_from([True, False, "batch"]),
)
def test_each_sample_is_taken_once_and_a_step_does_not_depend_on_the_number_of_workers(
    num_samples: int, batch_size: int, microbatch: int, size: int, seed: int, epoch: int, shuffle: Shuffle
) -> None:
    seen: list[int] = []
    lone = epoch_of(batches_of(num_samples, batch_size=batch_size, shuffle=shuffle, seed=seed), epoch)
    workers = [batches_of(num_samples, batch_size=batch_size, shuffle=shuffle, seed=seed) for _ in range(size)]
    for worker in workers:
        worker.begin_epoch(epoch)
    for step, expected in enumerate(lone):
        together: list[int] = []
        pieces = cut(len(expected), microbatch)
        for worker, share in zip(workers, assign(len(pieces), size), strict=True):
            batch = worker.batch(step)
            assert batch is not None
            for piece in share:
                rows = pieces[piece]
                x, y, _ = batch.take(rows.start, rows.stop)
                assert (y == x * 2).all()
                together += x.tolist()
        assert together == expected
        seen += together
    assert sorted(seen) == list(range(num_samples))
    assert all(worker.batch(len(lone)) is None for worker in workers)


def test_epochs_differ_and_repeat_exactly() -> None:
    batches = batches_of(50)
    first, second = epoch_of(batches, 0), epoch_of(batches, 1)
    assert first != second
    assert epoch_of(batches_of(50), 1) == second
    assert epoch_of(batches, 0) == first
    assert epoch_of(batches_of(50, seed=4), 0) != first


def test_a_worker_that_comes_in_the_middle_sees_what_the_others_see() -> None:
    steps = epoch_of(batches_of(50), 3)
    newcomer = batches_of(50)
    newcomer.begin_epoch(3, 7)
    batch = newcomer.batch(7)
    assert batch is not None
    assert batch.take(0, batch.num_samples)[0].tolist() == steps[7]


def test_a_step_may_be_asked_for_again() -> None:
    batches = batches_of(50, shuffle="batch")
    batches.begin_epoch(0)
    first, again = batches.batch(2), batches.batch(2)
    assert first is not None
    assert again is not None
    assert first.fingerprint == again.fingerprint


def test_fingerprints_differ_between_steps() -> None:
    batches = batches_of(50)
    batches.begin_epoch(0)
    assert len({batch.fingerprint for step in range(13) if (batch := batches.batch(step))}) == 13


def test_given_steps_go_on_through_the_data_and_a_short_epoch_is_told() -> None:
    batches = batches_of(20, shuffle=False, steps=3)
    assert batches.steps_per_epoch == 3
    assert epoch_of(batches, 0) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    with pytest.warns(UserWarning, match="ended after 2 of 3 steps"):
        assert epoch_of(batches, 1) == [[12, 13, 14, 15], [16, 17, 18, 19]]
    assert epoch_of(batches, 2)[0] == [0, 1, 2, 3]


def test_evaluations_begin_at_the_first_sample_each_time() -> None:
    batches = batches_of(20, shuffle=False, steps=3, restart=True)
    assert epoch_of(batches, 0) == epoch_of(batches, 1)


def test_a_later_first_epoch_has_its_own_order() -> None:
    assert epoch_of(batches_of(50, initial_epoch=5), 5) == epoch_of(batches_of(50), 5)


def test_shuffling_within_batches_keeps_each_batch_together() -> None:
    steps = epoch_of(batches_of(20, shuffle="batch", batch_size=10), 0)
    assert [sorted(step) for step in steps] == [list(range(10)), list(range(10, 20))]
    assert steps[0] != sorted(steps[0])
    assert [place % 10 for place in steps[0]] != [place % 10 for place in steps[1]]


def test_the_description_and_signature_tell_what_is_read() -> None:
    batches = batches_of(1797, seed=7)
    assert batches.description == "1,797 samples in memory, shuffled with seed 7"
    assert batches.num_samples == 1797
    assert batches.signature() != batches_of(1797, seed=8).signature()
    assert batches.signature() != batches_of(1797, seed=7, batch_size=5).signature()
    assert batches.content() == batches_of(1797, seed=8).content()


def test_taking_a_batch_of_images_is_fast() -> None:
    """256 rows of 784 float32 (0.8 MB): about 0.04 ms measured; the bound leaves room for a busy machine."""
    images = np.zeros((20_000, 784), np.float32)
    batches = ArrayBatches((images, np.zeros(20_000, np.int64), None), batch_size=256, shuffle=True, seed=1)
    batches.begin_epoch(0)
    seconds = []
    for step in range(50):
        start = time.perf_counter()
        batch = batches.batch(step)
        assert batch is not None
        batch.take(0, 256)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.3e-3
