"""Options and files become one value, and every wrong word is answered with where it was said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.config import (
    COMMAND_LINE,
    Source,
    construct,
    merge_tables,
    option,
    parse_settings,
    parse_value,
    read_job_file,
    to_json,
)
from paceline.errors import ConfigError


@dataclass(frozen=True)
class Ride:
    riders: int = option("-n", "--riders", default=1, help="How many.")
    top_speed: float = option("--top-speed", default=30.0, help="In km/h.")
    name: str | None = option("--name", default=None, help="What it is called.")
    stops: tuple[str, ...] = option("--stops", default=(), help="Where.")
    is_race: bool = option("--race", default=False, help="Whether it is one.")
    settings: Mapping[str, Any] = option("--set", key="settings", default={}, help="More.")

    def __post_init__(self) -> None:
        if self.riders < 1:
            raise ConfigError(f"must be at least 1, got {self.riders}", field="riders")


FILE = "ride.toml: {key}"


def test_defaults_hold_where_nobody_spoke() -> None:
    assert construct(Ride, []) == Ride()


def test_the_last_source_wins() -> None:
    file = Source(FILE, {"riders": 3, "name": "sunday"})
    typed = Source(COMMAND_LINE, {"riders": 5})
    assert construct(Ride, [file, typed]) == Ride(riders=5, name="sunday")


def test_tables_are_merged_key_by_key() -> None:
    file = Source(FILE, {"settings": {"a": 1, "deep": {"x": 1, "y": 2}}})
    typed = Source(COMMAND_LINE, {"settings": {"deep": {"y": 3}}})
    assert construct(Ride, [file, typed]).settings == {"a": 1, "deep": {"x": 1, "y": 3}}
    assert merge_tables({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}


def test_underscores_and_dashes_are_the_same() -> None:
    assert construct(Ride, [Source(FILE, {"top_speed": 40})]).top_speed == 40.0
    assert construct(Ride, [Source(FILE, {"top-speed": 40})]).top_speed == 40.0


def test_an_unknown_key_is_an_error_that_names_the_nearest_known() -> None:
    with pytest.raises(ConfigError) as raised:
        construct(Ride, [Source(FILE, {"ridders": 3})])
    assert str(raised.value) == (
        "ride.toml: ridders is not known; did you mean 'riders'? known: name, race, riders, settings, stops, top-speed"
    )


def test_a_value_that_is_refused_is_named_with_its_source() -> None:
    with pytest.raises(ConfigError, match=r"^ride\.toml: riders: must be at least 1, got 0$"):
        construct(Ride, [Source(FILE, {"riders": 0})])
    with pytest.raises(ConfigError, match=r"^--riders: must be at least 1, got 0$"):
        construct(Ride, [Source(FILE, {"riders": 3}), Source(COMMAND_LINE, {"riders": 0})])


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("riders", "three", "a whole number"),
        ("riders", True, "a whole number"),
        ("riders", 1.5, "a whole number"),
        ("top-speed", float("nan"), "a finite number"),
        ("name", 7, "a text"),
        ("stops", "here", "a list of texts"),
        ("stops", [1], "a list of texts"),
        ("race", 1, "true or false"),
        ("settings", [], "a table"),
    ],
)
def test_a_wrong_type_is_an_error_that_says_the_right_one(key: str, value: object, wanted: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--{key}: must be {wanted}, got "):
        construct(Ride, [Source(COMMAND_LINE, {key: value})])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.5", 1.5),
        ("true", True),
        ('"text"', "text"),
        ("[1, 2]", [1, 2]),
        ("{a = 1}", {"a": 1}),
        ("adam", "adam"),
        ("/data/train", "/data/train"),
        ("1.2.3", "1.2.3"),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_settings_are_typed_as_in_toml_and_bare_words_are_texts(text: str, value: object) -> None:
    assert parse_value(text, "--set x") == value


def test_settings_nest_by_dots() -> None:
    assert parse_settings(["a.b=1", "a.c=x", "d=[1]"]) == {"a": {"b": 1, "c": "x"}, "d": [1]}


def test_a_setting_without_a_value_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^--set lr: write key=value, for example --set learning_rate=0\.1$"):
        parse_settings(["lr"])
    with pytest.raises(ConfigError, match="write key=value"):
        parse_settings(["a..b=1"])


def test_a_broken_list_is_an_error_and_not_a_text() -> None:
    with pytest.raises(ConfigError, match=r"^--set x: \[1, is not a whole TOML value; check its quotes and brackets$"):
        parse_settings(["x=[1,"])


def test_a_date_cannot_travel_and_the_error_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="write dates and times as strings"):
        to_json(parse_settings(["day=2026-01-01"]))


def test_a_job_file_is_a_source_that_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "ride{1}.toml"
    path.write_text("riders = 0\n[settings]\nlr = 0.1\n")
    source = read_job_file(path)
    assert source.values == {"riders": 0, "settings": {"lr": 0.1}}
    with pytest.raises(ConfigError) as raised:
        construct(Ride, [source])
    assert str(raised.value) == f"{path}: riders: must be at least 1, got 0"


def test_a_job_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--job: cannot read .*none\.toml: No such file or directory$"):
        read_job_file(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("riders = \n")
    with pytest.raises(ConfigError, match=r"^--job: .*broken\.toml is not valid TOML: .*line 1"):
        read_job_file(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_job_file(broken)
