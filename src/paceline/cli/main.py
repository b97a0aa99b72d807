"""The command `paceline`: its commands, and how errors and exit codes reach a person.

Commands import what they need when they run, so that `--help` answers at once and never imports TensorFlow.
Next file: `run.py`.
"""

from __future__ import annotations

import sys

import click

from paceline.cli.info import info
from paceline.cli.run import run
from paceline.cli.worker import worker
from paceline.errors import PacelineError, StartTimeout, UserError

EXIT_USAGE = 2
EXIT_TIMEOUT = 124
EXIT_INTERRUPTED = 130


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"paceline {version('paceline')}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, no_args_is_help=False)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """Train TensorFlow and Keras models on many processes: the answer does not depend on the cluster.

    \b
      paceline run -n 4 train.py       run a script as four workers on this machine
      paceline run --help              all that can be said about a job
      paceline info                    what this machine has
    """


for command in (run, info, worker):
    cli.add_command(command)


def main() -> None:
    """Run a command and exit: 0 complete, 1 failed, 2 wrong usage, 124 start time-out, 130 or 143 stopped."""
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except StartTimeout as error:
        _complain(error)
        sys.exit(EXIT_TIMEOUT)
    except UserError as error:
        _complain(error)
        sys.exit(EXIT_USAGE)
    except PacelineError as error:
        _complain(error)
        sys.exit(1)


def _complain(error: PacelineError) -> None:
    click.echo(f"paceline: error: {error}", err=True)
