"""Many workers' lines do not tear each other's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.observability.console import LONGEST_LINE_BYTES, LineAssembler, Screen, Write, prefixed


def screen(*, is_shared: bool = False) -> Screen:
    return Screen(is_shared=is_shared, patience_seconds=1.0)


def text(writes: list[Write]) -> bytes:
    return b"".join(write.data for write in writes)


def test_pieces_become_whole_lines() -> None:
    lines = LineAssembler()
    assert lines.feed(b"on") == []
    assert lines.feed(b"e\ntwo\nthr") == [b"one", b"two"]
    assert lines.finish() == [b"thr"]
    assert lines.finish() == []


def test_of_a_progress_bar_the_last_state_is_kept() -> None:
    lines = LineAssembler()
    assert lines.feed(b"10%\r20%") == []
    assert lines.feed(b"\r30%\nnext\r\n") == [b"30%", b"next"]
    assert lines.feed(b"half\r") == []
    assert lines.feed(b"\n") == [b"half"]
    assert lines.feed(b"1%\r2%\r") == []
    assert lines.finish() == [b"2%"]


def test_a_line_without_end_is_cut() -> None:
    lines = LineAssembler()
    whole = lines.feed(b"x" * (2 * LONGEST_LINE_BYTES + 5))
    assert [len(line) for line in whole] == [LONGEST_LINE_BYTES, LONGEST_LINE_BYTES]
    assert lines.finish() == [b"xxxxx"]


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_lines_do_not_depend_on_where_the_pieces_were_cut(pieces: list[bytes]) -> None:
    piecewise, at_once = LineAssembler(), LineAssembler()
    lines = [line for piece in pieces for line in piecewise.feed(piece)]
    assert lines + piecewise.finish() == at_once.feed(b"".join(pieces)) + at_once.finish()


def test_worker_zero_passes_untouched() -> None:
    view = screen()
    pieces = [b"epoch 1\n", b"10%\r", b"20%\r", b"done\nloss", b": 1\n"]
    assert text([write for piece in pieces for write in view.pass_through("stdout", piece)]) == b"".join(pieces)
    assert view.pass_through("stdout", b"") == []


def test_other_lines_wait_for_the_end_of_an_open_one() -> None:
    view = screen()
    view.pass_through("stdout", b'{"loss":')
    assert view.line("stdout", prefixed(2, b"hello"), now=0.0) == []
    assert view.line("stdout", prefixed(1, b"you"), now=0.5) == []
    assert view.next_deadline() == 1.0
    assert text(view.pass_through("stdout", b" 1}\n")) == b" 1}\n[2] hello\n[1] you\n"
    assert view.next_deadline() is None


def test_waiting_lines_come_between_two_lines_of_one_piece() -> None:
    view = screen()
    view.pass_through("stdout", b"a")
    view.line("stdout", b"[1] x", now=0.0)
    assert text(view.pass_through("stdout", b"b\nc")) == b"b\n[1] x\nc"
    assert view.line("stdout", b"[1] y", now=0.0) == []


def test_a_line_that_stays_open_is_broken_after_a_while() -> None:
    view = screen()
    view.pass_through("stdout", b"10%\r")
    view.line("stdout", b"[1] x", now=0.0)
    assert view.overdue(now=0.9) == []
    assert text(view.overdue(now=1.0)) == b"\n[1] x\n"
    assert view.overdue(now=9.0) == []
    assert text(view.line("stdout", b"[1] y", now=9.0)) == b"[1] y\n"


def test_streams_on_one_terminal_wait_for_each_other() -> None:
    apart, shared = screen(), screen(is_shared=True)
    for view in (apart, shared):
        view.pass_through("stdout", b"10%\r")
    assert apart.line("stderr", b"paceline: x", now=0.0) == [Write("stderr", b"paceline: x\n")]
    assert shared.line("stderr", b"paceline: x", now=0.0) == []
    assert shared.pass_through("stdout", b"ok\n") == [Write("stdout", b"ok\n"), Write("stderr", b"paceline: x\n")]
