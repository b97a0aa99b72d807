"""A script's end, good or bad, as the worker's bootstrap sees it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cli.worker import exit_code_of, own_traceback, run_program, summarise


@pytest.fixture(autouse=True)
def _interpreter_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


def run(path: Path, *arguments: str) -> BaseException | None:
    try:
        run_program(str(path), arguments, is_module=False)
    except BaseException as error:
        assert error.__traceback__ is not None  # noqa: PT017
        return error.with_traceback(error.__traceback__.tb_next)  # without this function, as in a worker
    return None


def test_a_script_runs_as_python_would_run_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside.py").write_text("value = 3\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, pickle, beside\n"
        "class Local: pass\n"
        "assert type(pickle.loads(pickle.dumps(Local()))) is Local\n"
        "assert sys.modules['__main__'].__dict__ is globals()\n"
        "print(__name__, __file__, __spec__, sys.argv, sys.path[0], beside.value)\n"
    )
    assert run(script, "-n", "1") is None
    expected = f"__main__ {script} None {[str(script), '-n', '1']} {tmp_path} 3\n"
    assert capsys.readouterr().out == expected
    assert sys.modules["__main__"].__file__ == str(script)  # exit handlers will still find it


def test_a_traceback_begins_in_the_users_code(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def fail():\n    raise ValueError('bad value\\nmore')\n\nfail()\n")
    error = run(script)
    assert error is not None
    assert summarise(error) == "ValueError: bad value"
    text = own_traceback(error)
    assert text.startswith(f'Traceback (most recent call last):\n  File "{script}", line 4, in <module>\n')
    assert text.endswith("ValueError: bad value\nmore\n")
    assert text.count("  File ") == 2


def test_a_syntax_error_shows_its_line_and_nothing_of_ours(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("x = = 1\n")
    error = run(script)
    assert error is not None
    assert summarise(error) == "SyntaxError: invalid syntax"
    text = own_traceback(error)
    assert text.startswith(f'  File "{script}", line 1\n    x = = 1\n')
    assert "worker.py" not in text


def test_exit_codes_are_those_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert [exit_code_of(SystemExit(code)) for code in (None, 0, 3, True, 256 + 7, -1)] == [0, 0, 3, 1, 7, 255]
    assert exit_code_of(SystemExit("no data")) == 1
    assert capsys.readouterr().err == "no data\n"
