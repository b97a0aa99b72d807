"""The package installs anywhere: its wheel is pure Python and holds the package, nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# hatchling is called as pip would call it, without a new environment: a second instead of ten.
BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return folder / run.stdout.split()[-1]


def test_the_wheel_is_pure_python(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        suffixes = {Path(name).suffix for name in archive.namelist() if ".dist-info/" not in name}
    assert suffixes <= {".py", ".typed"}


def test_the_wheel_holds_the_package_its_licence_and_its_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        roots = {name.split("/")[0] for name in names}
        scripts = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert all(root == "paceline" or root.endswith(".dist-info") for root in roots)
    assert any(name.endswith("LICENSE") for name in names)
    assert "paceline = paceline.cli.main:main" in scripts
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "paceline").rglob("*.py")}
    assert sources <= names
