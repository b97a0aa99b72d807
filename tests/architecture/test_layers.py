"""The floors of the house hold: the contracts of `.importlinter`, and what they cannot say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "paceline"


def _dependencies() -> set[str]:
    """Names of the packages that `pip install paceline` brings, as pyproject.toml declares them."""
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    return {re.split(r"[^A-Za-z0-9_-]", line.strip().strip('"'))[0] for line in block[1].splitlines()}


def _imported(path: Path) -> set[str]:
    """Top-level names of the modules that a file imports, wherever in the file it does."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_every_import_contract_is_kept() -> None:
    run = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_package_imports_only_what_its_installation_brings() -> None:
    # ml_dtypes (bfloat16 for numpy) is part of every TensorFlow.
    allowed = {"paceline", "ml_dtypes"} | _dependencies() | set(sys.stdlib_module_names)
    strangers = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        # Contract tests are inherited by users' own tests, which have pytest.
        more = {"pytest"} if path.is_relative_to(PACKAGE / "testing") else set()
        strangers |= {f"{path.relative_to(ROOT)}: {name}" for name in _imported(path) - allowed - more}
    assert not strangers


def test_nothing_that_arrives_from_the_network_could_be_unpickled() -> None:
    forbidden = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    users = {str(path.relative_to(ROOT)) for path in sorted(PACKAGE.rglob("*.py")) if _imported(path) & forbidden}
    assert not users
