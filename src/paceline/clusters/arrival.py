"""What a worker does to itself before the user's code runs, from the variables that its agent gave it.

It ties its life to the agent's, keeps to its cores, can be asked for its stacks, and draws the same random numbers as
every other worker. Next file: `../cli/worker.py`, which then runs the script.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType, ModuleType

from paceline.errors import ConfigError

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def bind_to_agent(agent_pid: int) -> None:
    """Die when the agent dies, by any means (Linux; elsewhere the guardian alone sees to that)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent_pid and not _exists(agent_pid):
        os._exit(1)  # it died before the line above: nobody is left to tell


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def keep_to_cores(value: str) -> None:
    """Run only on these processors: "0,1". Where that cannot be, the kernel's own choice is good enough."""
    if hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, {int(core) for core in value.split(",")})
        except OSError as error:
            print(f"paceline: cannot keep to cores {value}: {error.strerror}; see --no-affinity", file=sys.stderr)


def dump_stacks_on_demand() -> None:
    """SIGUSR1 prints every thread's Python stack; so does a crash in native code."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def seed_everything(seed: int) -> None:
    """The same random numbers on every worker, so that scripts that shuffle for themselves shuffle alike.

    numpy and TensorFlow are seeded at the moment when the script imports them, not before: that takes seconds.
    """
    random.seed(seed)
    when_imported("numpy", lambda numpy: numpy.random.seed(seed))
    when_imported("tensorflow", lambda tensorflow: tensorflow.random.set_seed(seed))


def when_imported(name: str, action: Callable[[ModuleType], object]) -> None:
    """Call `action` with the module once it is imported, or now when it is."""
    if (
        importlib.util.find_spec("wrapt") is None
    ):  # it comes with TensorFlow, so without it there is nothing to wait for
        if name in sys.modules:
            action(sys.modules[name])
        return
    wrapt = importlib.import_module("wrapt")
    wrapt.register_post_import_hook(action, name)


def install_plugins(names: str) -> None:
    """Import each of the modules ("a.b,c") and call its `install`. This is how faults of the test kit come in."""
    for name in filter(None, (part.strip() for part in names.split(","))):
        try:
            plugin = importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(f"PACELINE_PLUGINS: cannot import {name}: {error}") from error
        if not hasattr(plugin, "install"):
            raise ConfigError(f"PACELINE_PLUGINS: {name} has no install()")
        plugin.install()


class Termination:
    """What SIGTERM means to a worker, which depends on how far it has come.

    Before it is a member of the job nothing is lost: it ends at once. A member is told by the coordinator to stop at
    the round's end, and the agent's signal only comes along; a second one ends it. After its script has ended well, it
    is on its way out, and may finish that.

    Args:
        is_member: whether the coordinator can stop this process.

    Attributes:
        is_leaving: the script has ended, and the others are told.
        is_finished: they know.
    """

    def __init__(self, is_member: Callable[[], bool]) -> None:
        self.is_leaving = False
        self.is_finished = False
        self._is_member = is_member
        self._was_asked = False
        self._pid = os.getpid()

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:  # a forked helper has this handler, but no part in the job
            if self.is_finished:
                return
            if (self.is_leaving or self._is_member()) and not self._was_asked:
                self._was_asked = True
                return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def prepare(environment: Mapping[str, str], termination: Termination) -> None:
    """All of the above, as far as the variables ask for it."""
    if agent_pid := environment.get("PACELINE_AGENT_PID"):
        bind_to_agent(int(agent_pid))
    if cores := environment.get("PACELINE_AFFINITY"):
        keep_to_cores(cores)
    termination.install()
    dump_stacks_on_demand()
    if seed := environment.get("PACELINE_SEED"):
        seed_everything(int(seed))
    install_plugins(environment.get("PACELINE_PLUGINS", ""))
