"""What holds for every test: nothing stays behind, and the quick tests come first.

`leftovers.py` says what counts as left behind; here it is looked at after each test, and once more when the run ends
(for what a fixture of a module or a session has left).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import leftovers

_FOLDER = Path(__file__).parent
_ORDER = ("architecture", "unit", "clusters", "processes", "numerics", "tensorflow")

# The same examples in every run, and no limit on the time of one: a busy machine is no failure.
hypothesis.settings.register_profile("paceline", derandomize=True, deadline=None)
hypothesis.settings.load_profile("paceline")

# Inherited by every process that a test starts, however indirectly, also when its parent has died.
os.environ[leftovers.MARK] = uuid.uuid4().hex


@pytest.fixture(scope="session", autouse=True)
def _nothing_stays_after_the_run() -> Iterator[None]:
    yield from _checked("the whole run (a fixture of a module or of the session)")


@pytest.fixture(autouse=True)
def _nothing_stays_after_a_test(_nothing_stays_after_the_run: None, request: pytest.FixtureRequest) -> Iterator[None]:
    yield from _checked(request.node.nodeid)


def _checked(what: str) -> Iterator[None]:
    before = leftovers.take_stock()
    yield
    found = leftovers.wait_for_none(before, seconds=5.0)
    if found:
        pytest.fail(f"{what} left behind:\n" + "\n".join(f"  - {line}" for line in found), pytrace=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick folders first, so that a mistake shows itself early; inside a folder the order stays."""

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(_FOLDER).parts[0] if item.path.is_relative_to(_FOLDER) else ""
        return _ORDER.index(folder) if folder in _ORDER else len(_ORDER)

    items.sort(key=place)
