"""What the guardian takes away when the launcher is gone."""

from __future__ import annotations

from paceline.clusters.guardian import follow


def test_what_was_not_reported_gone_is_left() -> None:
    assert follow(["=/tmp/x\n", "+10\n", "+11\n", "-10\n", "-99\n"]) == ({11}, {"/tmp/x"})
    assert follow([]) == (set(), set())
