"""`paceline worker`: the inside of a worker process. Agents start it; people do not.

It prepares the process (`../clusters/arrival.py`), runs the script as Python itself would, and tells the job how that
ended: well, by an error of the script's own (whose traceback then ends the job), or because the job was stopped.
Next file: `../training/process.py`, the worker's place in the job.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import runpy
import sys
import threading
import traceback
import types
from collections.abc import Iterable

import click

from paceline.clusters.arrival import Termination, prepare
from paceline.errors import CoordinatorLost, Fenced, JobStopped, PacelineError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@click.command(hidden=True, context_settings={"allow_interspersed_args": False})
@click.option("--module", "is_module", is_flag=True)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def worker(program: tuple[str, ...], is_module: bool) -> None:
    """Run a script as a worker of a job (started by an agent)."""
    sys.exit(run_worker(program[0], program[1:], is_module=is_module))


def run_worker(target: str, arguments: Iterable[str], *, is_module: bool) -> int:
    """Run the program to its end and tell the job. The exit code of this process."""
    termination = Termination(_is_member)
    try:
        prepare(os.environ, termination)
        run_program(target, arguments, is_module=is_module)
    except SystemExit as end:
        code = exit_code_of(end)
        if code != 0:
            return _fail(f"exited with {code}", f"the script called sys.exit({end.code!r})", code)
    except JobStopped as stopped:
        return stopped.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (Fenced, CoordinatorLost) as lost:
        print(f"paceline: {lost}", file=sys.stderr)  # there is nobody to report it to
        return EXIT_FAILED
    except BaseException as error:
        return _fail(summarise(error), own_traceback(error), EXIT_FAILED)
    return _finish(termination)


def run_program(target: str, arguments: Iterable[str], *, is_module: bool) -> None:
    """Run a module or a script as `__main__`. Its exceptions come through."""
    if is_module:
        sys.argv[:] = [target, *arguments]
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = [target, *arguments]
    path = os.path.abspath(target)
    if not getattr(sys.flags, "safe_path", False):  # a flag since Python 3.11
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    # Not runpy.run_path: it takes `__main__` away when the script's last line is done, and what still runs then
    # (exit handlers, threads, pickling in either) would find another module in its place.
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def exit_code_of(end: SystemExit) -> int:
    """What Python would exit with; a text is an error's message, and is printed."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)
    return EXIT_FAILED


def summarise(error: BaseException) -> str:
    """One line: "ValueError: bad value"."""
    lines = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
    return lines[-1] if isinstance(error, SyntaxError) else lines[0]


def own_traceback(error: BaseException) -> str:
    """The traceback as if Python had run the script: it begins in the user's code."""
    trace = error.__traceback__
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _finish(termination: Termination) -> int:
    """The script has ended well: tell the job, once nothing of the script runs any more."""
    for thread in threading.enumerate():
        is_ours = thread.name.startswith("paceline")
        if thread is not threading.current_thread() and not thread.daemon and not is_ours:
            thread.join()  # as Python itself would, before it exits
    termination.is_leaving = True
    process = sys.modules.get("paceline.training.process")
    try:
        if process is not None:  # else the script has used nothing of the job, and its exit code says it all
            process.worker_finished()
    except JobStopped as stopped:
        return stopped.exit_code
    except (Fenced, CoordinatorLost) as lost:
        print(f"paceline: {lost}", file=sys.stderr)  # there is nobody to report it to
        return EXIT_FAILED
    except PacelineError as error:
        return _fail(summarise(error), own_traceback(error), EXIT_FAILED)  # the others are not at their end, say
    termination.is_finished = True
    return 0


def _fail(summary: str, trace: str, code: int) -> int:
    """The script's own failure: in this worker's log at once, on the terminal by the launcher, at the end and once."""
    from paceline.training.process import worker_failed

    sys.stdout.flush()
    _append_to_log(trace)
    try:
        worker_failed(summary, trace)
    except JobStopped:
        pass  # another worker's failure was first, and is the one to be shown
    except PacelineError as error:
        print(f"{trace}\npaceline: the job could not be told of this failure: {error}", file=sys.stderr)
    except BaseException:
        print(trace, file=sys.stderr)  # whatever is wrong with us, the user's error is shown
        raise
    return code


def _append_to_log(trace: str) -> None:
    path = os.environ.get("PACELINE_LOG_FILE")
    if not path:
        print(trace, file=sys.stderr)
        return
    try:
        with open(path, "a", encoding="utf-8", errors="replace") as log:
            log.write(trace if trace.endswith("\n") else trace + "\n")
    except OSError as error:
        print(f"paceline: cannot write {path}: {error.strerror}", file=sys.stderr)


def _is_member() -> bool:
    """Whether this process has joined the job, which then can tell it to stop. Imports nothing: it serves a signal,
    which may come while that module is being imported."""
    is_started = getattr(sys.modules.get("paceline.training.process"), "is_started", None)
    return is_started is not None and bool(is_started())
