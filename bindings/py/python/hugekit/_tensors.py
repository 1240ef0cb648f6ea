"""Arrays and tensors of torch as bytes that lie side by side."""

from __future__ import annotations

import math
from typing import Any

import numpy

from ._kinds import decided, dtype_name, dtype_of, is_tensor


class Leaf:
    """One array or tensor: what it is, and its bytes.

    ``axes`` are its axes from the slowest to the fastest one in memory: (0, 1) in C order, (1, 0) in Fortran order, and
    (0, 2, 3, 1) where torch says channels_last. Elements with gaps between them are stored in C order.
    """

    __slots__ = ("thing", "name", "of", "dtype", "shape", "axes", "flat", "has_gaps")

    def __init__(self, thing: Any, name: str):
        self.thing = thing
        self.name = name
        array, _ = decided(thing, name)
        if is_tensor(thing):
            self.of = "torch"
            self.dtype = str(thing.dtype).removeprefix("torch.")
        else:
            self.of = "numpy"
            self.dtype = dtype_name(array.dtype, name)
        self.shape = tuple(array.shape)
        axes = memory_order(array)
        self.has_gaps = axes is None
        self.axes = tuple(range(array.ndim)) if axes is None else axes
        self.flat = array.transpose(self.axes)

    def refuse_gaps(self) -> None:
        if self.has_gaps:
            instead = "tensor.contiguous()" if self.of == "torch" else "numpy.ascontiguousarray(array)"
            raise ValueError(f"{self.name} has gaps between its elements, or repeats some: write {instead}, which is a copy")

    @property
    def nbytes(self) -> int:
        return self.flat.nbytes

    @property
    def address(self) -> int:
        # Without bytes it may be another one each time.
        return self.flat.__array_interface__["data"][0] if self.nbytes else 0

    def kind(self) -> str:
        order = "" if self.axes == tuple(range(len(self.shape))) else f", in memory by the axes {self.axes}"
        gaps = f", with the strides {self.flat.strides}" if self.has_gaps else ""
        return f"{self.dtype} of the shape {self.shape}{order}{gaps}"


def memory_order(array: Any) -> tuple[int, ...] | None:
    """The axes from the slowest to the fastest one; None if elements do not lie side by side."""
    in_order = tuple(range(array.ndim))
    by_stride = tuple(sorted(in_order, key=lambda axis: -array.strides[axis]))
    for axes in (in_order, by_stride):
        if array.size == 0 or array.transpose(axes).flags.c_contiguous:
            return axes
    return None


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
    # The program may have set another device.
    tensor = torch.empty([shape[axis] for axis in axes], dtype=found, device="cpu")
    return tensor.permute([int(axis) for axis in numpy.argsort(axes)])
