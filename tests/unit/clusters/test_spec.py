"""What a person says about a job is checked at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.clusters.spec import JobSpec, new_job_id
from paceline.errors import ConfigError


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train me.py"
    path.touch()
    return str(path)


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"workers": 0}, "workers", "must be at least 1, got 0"),
        ({"workers": 2, "min_workers": 3}, "min_workers", r"between 1 and the number of workers \(2\), got 3"),
        ({"min_workers": 0}, "min_workers", "got 0"),
        ({"seed": -1}, "seed", "from 0 to"),
        ({"seed": 2**32}, "seed", "from 0 to"),
        ({"threads_per_worker": 0}, "threads_per_worker", "at least 1, got 0"),
        ({"max_restarts": -1}, "max_restarts", "0 or more, got -1"),
        ({"start_timeout": 0.0}, "start_timeout", "at least 0.01 seconds, got 0"),
        ({"grace": -1.0}, "grace", "at least 0 seconds, got -1"),
        ({"heartbeat": 2.0}, "lost_after", r"at least twice the heartbeat \(2 s\).*got 3"),
        ({"port": 65536}, "port", "to 65535, got 65536"),
        ({"script": None}, None, "nothing to run: give a script"),
        ({"script": "none.py"}, "script", r"there is no file none\.py \(looked in /"),
        ({"script": "/"}, "script", "/ is not a file; to run a package, use -m"),
        ({"module": "a.b"}, "module", "both a script and a module"),
        ({"script": None, "module": "train.py/x"}, "module", "is not a module's name"),
    ],
)
def test_what_cannot_work_is_refused(script: str, changes: dict[str, Any], field: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        replace(JobSpec(script=script), **changes)
    assert raised.value.field == field


def test_the_program_names_the_job(script: str) -> None:
    spec = JobSpec(script=script, arguments=("--epochs", "3"))
    assert spec.command == (script, "--epochs", "3")
    assert new_job_id(spec, time_stamp="20260101-120000", suffix="ab12") == "train-me-20260101-120000-ab12"
    named = replace(spec, name="../../evil name")
    assert new_job_id(named, time_stamp="20260101-120000", suffix="ab12") == "evil-name-20260101-120000-ab12"
    module = JobSpec(module="my.train", arguments=("x",))
    assert module.command == ("-m", "my.train", "x")
    assert module.program == "my.train"
