"""Dictionaries of arrays, nested as those of an optimizer are: taken apart, described in JSON, and put together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy

from ._tensors import Leaf, is_tensor

Path = tuple[str | int, ...]


def name_of(path: Path) -> str:
    """How messages name it."""
    return ".".join(str(step) for step in path)


def take_apart(tree: Any) -> tuple[dict[str, Any], dict[Path, Leaf]]:
    """A description of the tree, which numbers its arrays, and these arrays by their paths, in that order."""
    leaves: dict[Path, Leaf] = {}
    return _described(tree, (), leaves, []), leaves


def _described(tree: Any, path: Path, leaves: dict[Path, Leaf], above: list[int]) -> dict[str, Any]:
    if is_tensor(tree) or isinstance(tree, numpy.ndarray):
        leaves[path] = Leaf(tree, name_of(path) or "the array")
        return {"array": len(leaves) - 1}
    if isinstance(tree, float):
        return {"value": float(tree)} if math.isfinite(tree) else {"float": repr(float(tree))}
    if tree is None or isinstance(tree, (bool, int, str)):
        return {"value": tree}
    if id(tree) in above:
        raise ValueError(f"{name_of(path)} contains itself")
    above = [*above, id(tree)]
    if isinstance(tree, Mapping):
        items = [[_key(key, path), _described(value, (*path, key), leaves, above)] for key, value in tree.items()]
        return {"dict": items}
    if isinstance(tree, (list, tuple)):
        items = [_described(value, (*path, index), leaves, above) for index, value in enumerate(tree)]
        return {"tuple" if isinstance(tree, tuple) else "list": items}
    raise TypeError(_refusal(tree, path))


def _key(key: Any, path: Path) -> str | int:
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise TypeError(f"{name_of(path) or 'the dict'} has the key {key!r}: a key can be a string or an integer")
    return key


def _refusal(tree: Any, path: Path) -> str:
    name = name_of(path) or "it"
    if isinstance(tree, numpy.generic):
        return f"{name} is a number of numpy's ({type(tree).__name__}): write number.item()"
    if callable(getattr(tree, "state_dict", None)):
        return f"{name} is a {type(tree).__name__}: write {type(tree).__name__.lower()}.state_dict()"
    return (
        f"{name} is a {type(tree).__name__}: what can be saved is arrays, tensors, dicts, lists, tuples, strings, "
        "numbers, truth values and None"
    )


def paths_of(node: Any, path: Path = ()) -> dict[int, Path]:
    """The paths of a description's arrays, by their numbers."""
    kind, value = _only(node)
    if kind == "array":
        return {int(value): path}
    if kind == "dict":
        steps = [(key, child) for key, child in value]
    elif kind in ("list", "tuple"):
        steps = list(enumerate(value))
    else:
        steps = []
    found: dict[int, Path] = {}
    for step, child in steps:
        found.update(paths_of(child, (*path, step)))
    return found


def put_together(node: Any, arrays: list[Any]) -> Any:
    """The tree of a description, with these arrays."""
    kind, value = _only(node)
    if kind == "array":
        return arrays[value]
    if kind == "value":
        return value
    if kind == "float":
        return float(value)
    if kind == "dict":
        return {key: put_together(child, arrays) for key, child in value}
    if kind in ("list", "tuple"):
        items = [put_together(child, arrays) for child in value]
        return items if kind == "list" else tuple(items)
    raise ValueError(f"a node of the kind {kind!r}")


def _only(node: Any) -> tuple[str, Any]:
    ((kind, value),) = node.items()
    return kind, value
