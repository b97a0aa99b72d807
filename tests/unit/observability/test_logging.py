"""Output reaches files and terminal whole, and trouble with either never reaches the job."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.observability.logging import LIMIT_BYTES, Output, RankLog


class Terminal:
    """Two pipes in a terminal's place."""

    def __init__(self) -> None:
        self.out, self.stdout = os.pipe()
        self.err, self.stderr = os.pipe()

    def close(self) -> None:
        for descriptor in (self.out, self.stdout, self.err, self.stderr):
            os.close(descriptor)

    def read(self) -> tuple[str, str]:
        """What was written; call it after the output was closed."""
        return os.read(self.out, 1 << 16).decode(), os.read(self.err, 1 << 16).decode()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    # Something is always there to be read, so that a silent stream does not block the test.
    os.write(terminal.stdout, b"|")
    os.write(terminal.stderr, b"|")
    yield terminal
    terminal.close()


def test_worker_zero_passes_and_others_are_prefixed_and_all_is_kept(tmp_path: Path, terminal: Terminal) -> None:
    with Output(tmp_path / "logs", (0, 1), stdout=terminal.stdout, stderr=terminal.stderr) as output:
        output.started(1, 1, 77)
        output.write(0, "stdout", b"epoch 1\n")
        output.write(1, "stdout", b"hel")
        output.write(1, "stderr", b"warning\n")
        output.write(1, "stdout", b"lo\nopen")
        output.ended(1)
        output.say("worker 1 is gone")
    assert terminal.read() == ("|epoch 1\n[1] hello\n[1] open\n", "|[1] warning\npaceline: worker 1 is gone\n")
    assert (tmp_path / "logs" / "worker-0.log").read_bytes() == b"epoch 1\n"
    header, rest = (tmp_path / "logs" / "worker-1.log").read_text().split("\n", 1)
    assert header.startswith("=== paceline: worker 1, incarnation 1, pid 77, 20")
    assert rest == "helwarning\nlo\nopen"


def test_quiet_leaves_out_what_is_no_warning(tmp_path: Path, terminal: Terminal) -> None:
    with Output(tmp_path, (0,), stdout=terminal.stdout, stderr=terminal.stderr, is_quiet=True) as output:
        output.say("hello")
        output.say("trouble", is_warning=True)
        output.show("Traceback:\n  here")
    assert terminal.read()[1] == "|paceline: trouble\nTraceback:\n  here\n"


def test_a_reader_who_has_gone_costs_nothing_but_what_he_would_have_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    error_reading, error_writing = os.pipe()
    os.close(reading)
    with Output(tmp_path, (0,), stdout=writing, stderr=error_writing) as output:
        output.write(0, "stdout", b"one\n")
        output.write(0, "stdout", b"two\n")
    assert (tmp_path / "worker-0.log").read_bytes() == b"one\ntwo\n"
    assert os.read(error_reading, 4096) == b"paceline: cannot write to stdout: Broken pipe; see the log files\n"
    for descriptor in (writing, error_reading, error_writing):
        os.close(descriptor)


def test_a_full_disk_is_told_once_and_the_gap_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[str] = []
    log = RankLog(tmp_path / "log", complaints.append)
    full, real = open("/dev/full", "wb", buffering=0), log._file  # noqa: SIM115
    log._file = full
    log.write(b"lost")
    log.write(b"lost too")
    log._file = real
    log.write(b"kept\n")
    log.close()
    full.close()
    assert complaints == [f"cannot write {tmp_path / 'log'}: No space left on device; training goes on without it"]
    assert (tmp_path / "log").read_text() == "\n=== paceline: 12 bytes are missing here ===\nkept\n"


def test_a_folder_that_cannot_be_written_is_an_error_at_the_door(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^--log-dir: cannot write .*worker-0\.log: "):
        Output(tmp_path / "file" / "logs", (0,))


def test_a_terminal_that_is_paused_holds_back_readers_and_not_the_loop(tmp_path: Path) -> None:
    reading, writing = os.pipe()

    async def use(output: Output) -> None:
        piece = b"x" * 99 + b"\n"
        for _ in range(LIMIT_BYTES // len(piece) + 1000):
            output.write(0, "stdout", piece)
        waiting = asyncio.ensure_future(output.ready())
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done  # the loop itself went on
        await asyncio.get_running_loop().run_in_executor(None, drain)
        await asyncio.wait_for(waiting, 10)

    def drain() -> None:
        left = LIMIT_BYTES
        while left > 0:
            left -= len(os.read(reading, 1 << 20))

    os.set_blocking(reading, True)
    with Output(tmp_path, (0,), stdout=writing, stderr=writing) as output:
        asyncio.run(use(output))
        os.close(reading)
    os.close(writing)
