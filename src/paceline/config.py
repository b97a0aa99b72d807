"""From files and options to one frozen value: the only place where settings are merged.

A dataclass names its options once, with `option(...)`; the command line and the TOML job file are two spellings of
the same constructor call. Sources are given weakest first, so that the last word wins, and each error says which
source spoke: "--workers: must be at least 1, got 0". Next file: `clusters/spec.py`, the dataclass that this is for.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
import math
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from paceline.errors import ConfigError

Value = TypeVar("Value")


@dataclass(frozen=True)
class Option:
    """How one field is spelled for people.

    Attributes:
        flags: on the command line, the long one last: ("-n", "--workers").
        help: one sentence.
        metavar: what the value is called in the help text.
        key: the name in a job file; the long flag without its dashes unless said otherwise.
    """

    flags: tuple[str, ...]
    help: str
    metavar: str
    key: str


def option(
    *flags: str, default: Any = dataclasses.MISSING, help: str, metavar: str = "", key: str | None = None
) -> Any:
    """A dataclass field that people can set."""
    metadata = {"option": Option(flags, help, metavar, key or flags[-1].lstrip("-"))}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options_of(kind: type[Any]) -> dict[str, Option]:
    """Field name -> option, in the order of the fields."""
    fields = dataclasses.fields(kind)
    return {field.name: field.metadata["option"] for field in fields if "option" in field.metadata}


@dataclass(frozen=True)
class Source:
    """Values of one origin. `where` is how an error names a key of it, with `{key}` in its place: "--{key}"."""

    where: str
    values: Mapping[str, object]

    def name(self, key: str) -> str:
        return self.where.format(key=key)


COMMAND_LINE = "--{key}"


def construct(kind: type[Value], sources: Sequence[Source]) -> Value:
    """Call `kind` with the merged values of `sources`, weakest first; tables are merged key by key.

    Raises `ConfigError` for unknown keys (with the nearest known one), wrong types, and what `kind` itself refuses.
    """
    options = options_of(kind)
    field_of = {named.key: field for field, named in options.items()}
    hints = typing.get_type_hints(kind)
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for source in sources:
        for written, value in source.values.items():
            key = written.replace("_", "-")
            if key not in field_of:
                raise ConfigError(f"{source.name(written)} is not known{suggestion(key, field_of)}")
            field = field_of[key]
            origin[field] = source.name(written)
            converted = _convert(value, hints[field], origin[field])
            both_tables = isinstance(converted, Mapping) and isinstance(merged.get(field), Mapping)
            merged[field] = merge_tables(merged[field], converted) if both_tables else converted
    try:
        return kind(**merged)
    except ConfigError as error:
        if error.field in options:
            where = origin.get(error.field, COMMAND_LINE.format(key=options[error.field].key))
            raise ConfigError(f"{where}: {error}") from None
        raise


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word."""
    choices = sorted(known)
    close = difflib.get_close_matches(word, choices, n=1)
    return (f"; did you mean '{close[0]}'?" if close else ";") + f" known: {', '.join(choices)}"


def merge_tables(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """`strong` over `weak`, table by table."""
    merged = dict(weak)
    for key, value in strong.items():
        old = merged.get(key)
        merged[key] = merge_tables(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def read_job_file(path: Path) -> Source:
    """A TOML file as a source of values."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--job: cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--job: {path} is not UTF-8 text, as TOML must be") from None
    return Source(f"{str(path).replace('{', '{{').replace('}', '}}')}: {{key}}", _parse_toml(text, f"--job: {path}"))


def parse_settings(assignments: Iterable[str]) -> dict[str, Any]:
    """`key=value` texts as one table. Dotted keys nest; values follow TOML's rules, and a bare word is a string.

    >>> parse_settings(["lr=0.1", "model.name=small", "tags=[1, 2]"])
    {'lr': 0.1, 'model': {'name': 'small'}, 'tags': [1, 2]}
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            raise ConfigError(f"--set {assignment}: write key=value, for example --set learning_rate=0.1")
        nested: Any = parse_value(text.strip(), f"--set {key}")
        for part in reversed(parts):
            nested = {part: nested}
        settings = merge_tables(settings, nested)
    return settings


def parse_value(text: str, where: str) -> Any:
    """One TOML value. Text that does not look like one (a bare word, a path) is a string."""
    try:
        value = _parse_toml(f"value = {text}", where)
    except ConfigError:
        if text[:1] in ("[", "{", '"', "'"):
            raise ConfigError(f"{where}: {text} is not a whole TOML value; check its quotes and brackets") from None
        return text
    return value["value"] if set(value) == {"value"} else text


def to_json(settings: Mapping[str, Any]) -> str:
    """Settings as they travel to the workers. Raises `ConfigError` for values that JSON cannot hold (dates)."""
    try:
        return json.dumps(settings, sort_keys=True)
    except TypeError as error:
        raise ConfigError(f"settings: {error}; write dates and times as strings") from None


def _parse_toml(text: str, where: str) -> dict[str, Any]:
    # Here, because `paceline --help` should not pay for it. Python's own reader since 3.11, before that its model.
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return dict(reader.loads(text))
    except ValueError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from None


def _convert(value: object, hint: Any, where: str) -> Any:
    """`value` as the type that the field is declared with. Only safe conversions: an int is a float, a list a tuple."""
    if isinstance(hint, types.UnionType):
        choices = [choice for choice in typing.get_args(hint) if choice is not type(None)]
        return None if value is None else _convert(value, choices[0], where)
    origin = typing.get_origin(hint) or hint
    if origin is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if origin is tuple and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if origin is Mapping and isinstance(value, Mapping):
        return value
    if origin in (int, bool, str) and type(value) is origin:
        return value
    words = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}
    wanted = words.get(origin, "a list of texts" if origin is tuple else "a table")
    raise ConfigError(f"{where}: must be {wanted}, got {value!r}")
