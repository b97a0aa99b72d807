"""The jobs of the catalogue, each run when it is first asked for, with the cases that the chosen tests look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from numerics import jobs
from numerics.catalogue import CASES
from numerics.catalogue.registry import Case, Job
from numerics.jobs import Kept, Results


class JobsDone:
    """What plain Keras and N workers have kept.

    Args:
        names: of the cases to run.
        new_folder: makes one.
    """

    def __init__(self, names: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> None:
        self._names = names
        self._tmp_path_factory = tmp_path_factory
        self._results: dict[tuple[str, Job], Results] = {}
        self._folders: dict[tuple[str, Job], Path] = {}

    def ranks(self, which: str, case: Case) -> Sequence[Kept]:
        """What each rank has kept; `which` is "plain" or the number of workers. Fails the test when the case failed."""
        key = (which, case.job)
        if key not in self._results:
            self._results[key] = self._run(which, case.job)
        if case.name in self._results[key].failures:
            pytest.fail(f"{which}: {self._results[key].failures[case.name]}", pytrace=False)
        return self._results[key].ranks[case.name]

    def files(self, which: str, case: Case) -> Path:
        """The folder of the case's own files."""
        self.ranks(which, case)
        return self._folders[which, case.job] / f"{case.name}.files"

    def _run(self, which: str, job: Job) -> Results:
        folder = self._folders[which, job] = self._tmp_path_factory.mktemp(f"{job}-{which}-")
        cases = [CASES[name] for name in self._names if CASES[name].job == job]
        if which == "plain":
            return jobs.plain([case.name for case in cases if case.plain is not None], folder).results()
        options = ["--deterministic"] if job == "deterministic" else []
        return jobs.job(int(which), [case.name for case in cases], folder, options=options).results()


@pytest.fixture(scope="session")
def jobs_done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> JobsDone:
    chosen = {
        item.callspec.params["case"].name
        for item in request.session.items
        if "jobs_done" in item.fixturenames and "case" in item.callspec.params
    }
    return JobsDone([name for name in CASES if name in chosen], tmp_path_factory)
