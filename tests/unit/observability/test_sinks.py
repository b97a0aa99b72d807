"""Every event is a line of JSON, at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.observability.events import JobEnded, WorkerStarted
from paceline.observability.sinks import JsonLinesSink


def test_an_event_can_be_read_the_moment_it_was_told(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    with JsonLinesSink(path, pytest.fail) as sink:
        sink(WorkerStarted(1, 2, 33, "here"))
        (line,) = path.read_text().splitlines()
        record = json.loads(line)
        assert record.pop("time") > 0
        assert record == {"event": "WorkerStarted", "worker": 1, "incarnation": 2, "pid": 33, "host": "here"}
        sink(JobEnded(0, "complete"))
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["WorkerStarted", "JobEnded"]


def test_a_new_job_starts_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("old\n")
    with JsonLinesSink(path, pytest.fail):
        pass
    assert path.read_text() == ""


def test_a_file_that_cannot_be_written_is_an_error_at_the_door(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--events: cannot write .*: Is a directory$"):
        JsonLinesSink(tmp_path, pytest.fail)


def test_a_full_disk_is_told_once_and_the_job_goes_on() -> None:
    complaints: list[str] = []
    with JsonLinesSink(Path("/dev/full"), complaints.append) as sink:
        sink(JobEnded(0, "complete"))
        sink(JobEnded(0, "complete"))
    assert complaints == ["cannot write /dev/full: No space left on device; training goes on without it"]
