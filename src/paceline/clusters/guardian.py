"""A small process that outlives a launcher which was killed, to take away what it left behind.

The kernel ends a worker with its launcher (Linux), but not what that worker has started, nor the file with the job's
secret. The launcher writes what exists into the guardian's standard input: "+123" a process group, "-123" it is gone,
"=/tmp/x" a folder. The end of that input is the end of the launcher, however it came.

Run as a file, without Paceline and site packages, so that it starts in milliseconds and holds little memory.
`guard.py` is the launcher's side.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterable


def follow(lines: Iterable[str]) -> tuple[set[int], set[str]]:
    """The process groups and folders that are left when the lines end."""
    groups: set[int] = set()
    folders: set[str] = set()
    for line in lines:
        kind, value = line[:1], line[1:].rstrip("\n")
        if kind == "+":
            groups.add(int(value))
        elif kind == "-":
            groups.discard(int(value))
        elif kind == "=":
            folders.add(value)
    return groups, folders


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its input, and only then
    groups, folders = follow(sys.stdin)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue  # gone already
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
