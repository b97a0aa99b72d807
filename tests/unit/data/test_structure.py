"""Nested inputs."""

from __future__ import annotations

from typing import NamedTuple

from paceline.data.structure import leaves, map_leaves, same_structure


class Pair(NamedTuple):
    left: int
    right: int


NESTED = {"b": [1, (2, None)], "a": Pair(3, 4)}


def test_leaves_are_named_as_one_would_write_them() -> None:
    assert list(leaves(NESTED, "x")) == [("x['b'][0]", 1), ("x['b'][1][0]", 2), ("x['a'][0]", 3), ("x['a'][1]", 4)]
    assert list(leaves(None)) == []


def test_mapping_keeps_the_structure_and_turns_lists_into_tuples() -> None:
    mapped = map_leaves(lambda name, leaf: leaf * 10, NESTED)
    assert mapped == {"b": (10, (20, None)), "a": Pair(30, 40)}
    assert list(mapped) == ["b", "a"]
    assert isinstance(mapped["a"], Pair)


def test_structures_are_the_same_where_they_nest_alike() -> None:
    assert same_structure(NESTED, {"a": (0, 0), "b": (0, [0, None])})
    assert not same_structure(NESTED, {"a": (0, 0), "b": (0, [0, 1])})
    assert not same_structure({"a": 1}, {"b": 1})
    assert not same_structure((1, 2), (1, 2, 3))
    assert not same_structure((1,), 1)
    assert not same_structure({"a": 1}, 1)
