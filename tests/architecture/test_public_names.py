"""What users can import is written down: a change to it is seen, and meant."""

from __future__ import annotations

from pathlib import Path

import paceline

GOLDEN = Path(__file__).parent / "golden" / "public_names.txt"


def test_the_public_names_are_those_that_were_agreed() -> None:
    assert list(paceline.__all__) == GOLDEN.read_text().split(), f"meant? then change {GOLDEN.name} and the changelog"


def test_dir_lists_every_public_name() -> None:
    assert set(paceline.__all__) <= set(dir(paceline))
