"""`paceline run`: from the command line and a job file to a `JobSpec`, and off it goes.

The options are made from the fields of `JobSpec`; only those about the command itself are named here.
Next file: `../clusters/local.py`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from paceline.clusters.spec import JobSpec, new_job_id
from paceline.config import COMMAND_LINE, Source, construct, options_of, parse_settings, read_job_file

SPELLED_AS_ARGUMENTS = ("script", "module", "arguments")  # on the command line


def _job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """A click option for every field of `JobSpec`."""
    hints = typing.get_type_hints(JobSpec)
    defaults = {field.name: field.default for field in dataclasses.fields(JobSpec)}
    for field, option in reversed(options_of(JobSpec).items()):
        if field in SPELLED_AS_ARGUMENTS:
            continue
        default = defaults[field]
        # Click is not told of defaults: only what was typed may win over a job file.
        is_number = isinstance(default, int | float) and not isinstance(default, bool)
        text = f"{option.help} [{default:g}]" if is_number else option.help
        keywords: dict[str, Any] = {"help": text, "default": None, "metavar": option.metavar or None}
        flags = option.flags
        if hints[field] is bool:
            keywords["is_flag"] = True
            if default is True:
                flags = (f"{flags[-1]}/--no-{option.key}",)
        elif field == "settings":
            keywords["multiple"] = True
        else:
            keywords["type"] = next((kind for kind in (int, float) if kind in _choices(hints[field])), str)
        function = click.option(*flags, field, **keywords)(function)
    return function


def _choices(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) or (hint,)


@click.command(
    context_settings={"allow_interspersed_args": False},
    short_help="Run a script as N workers on this machine.",
    options_metavar="[OPTIONS]",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]...")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module's name, as in python -m; options end here.")
@_job_options
@click.option("--job", "job_file", type=Path, metavar="FILE", help="Take options from a TOML file (see above).")
@click.option("--dry-run", is_flag=True, help="Show what would be started, and stop.")
@click.option("-q", "--quiet", is_flag=True, help="Say only what went wrong.")
@click.pass_context
def run(
    context: click.Context,
    /,
    program: tuple[str, ...],
    is_module: bool,
    job_file: Path | None,
    dry_run: bool,
    quiet: bool,
    **given: Any,
) -> int:
    """Run SCRIPT as N workers on this machine: a coordinator, an agent and the workers.

    \b
      paceline run -n 4 train.py --epochs 10
      paceline run -n 2 -m package.train --epochs 10

    Options end at SCRIPT: what follows it belongs to the script. Worker 0's output passes through, other workers'
    lines are prefixed with their number; all of it is kept in the log directory.

    A job file has the same names as the options, without dashes in front, and a table of settings:

    \b
      script = "train.py"
      arguments = ["--epochs", "10"]
      workers = 4
      min-workers = 2
      [settings]
      learning_rate = 0.1

    The command line wins over the file. Exit codes: 0 the job is complete, 1 it failed, 2 wrong usage, 124 a worker
    did not start in time, 130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    typed = {
        field: given[field]
        for field in given
        if context.get_parameter_source(field) is click.core.ParameterSource.COMMANDLINE
    }
    spec = gather(program, typed, is_module=is_module, job_file=job_file)
    return _start(spec, dry_run=dry_run, is_quiet=quiet)


def gather(program: tuple[str, ...], typed: dict[str, Any], *, is_module: bool, job_file: Path | None) -> JobSpec:
    """One spec from a job file and what was typed (by field), which wins."""
    options = options_of(JobSpec)
    values = {options[field].key: value for field, value in typed.items()}
    if "settings" in typed:
        values["settings"] = parse_settings(typed["settings"])
    sources = [read_job_file(job_file)] if job_file else []
    if program:
        values["module" if is_module else "script"] = program[0]
        values["arguments"] = program[1:]
        # A program that was typed replaces the file's, whichever way that one is spelled.
        programs = ("script", "module", "arguments")
        sources = [
            Source(source.where, {key: value for key, value in source.values.items() if key not in programs})
            for source in sources
        ]
    elif is_module:
        raise click.UsageError("-m needs the name of a module, and options come before it")
    return construct(JobSpec, [*sources, Source(COMMAND_LINE, values)])


def _start(spec: JobSpec, *, dry_run: bool, is_quiet: bool) -> int:
    import os
    import secrets
    import sys
    import time

    from paceline.clusters.detection import detect_machine
    from paceline.clusters.local import plan_job, run_job

    if spec.seed is None:
        spec = spec.with_seed(secrets.randbelow(2**32))
    job_id = new_job_id(spec, time_stamp=time.strftime("%Y%m%d-%H%M%S"), suffix=secrets.token_hex(2))
    job = plan_job(spec, detect_machine(), job_id)
    if dry_run:
        from paceline.clusters.rendering import render_job

        click.echo(render_job(job, os.environ, sys.executable), nl=False)
        return 0
    return run_job(job, is_quiet=is_quiet)
