"""Nested structures of leaves (dict, tuple, list), as users give inputs and targets. Pure Python.

`None` stands for "absent" and is kept where it is. Dictionaries keep their order. Next file: `sources/arrays.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Leaf = Any
Structure = Any


def is_nested(structure: Structure) -> bool:
    """Whether `structure` is a container rather than a leaf."""
    return isinstance(structure, (Mapping, tuple, list))


def leaves(structure: Structure, name: str = "x") -> Iterator[tuple[str, Leaf]]:
    """Every leaf that is not None, with a name for people: "x", "x[0]", "x['age']"."""
    if structure is None:
        return
    if isinstance(structure, Mapping):
        for key, value in structure.items():
            yield from leaves(value, f"{name}[{key!r}]")
    elif isinstance(structure, (tuple, list)):
        for index, value in enumerate(structure):
            yield from leaves(value, f"{name}[{index}]")
    else:
        yield name, structure


def map_leaves(function: Callable[[str, Leaf], Leaf], structure: Structure, name: str = "x") -> Structure:
    """The same structure with `function(name, leaf)` in place of each leaf. Lists become tuples, as TensorFlow's
    datasets would stack the members of a list; named tuples keep their type."""
    if structure is None:
        return None
    if isinstance(structure, Mapping):
        return {key: map_leaves(function, value, f"{name}[{key!r}]") for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        mapped = [map_leaves(function, value, f"{name}[{index}]") for index, value in enumerate(structure)]
        return type(structure)(*mapped) if hasattr(structure, "_fields") else tuple(mapped)
    return function(name, structure)


def same_structure(first: Structure, second: Structure) -> bool:
    """Whether both nest alike: the same keys and lengths at every level. The kinds of leaf do not matter."""
    if isinstance(first, Mapping) or isinstance(second, Mapping):
        return (
            isinstance(first, Mapping)
            and isinstance(second, Mapping)
            and first.keys() == second.keys()
            and all(same_structure(first[key], second[key]) for key in first)
        )
    if isinstance(first, (tuple, list)) or isinstance(second, (tuple, list)):
        return (
            isinstance(first, (tuple, list))
            and isinstance(second, (tuple, list))
            and len(first) == len(second)
            and all(same_structure(one, other) for one, other in zip(first, second, strict=True))
        )
    return (first is None) == (second is None)
