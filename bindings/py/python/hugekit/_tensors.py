"""Arrays and tensors of torch as bytes that lie side by side.

The program imports torch, if it has tensors at all; this module only asks what they are.
"""

from __future__ import annotations

import ast
import math
import sys
from typing import Any

import numpy

# Element types that both libraries have under one name, and that a file names so.
_NUMBERS = "biufc"


def is_tensor(thing: Any) -> bool:
    """Whether it is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)


def array_of(tensor: Any, name: str = "the tensor") -> Any:
    """The numpy array that shares a CPU tensor's memory; of dtypes that numpy lacks, as unsigned integers."""
    _refuse(tensor, name)
    tensor = tensor.detach()
    try:
        return tensor.numpy()
    except TypeError:
        torch = sys.modules["torch"]
        size = tensor.element_size()
        signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
        return tensor.view(signed).numpy().view(f"u{size}")


def _refuse(tensor: Any, name: str) -> None:
    """Raises for what has no bytes on the CPU that could be read in place, with what to write instead."""
    torch = sys.modules["torch"]
    if hasattr(tensor, "to_local"):
        raise TypeError(f"{name} is a {type(tensor).__name__}, and this process has only a part of it: write tensor.to_local()")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} is sparse ({tensor.layout}): write tensor.to_dense()")
    if tensor.is_quantized:
        raise TypeError(f"{name} is quantized: write tensor.int_repr()")
    if tensor.device.type == "meta":
        raise TypeError(f"{name} is on the device meta and has no bytes: write torch.empty_like(tensor, device='cpu')")
    if tensor.device.type != "cpu":
        raise TypeError(f"{name} is on {tensor.device}, and hugekit reads memory of the CPU: write tensor.cpu()")
    if tensor.is_conj():
        raise TypeError(f"{name} is a conjugate that is not computed yet: write tensor.resolve_conj()")
    if tensor.is_neg():
        raise TypeError(f"{name} is a negative that is not computed yet: write tensor.resolve_neg()")


class Leaf:
    """One array or tensor: what it is, and its bytes.

    ``axes`` are its axes from the slowest to the fastest one in memory: (0, 1) in C order, (1, 0) in Fortran order, and
    (0, 2, 3, 1) where torch says channels_last.
    """

    __slots__ = ("thing", "name", "of", "dtype", "shape", "axes", "flat")

    def __init__(self, thing: Any, name: str):
        self.thing = thing
        self.name = name
        if is_tensor(thing):
            self.of = "torch"
            array = array_of(thing, name)
            self.dtype = str(thing.dtype).removeprefix("torch.")
        else:
            self.of = "numpy"
            array = thing
            if array.dtype.hasobject:
                raise TypeError(
                    f"{name} has the dtype {array.dtype}, which holds references to Python objects: write "
                    "array.astype(dtype) with a dtype of numbers or of text, which is a copy"
                )
            self.dtype = dtype_name(array.dtype)
        self.shape = tuple(array.shape)
        self.axes = memory_order(array)
        if self.axes is None:
            instead = "tensor.contiguous()" if self.of == "torch" else "numpy.ascontiguousarray(array)"
            raise ValueError(f"{name} has gaps between its elements, or repeats some: write {instead}, which is a copy")
        self.flat = array.transpose(self.axes)

    @property
    def nbytes(self) -> int:
        return self.flat.nbytes

    @property
    def address(self) -> int:
        # Without bytes it may be another one each time.
        return self.flat.__array_interface__["data"][0] if self.nbytes else 0

    def kind(self) -> str:
        order = "" if self.axes == tuple(range(len(self.shape))) else f", in memory by the axes {self.axes}"
        return f"{self.dtype} of the shape {self.shape}{order}"


def memory_order(array: Any) -> tuple[int, ...] | None:
    """The axes from the slowest to the fastest one; None if elements do not lie side by side."""
    in_order = tuple(range(array.ndim))
    by_stride = tuple(sorted(in_order, key=lambda axis: -array.strides[axis]))
    for axes in (in_order, by_stride):
        if array.size == 0 or array.transpose(axes).flags.c_contiguous:
            return axes
    return None


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of numpy, as a file has it."""
    if dtype.kind in _NUMBERS and dtype.isnative:
        return dtype.name
    return repr(numpy.lib.format.dtype_to_descr(dtype))


def dtype_of(name: str) -> Any:
    """The numpy dtype of a name; None if numpy has none."""
    if name[:1] in ("'", "["):
        try:
            dtype = numpy.lib.format.descr_to_dtype(ast.literal_eval(name))
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(f"{name} is not a dtype: {error}") from None
        if dtype.hasobject:
            raise ValueError(f"{name} is a dtype that holds references to Python objects")
        return dtype
    try:
        dtype = numpy.dtype(name)
    except TypeError:
        return None
    return dtype if dtype.kind in _NUMBERS else None


def new_array(name: str, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...], nbytes: int) -> Any:
    """An array that holds nothing yet; of dtypes that numpy lacks, of unsigned integers of the same size."""
    items = math.prod(shape)
    found = dtype_of(dtype)
    if found is None:
        size = nbytes // items if items else 1
        if size not in (1, 2, 4, 8):
            raise ValueError(f"{name} has the dtype {dtype}, which numpy lacks, and integers of {size} bytes, too")
        found = numpy.dtype(f"u{size}")
    # Before memory is taken: a file may say anything.
    if items * found.itemsize != nbytes:
        raise ValueError(f"{name} has {nbytes} bytes, which do not fit {dtype} of the shape {shape}")
    array = numpy.empty([shape[axis] for axis in axes], found)
    return array.transpose(numpy.argsort(axes))


def new_tensor(name: str, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...], nbytes: int) -> Any:
    """A tensor that holds nothing yet."""
    try:
        import torch
    except ImportError as missing:
        raise ImportError(
            f"{name} is a tensor, and torch cannot be imported ({missing}): pip install hugekit[torch], "
            "or load arrays instead: load_checkpoint(paths, as_numpy=True)"
        ) from None
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name} has the dtype {dtype}, which torch {torch.__version__} lacks")
    # Before memory is taken: a file may say anything.
    if math.prod(shape) * found.itemsize != nbytes:
        raise ValueError(f"{name} has {nbytes} bytes, which do not fit {dtype} of the shape {shape}")
    tensor = torch.empty([shape[axis] for axis in axes], dtype=found)
    return tensor.permute([int(axis) for axis in numpy.argsort(axes)])
