"""N workers give what plain Keras gives, or what one worker gives, for everything in the catalogue.

One job for each N runs all cases; the tests compare.
"""

from __future__ import annotations

import pytest

from numerics.catalogue import CASES
from numerics.catalogue.registry import Case
from numerics.comparison import compare
from numerics.conftest import JobsDone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(3600),
]

SIZES = (1, 2, 3, 4)
EXACT = [case for case in CASES.values() if case.job == "exact"]


def cases(chosen: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", chosen, ids=[case.name for case in chosen])


@pytest.mark.parametrize("size", SIZES)
@cases([case for case in EXACT if case.plain is not None])
def test_n_workers_give_what_plain_keras_gives(size: int, case: Case, jobs_done: JobsDone) -> None:
    assert case.plain is not None
    compare(jobs_done.ranks(str(size), case)[0], jobs_done.ranks("plain", case)[0], case.plain)


@pytest.mark.parametrize("size", SIZES[1:])
@cases([case for case in EXACT if case.one is not None])
def test_n_workers_give_what_one_worker_gives(size: int, case: Case, jobs_done: JobsDone) -> None:
    assert case.one is not None
    compare(jobs_done.ranks(str(size), case)[0], jobs_done.ranks("1", case)[0], case.one)


@pytest.mark.parametrize("size", SIZES)
@cases(EXACT)
def test_every_rank_holds_the_same_bits(size: int, case: Case, jobs_done: JobsDone) -> None:
    first, *others = jobs_done.ranks(str(size), case)
    for other in others:
        compare(other, first, 0.0)
