"""The reference names what the code has: every option, variable, event and public name, and nothing that is gone."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import click
import pytest

import paceline
from paceline.cli.main import cli
from paceline.observability import events

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def _code_words(page: str, pattern: str) -> set[str]:
    """All that a page puts in backticks and that looks like `pattern`."""
    spans = re.findall(r"`([^`\n]+)`", (REFERENCE / page).read_text())
    return {word for span in spans for word in re.findall(pattern, span)}


def test_the_page_on_the_command_line_names_every_option_of_run() -> None:
    run = cli.commands["run"]
    flags = {
        flag
        for parameter in run.params
        if isinstance(parameter, click.Option)
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("--")
    }
    named = _code_words("cli.md", r"(?<![\w-])--[a-z-]+")
    assert flags - named == set(), "options that the page lacks"
    assert named - flags - {"--help"} == set(), "options that are gone"


def test_the_page_on_the_environment_names_every_variable() -> None:
    sources = "".join(
        path.read_text() for path in (ROOT / "src").rglob("*.py") if "testing" not in path.relative_to(ROOT).parts
    )
    used = set(re.findall(r"PACELINE_[A-Z_]+[A-Z]", sources))
    named = _code_words("environment.md", r"PACELINE_[A-Z_]+[A-Z]")
    assert used == named


@pytest.mark.parametrize("kind", events.Event.__subclasses__(), ids=lambda kind: kind.__name__)
def test_the_page_on_events_names_every_event_with_its_fields(kind: type[events.Event]) -> None:
    rows = {
        row.split("`")[1]: row for row in (REFERENCE / "events.md").read_text().splitlines() if row.startswith("| `")
    }
    assert kind.__name__ in rows
    documented = set(re.findall(r"`([a-z_]+)`", rows[kind.__name__]))
    assert documented == {field.name for field in dataclasses.fields(kind)}


def test_the_page_on_python_names_every_public_name() -> None:
    assert set(paceline.__all__) <= _code_words("python.md", r"(?<=pl\.)\w+")
