"""What a worker does to itself: seeds for what is imported later, plugins, and the meaning of SIGTERM."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path

import pytest

from paceline.clusters import arrival
from paceline.clusters.arrival import Termination, install_plugins, when_imported
from paceline.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_what_is_imported_later_is_seeded_then(folder: Path) -> None:
    (folder / "late_module.py").write_text("value = 1\n")
    seen: list[str] = []
    when_imported("late_module", lambda module: seen.append(f"{module.__name__} {module.value}"))
    assert seen == []
    import late_module  # type: ignore[import-not-found]

    assert seen == ["late_module 1"]
    when_imported("late_module", lambda module: seen.append("again"))
    assert seen == ["late_module 1", "again"]
    del sys.modules[late_module.__name__]


def test_pythons_own_generator_is_seeded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "when_imported", lambda name, action: None)
    state = random.getstate()
    arrival.seed_everything(7)
    first = random.random()
    arrival.seed_everything(7)
    assert random.random() == first
    random.setstate(state)


def test_plugins_are_installed_in_order(folder: Path) -> None:
    (folder / "plugin_one.py").write_text("calls = []\ndef install(): calls.append(1)\n")
    (folder / "plugin_two.py").write_text("import plugin_one\ndef install(): plugin_one.calls.append(2)\n")
    install_plugins("plugin_one, plugin_two,")
    assert sys.modules["plugin_one"].calls == [1, 2]
    install_plugins("")


def test_a_plugin_that_is_none_is_an_error(folder: Path) -> None:
    (folder / "plugin_empty.py").touch()
    with pytest.raises(ConfigError, match=r"^PACELINE_PLUGINS: plugin_empty has no install\(\)$"):
        install_plugins("plugin_empty")
    with pytest.raises(ConfigError, match=r"^PACELINE_PLUGINS: cannot import plugin_none: No module named"):
        install_plugins("plugin_none")


def test_sigterm_ends_who_is_no_member_and_spares_a_member_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(arrival.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(arrival.os, "kill", lambda pid, number: ended.append(number))
    Termination(lambda: False)._handle(signal.SIGTERM, None)
    assert ended == [signal.SIGTERM]
    member = Termination(lambda: True)
    member._handle(signal.SIGTERM, None)
    assert len(ended) == 1
    member._handle(signal.SIGTERM, None)
    assert len(ended) == 2
    done = Termination(lambda: False)
    done.is_finished = True
    done._handle(signal.SIGTERM, None)
    assert len(ended) == 2
