"""Dictionaries of arrays, nested as those of an optimizer are: taken apart, described in JSON, and put together.

Each container and each value comes back as an object of the same class, or is refused when it is described. Only classes of
modules that the program has imported are found again by name, and no code of theirs is called: a file may say anything.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy

from ._kinds import decided, dtype_name, dtype_of, is_array, is_tensor
from ._tensors import Leaf

Path = tuple[str | int, ...]

# What a defaultdict may make, by the names that files have.
_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)}


# Dicts to which a program may give attributes, by the names that files have.
_WITH_ATTRIBUTES: dict[Any, str] = {collections.OrderedDict: "ordered", collections.Counter: "counter"}


def name_of(path: Path) -> str:
    """How messages name it."""
    return ".".join(str(step) for step in path)


def children_of(tree: Any) -> list[tuple[Any, Any]] | None:
    """The children of a container with their keys or positions; None for a container of an unknown class, or none."""
    kind = type(tree)
    if kind in (dict, collections.defaultdict) or kind in _WITH_ATTRIBUTES:
        return list(tree.items())
    if kind in (list, tuple) or _is_size(tree) or _is_namedtuple(tree):
        return list(enumerate(tree))
    return None


def alike(tree: Any, children: list[Any]) -> Any:
    """A container of the same class with other children, in the order of :func:`children_of`."""
    kind = type(tree)
    if kind is list:
        return children
    if _is_size(tree):
        return kind(children)
    if issubclass(kind, tuple):
        return tuple.__new__(kind, children)
    if kind is collections.defaultdict:
        return collections.defaultdict(tree.default_factory, zip(tree, children))
    made = kind(dict(zip(tree, children)))
    if kind in _WITH_ATTRIBUTES:
        # ``_metadata`` of a state_dict has the versions of its modules.
        vars(made).update(copy.deepcopy(vars(tree)))
    return made


def _is_namedtuple(tree: Any) -> bool:
    fields = getattr(type(tree), "_fields", None)
    return isinstance(tree, tuple) and type(fields) is tuple and len(fields) == len(tree) and all(type(field) is str for field in fields)


def _is_size(tree: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(tree) is getattr(torch, "Size", None)


def take_apart(tree: Any) -> tuple[dict[str, Any], dict[Path, Leaf]]:
    """A description of the tree, which numbers its arrays, and these arrays by their paths, in that order."""
    leaves: dict[Path, Leaf] = {}
    return _described(tree, (), leaves, []), leaves


def _described(tree: Any, path: Path, leaves: dict[Path, Leaf], above: list[int]) -> dict[str, Any]:
    if is_array(tree):
        leaves[path] = Leaf(tree, name_of(path) or "the array")
        return _described_array(tree, len(leaves) - 1)
    kind = type(tree)
    if kind in _VALUES:
        return _VALUES[kind](tree)
    if isinstance(tree, numpy.generic):
        return _described_number(tree, name_of(path) or "it")
    children = children_of(tree)
    if children is None:
        raise TypeError(_refusal(tree, path))
    if id(tree) in above:
        raise ValueError(f"{name_of(path)} contains itself")
    above = [*above, id(tree)]
    if isinstance(tree, dict):
        described: list[Any] = [[_key(key, path), _described(value, (*path, key), leaves, above)] for key, value in children]
    else:
        described = [_described(value, (*path, index), leaves, above) for index, value in children]
    return _described_container(tree, described, path)


def _described_array(tree: Any, number: int) -> dict[str, Any]:
    if is_tensor(tree) and type(tree).__name__ == "Parameter":
        return {"parameter": [number, tree.requires_grad]}
    return {"gradient" if is_tensor(tree) and tree.requires_grad else "array": number}


def _described_container(tree: Any, children: list[Any], path: Path) -> dict[str, Any]:
    kind = type(tree)
    if kind in _WITH_ATTRIBUTES:
        return {_WITH_ATTRIBUTES[kind]: [_attributes(tree, path), children]}
    if kind is collections.defaultdict:
        return {"default": [_factory(tree, path), children]}
    if kind in (dict, list, tuple):
        return {kind.__name__: children}
    if _is_size(tree):
        return {"size": children}
    return {"named": [[*_class_name(tree, path), list(kind._fields)], children]}


def _attributes(tree: Any, path: Path) -> dict[str, Any] | None:
    """Attributes that a program has given to a dict, described."""
    if not vars(tree):
        return None
    arrays: dict[Path, Leaf] = {}
    name = name_of(path) or "the dict"
    try:
        described = _described(dict(vars(tree)), (), arrays, [])
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} has attributes that cannot be saved: {error}; or write dict({name})") from None
    if arrays:
        raise TypeError(f"{name} has the attribute {name_of(next(iter(arrays)))}, an array: put it into the dict")
    return described


def _factory(tree: Any, path: Path) -> str | None:
    factory = tree.default_factory
    if factory is None:
        return None
    if _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
        raise TypeError(
            f"{name_of(path) or 'the dict'} is a defaultdict that calls {factory!r}, which a file cannot name: write dict(it), "
            f"or use one of {', '.join(_FACTORIES)}"
        )
    return str(factory.__name__)


def _class_name(tree: Any, path: Path) -> tuple[str, str]:
    """By what :func:`_class_of` finds the class of a namedtuple again."""
    kind = type(tree)
    name = name_of(path) or "it"
    if getattr(tree, "__dict__", None):
        raise TypeError(f"{name} is a {kind.__name__} with attributes beside its fields: write {name}._asdict()")
    if _class_of(kind.__module__, kind.__qualname__, kind._fields) is not kind:
        raise TypeError(
            f"{name} is a {kind.__name__}, which cannot be found again as {kind.__module__}.{kind.__qualname__}: define it at the "
            "top of a module, or write it._asdict()"
        )
    return kind.__module__, kind.__qualname__


def _class_of(module: str, qualname: str, fields: Sequence[str]) -> Any:
    """The namedtuple of that name in a module that was imported; None if there is none."""
    place: Any = sys.modules.get(module)
    names = vars(place) if place is not None else {}
    for step in qualname.split("."):
        place = None if place is None else vars(place).get(step) if hasattr(place, "__dict__") else None
    # collections.namedtuple("Name", ...) may be assigned to another name.
    for found in (place, *names.values()):
        if isinstance(found, type) and issubclass(found, tuple) and found.__qualname__ == qualname:
            if getattr(found, "_fields", None) == tuple(fields):
                return found
    return None


def _key(key: Any, path: Path) -> str | int:
    if type(key) is not str and type(key) is not int:
        raise TypeError(
            f"{name_of(path) or 'the dict'} has the key {key!r} ({type(key).__name__}): a key can be a string or an integer"
        )
    return key


def _described_float(number: float) -> dict[str, Any]:
    return {"value": number} if math.isfinite(number) else {"float": repr(number)}


def _described_bytes(data: bytes) -> dict[str, Any]:
    return {"bytes": data.hex()}


def _plain(value: Any) -> dict[str, Any]:
    return {"value": value}


# Values by their very class: a subclass is more than its value.
_VALUES: dict[type, Callable[[Any], dict[str, Any]]] = {
    type(None): _plain,
    bool: _plain,
    int: _plain,
    str: _plain,
    float: _described_float,
    complex: lambda number: {"complex": [repr(number.real), repr(number.imag)]},
    bytes: _described_bytes,
    pathlib.PosixPath: lambda path: {"path": str(path)},
    numpy.str_: lambda text: {"numpy.str_": text[:]},
    numpy.bytes_: lambda data: {"numpy.bytes_": bytes(data).hex()},
}


def _described_number(number: Any, name: str) -> dict[str, Any]:
    array = numpy.asarray(number)
    return {"number": [dtype_name(array.dtype, name), array.tobytes().hex()]}


def _number(dtype: str, content: str) -> Any:
    found, data = dtype_of(dtype), bytes.fromhex(content)
    if found is None or found.itemsize != len(data):
        raise ValueError(f"a number of the dtype {dtype} that has {len(data)} bytes")
    return numpy.frombuffer(data, found)[0] if data else numpy.zeros((), found)[()]


_REMEDIES: list[tuple[type | tuple[type, ...], str]] = [
    (enum.Enum, "{0}.value"),
    (bool, "bool({0})"),
    (int, "int({0})"),
    (float, "float({0})"),
    (complex, "complex({0})"),
    (str, "str({0})"),
    (bytes, "bytes({0})"),
    (pathlib.PurePath, "str({0})"),
    ((bytearray, memoryview), "bytes({0}), or numpy.frombuffer({0}, 'u1') for an array"),
    (Set, "sorted({0}), which is a list"),
    (tuple, "tuple({0})"),
    (collections.deque, "list({0}), and keep its maxlen beside it"),
    (Mapping, "dict({0})"),
    ((Sequence, collections.UserList), "list({0})"),
]


def _refusal(tree: Any, path: Path) -> str:
    name = name_of(path) or "it"
    kind = type(tree).__name__
    if callable(getattr(tree, "state_dict", None)):
        return f"{name} is a {kind}: write {kind.lower()}.state_dict()"
    if dataclasses.is_dataclass(tree):
        instead = f"vars({name})" if hasattr(tree, "__dict__") else f"dataclasses.asdict({name}), which is a copy"
        return f"{name} is a {kind}, a dataclass: write {instead}, and {kind}(**loaded) after loading"
    # Raises for arrays of other libraries.
    decided(tree, name)
    for kinds, instead in _REMEDIES:
        if isinstance(tree, kinds):
            return f"{name} is a {kind}, which would not come back as one: write {instead.format(name)}"
    if callable(getattr(tree, "isoformat", None)):
        return f"{name} is a {kind}: write {name}.isoformat()"
    return (
        f"{name} is a {kind}: what can be saved is arrays, tensors, dicts, lists, tuples, strings, bytes, paths, numbers, "
        "truth values and None"
    )


def paths_of(node: Any, path: Path = ()) -> dict[int, Path]:
    """The paths of a description's arrays, by their numbers."""
    kind, value = _only(node)
    if kind in ("array", "gradient"):
        return {int(value): path}
    if kind == "parameter":
        return {int(value[0]): path}
    found: dict[int, Path] = {}
    for step, child in _steps(kind, value):
        found.update(paths_of(child, (*path, step)))
    return found


def _steps(kind: str, value: Any) -> Iterable[tuple[Any, Any]]:
    """The children of a description, with their keys or positions."""
    if kind == "dict":
        return [(key, child) for key, child in value]
    if kind in ("ordered", "counter", "default"):
        return [(key, child) for key, child in value[1]]
    if kind in ("list", "tuple", "size"):
        return list(enumerate(value))
    return list(enumerate(value[1])) if kind == "named" else []


def put_together(node: Any, arrays: list[Any], like: Any = None) -> Any:
    """The tree of a description, with these arrays. Namedtuples of a tree like it need not be found by their name."""
    kind, value = _only(node)
    if kind in ("array", "gradient"):
        return arrays[value]
    if kind == "parameter":
        return arrays[value[0]]
    if kind in _READ:
        return _READ[kind](value)
    those = dict(children_of(like) or ()) if like is not None else {}
    children = [(step, put_together(child, arrays, those.get(step))) for step, child in _steps(kind, value)]
    values = [child for _, child in children]
    if kind == "dict":
        return dict(children)
    if kind == "list":
        return values
    if kind == "tuple":
        return tuple(values)
    if kind in ("ordered", "counter"):
        # torch's MultiStepLR has its milestones in a Counter.
        made: Any = collections.OrderedDict(children) if kind == "ordered" else collections.Counter(dict(children))
        if value[0] is not None:
            vars(made).update(put_together(value[0], []))
        return made
    if kind == "default":
        return collections.defaultdict(None if value[0] is None else _FACTORIES[value[0]], children)
    if kind == "size":
        torch = sys.modules.get("torch")
        return tuple(values) if torch is None else torch.Size(values)
    if kind == "named":
        return _named(value[0], values, like)
    raise ValueError(f"a node of the kind {kind!r}")


def _named(about: Any, values: list[Any], like: Any) -> Any:
    module, name, fields = about
    found = type(like) if _is_namedtuple(like) and type(like)._fields == tuple(fields) else _class_of(module, name, fields)
    if found is None:
        raise ImportError(
            f"the checkpoint has a {name} of {module}, with the fields {', '.join(fields)}: import {module} before you load it"
        )
    return tuple.__new__(found, values)


_READ: dict[str, Callable[[Any], Any]] = {
    "value": lambda value: value,
    "float": float,
    "complex": lambda parts: complex(float(parts[0]), float(parts[1])),
    "bytes": bytes.fromhex,
    "path": pathlib.PosixPath,
    "number": lambda parts: _number(*parts),
    "numpy.str_": numpy.str_,
    "numpy.bytes_": lambda text: numpy.bytes_(bytes.fromhex(text)),
}


def with_gradients(node: Any, tensors: list[Any]) -> list[Any]:
    """New tensors, of which those that were parameters are some again, and those that needed a gradient do."""
    kinds: dict[int, Any] = {}
    _note_gradients(node, kinds)
    return [_with_gradient(tensor, kinds.get(number)) for number, tensor in enumerate(tensors)]


def _note_gradients(node: Any, kinds: dict[int, Any]) -> None:
    kind, value = _only(node)
    if kind == "parameter":
        kinds[value[0]] = value[1]
    elif kind == "gradient":
        kinds[value] = kind
    for _, child in _steps(kind, value):
        _note_gradients(child, kinds)


def _with_gradient(tensor: Any, kind: Any) -> Any:
    if kind is None or not is_tensor(tensor):
        return tensor
    if kind == "gradient":
        return tensor.requires_grad_()
    return sys.modules["torch"].nn.Parameter(tensor, requires_grad=bool(kind))


def _only(node: Any) -> tuple[str, Any]:
    ((kind, value),) = node.items()
    return kind, value
