"""Files stay small and say what they are for."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "examples", "benchmarks", "scripts")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MOST_LINES = 450


def test_every_file_opens_with_a_docstring() -> None:
    # An empty `__init__.py` has nothing to say.
    silent = [
        str(path.relative_to(ROOT))
        for path in FILES
        if (text := path.read_text()).strip() and not ast.get_docstring(ast.parse(text, filename=str(path)))
    ]
    assert not silent


def test_no_file_is_too_long_to_be_read() -> None:
    long = {
        str(path.relative_to(ROOT)): count for path in FILES if (count := path.read_text().count("\n")) > MOST_LINES
    }
    assert not long


def test_unit_tests_mirror_the_package() -> None:
    package = ROOT / "src" / "paceline"
    unit = ROOT / "tests" / "unit"
    strangers = [
        str(folder.relative_to(unit))
        for folder in sorted(unit.rglob("*"))
        if folder.is_dir() and any(folder.glob("*.py")) and not (package / folder.relative_to(unit)).is_dir()
    ]
    assert not strangers
