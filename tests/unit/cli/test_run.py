"""What is typed, and what a job file says, become one spec."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from paceline.cli.main import cli
from paceline.cli.run import gather
from paceline.clusters.spec import JobSpec
from paceline.config import options_of
from paceline.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


def dry_run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["run", "--dry-run", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_options_end_at_the_script(folder: Path) -> None:
    text = dry_run("-n", "2", "--seed", "5", "train.py", "-n", "9", "--seed", "6", "--", "-q")
    assert "2 workers" in text
    assert text.count("paceline worker -- train.py -n 9 --seed 6 -- -q\n") == 2
    assert text.count("PACELINE_SEED=5\n") == 2


def test_a_module_runs_with_its_arguments(folder: Path) -> None:
    assert "paceline worker --module -- my.train --epochs 3\n" in dry_run("-m", "my.train", "--epochs", "3")


def test_settings_reach_the_workers(folder: Path) -> None:
    text = dry_run("--set", "lr=0.1", "--set", "model.name=small", "train.py")
    assert """PACELINE_SETTINGS='{"lr": 0.1, "model": {"name": "small"}}'""" in text


def test_without_a_seed_a_random_one_is_chosen_and_told(folder: Path) -> None:
    seeds = {re.search(r", seed (\d+),", dry_run("train.py"))[1] for _ in range(3)}  # type: ignore[index]
    assert len(seeds) == 3


def test_the_command_line_wins_over_the_job_file(folder: Path) -> None:
    file = folder / "job.toml"
    file.write_text(
        'script = "train.py"\narguments = ["--epochs", "3"]\nworkers = 3\nmin-workers = 2\naffinity = false\n'
        "[settings]\nlr = 0.1\nbatch = 32\n"
    )
    assert gather((), {}, is_module=False, job_file=file) == JobSpec(
        script="train.py",
        arguments=("--epochs", "3"),
        workers=3,
        min_workers=2,
        affinity=False,
        settings={"lr": 0.1, "batch": 32},
    )
    typed = {"workers": 4, "affinity": True, "settings": ("lr=0.2",)}
    spec = gather(("my.train", "x"), typed, is_module=True, job_file=file)
    assert (spec.script, spec.module, spec.arguments) == (None, "my.train", ("x",))
    assert (spec.workers, spec.min_workers, spec.affinity) == (4, 2, True)
    assert spec.settings == {"lr": 0.2, "batch": 32}


def test_a_wrong_word_in_a_job_file_is_answered_with_the_nearest(folder: Path) -> None:
    file = folder / "job.toml"
    file.write_text('script = "train.py"\nworker = 3\n')
    with pytest.raises(
        ConfigError, match=r"job\.toml: worker is not known; did you mean 'workers'\? known: affinity, "
    ):
        gather((), {}, is_module=False, job_file=file)


def test_errors_name_the_option(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--workers: must be at least 1, got 0$"):
        dry_run("-n", "0", "train.py")
    with pytest.raises(ConfigError, match=r"^--script: there is no file trian\.py"):
        dry_run("trian.py")
    with pytest.raises(ConfigError, match=r"^nothing to run"):
        dry_run()
    with pytest.raises(click.UsageError, match="-m needs the name of a module"):
        gather((), {}, is_module=True, job_file=None)


def test_the_help_shows_every_option_of_a_job_with_its_default() -> None:
    text = CliRunner().invoke(cli, ["run", "--help"], terminal_width=200).output
    for option in options_of(JobSpec).values():
        if option.key not in ("script", "arguments", "module"):
            assert all(flag in text for flag in option.flags), option.flags
    assert "How often each worker that was killed is started again. [10]" in text


def test_the_hidden_command_stays_hidden() -> None:
    assert "worker  " not in CliRunner().invoke(cli, ["--help"]).output
