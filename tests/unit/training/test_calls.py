"""What the ranks are told when they do not agree: one table."""

from __future__ import annotations

from paceline.training.calls import differences, render_table


def test_ranks_that_agree_have_no_differences() -> None:
    assert differences([{"epochs": "3"}, {"epochs": "3"}]) == []


def test_only_the_lines_that_differ_are_told() -> None:
    ours = {"optimizer": "Adam", "variable": "a (3,)\nb (2,)"}
    theirs = {"optimizer": "Adam", "variable": "a (3,)\nb (4,)\nc ()"}
    assert differences([ours, theirs]) == [["variable 2", "b (2,)", "b (4,)"], ["variable 3", "-", "c ()"]]


def test_what_one_rank_alone_speaks_of_is_a_difference() -> None:
    assert differences([{}, {"root": "0"}, {}]) == [["root", "", "0", ""]]


def test_the_table_is_aligned_and_has_a_head_line() -> None:
    rows = [["epochs", "1 to 5", "1 to 6"], ["loss", "mse", "mean_absolute_error"]]
    assert render_table(rows).splitlines() == [
        "        rank 0  rank 1",
        "epochs  1 to 5  1 to 6",
        "loss    mse     mean_absolute_error",
    ]


def test_a_long_table_is_cut() -> None:
    rows = [[f"variable {number}", "a", "b"] for number in range(30)]
    lines = render_table(rows, max_rows=3).splitlines()
    assert len(lines) == 5
    assert lines[-1] == "... and 27 more lines"
