"""Starting is light: neither `import paceline` nor the command line waits for TensorFlow."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

import pytest

# Seconds of processor time, so that a busy machine does not change the answer.
HELP_BUDGET_SECONDS = 0.3


def _run(*command: str) -> str:
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def _modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    return set(_run(sys.executable, "-c", code).split())


@pytest.mark.parametrize("statement", ["import paceline", "import paceline.cli.main"])
def test_importing_it_does_not_import_tensorflow(statement: str) -> None:
    assert not _modules_after(statement) & {"tensorflow", "keras", "jax", "torch"}


def test_importing_paceline_imports_numpy_no_sooner_than_it_is_needed() -> None:
    assert "numpy" not in _modules_after("import paceline")


def test_help_answers_in_under_three_tenths_of_a_second() -> None:
    def processor_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = _run(sys.executable, "-m", "paceline", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "run" in text
        return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)

    assert statistics.median(processor_seconds() for _ in range(5)) < HELP_BUDGET_SECONDS
