"""Decides about each object in one place: hugekit keeps all of it, or refuses it and names the correct code.

Some objects are more than their bytes: a mask, a unit or the class would be lost silently. So only classes with a known
meaning are accepted. docs/python.md has a table of them, which the tests read.

The program itself imports torch, if it has tensors. This module only inspects them.
"""

from __future__ import annotations

import ast
import sys
from typing import Any

import numpy

# Kinds of elements that numpy and torch have under one name, and that a file names so.
_NUMBERS = "biufc"

# The library whose element types files name. No other is imported because a file names it.
_LIBRARY = "ml_dtypes"

# Before the description of a structure that is laid out as a C compiler does: the description does not say so.
_ALIGNED = "aligned "

_OF_RECORDS = "array.view(array.dtype.fields or array.dtype, numpy.ndarray)"


def is_tensor(thing: Any) -> bool:
    """Return True for a tensor of torch, of any class."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)


def is_array(thing: Any) -> bool:
    """Return True for an array or a tensor, of any class."""
    return isinstance(thing, numpy.ndarray) or is_tensor(thing)


def decided(thing: Any, name: str = "the array") -> tuple[Any, str | None]:
    """Return the owner of an object's memory: an array of numpy's own class, or an object with a buffer. Also return the
    name of the elements, if the array has unsigned integers instead of them.

    Raises:
        TypeError: it is more than its bytes, or has none. The message says what to write instead.
    """
    if type(thing) is numpy.ndarray:
        return thing, None
    if is_tensor(thing):
        return _of_tensor(thing, name)
    if type(thing) is numpy.memmap:
        return thing.view(numpy.ndarray), None
    if isinstance(thing, numpy.ndarray):
        raise TypeError(_of_subclass(thing, name))
    if isinstance(thing, numpy.generic):
        raise TypeError(f"{name} is one number of numpy's ({type(thing).__name__}) and no array: write numpy.array(number)")
    instead = _of_library(thing)
    if instead is not None:
        raise TypeError(f"{name} is a {_class_of(thing)}, which is more than its bytes: write {instead}")
    return thing, None


def elements_of(thing: Any) -> str | None:
    """The name of the elements of an array or a tensor; None for bytes without a type."""
    if is_tensor(thing):
        return str(thing.dtype).removeprefix("torch.")
    return dtype_name(thing.dtype) if isinstance(thing, numpy.ndarray) else None


def _class_of(thing: Any) -> str:
    kind = type(thing)
    library = kind.__module__.partition(".")[0]
    return kind.__name__ if library == "builtins" else f"{library}.{kind.__name__}"


def _of_subclass(array: Any, name: str) -> str:
    if isinstance(array, numpy.ma.MaskedArray):
        return f"{name} is a masked array: write array.data and array.mask, which are two arrays"
    if hasattr(array, "unit"):
        return (
            f"{name} is a {_class_of(array)} with the unit {array.unit}: write array.value for its numbers, and keep the unit "
            "beside them"
        )
    instead = _OF_RECORDS if isinstance(array, numpy.recarray) else "array.view(numpy.ndarray)"
    return f"{name} is a {_class_of(array)}, a subclass of numpy.ndarray: write {instead}, which shares its memory"


def _of_library(thing: Any) -> str | None:
    """Return the correct code for an array of another library; None for other objects."""
    library = type(thing).__module__.partition(".")[0]
    if library in ("hugekit", "builtins", "mmap", "array", "ctypes", "multiprocessing"):
        return None
    if library == "dask":
        return "numpy.asarray(array.compute())"
    if library == "pandas" and hasattr(thing, "to_numpy"):
        return "data.to_numpy(), and keep its index and names beside it"
    if library == "xarray" and hasattr(thing, "data_vars"):
        return "{name: variable.values for name, variable in dataset.items()}"
    if library == "xarray" and hasattr(thing, "coords"):
        return "array.values, and keep its coordinates beside it"
    is_one = any(hasattr(thing, sign) for sign in ("dtype", "__array__", "__array_interface__", "__dlpack__"))
    return "numpy.asarray(array)" if is_one else None


def _of_tensor(tensor: Any, name: str) -> tuple[Any, str | None]:
    torch = sys.modules["torch"]
    refuse_tensor(tensor, name, torch)
    lacking, size = None, tensor.element_size()
    elements = (_TYPES or _elements(torch)).get(tensor.dtype)
    if elements is None:
        if size not in (1, 2, 4, 8):
            raise TypeError(f"{name} has the dtype {tensor.dtype}, whose elements have {size} bytes: numpy has no integers for them")
        lacking, elements = str(tensor.dtype).removeprefix("torch."), numpy.dtype(f"u{size}").str
    shape = tuple(tensor.shape)
    if 0 in shape:
        return numpy.empty(shape, elements), lacking
    try:
        address = tensor.data_ptr()
        has = tensor.untyped_storage().nbytes()
    except RuntimeError as error:
        raise TypeError(f"{name} has no memory ({error}): write tensor.clone() outside of the function transform") from None
    if tensor.is_contiguous():
        strides, last = None, tensor.numel() - 1
    else:
        strides = tensor.stride()
        last = sum((extent - 1) * stride for extent, stride in zip(shape, strides))
        strides = tuple(stride * size for stride in strides)
    needs = size * (tensor.storage_offset() + last + 1)
    if needs > has:
        raise ValueError(
            f"{name} needs {needs} bytes, and its storage has {has}, as if it was freed: give the storage its bytes back, by "
            "tensor.untyped_storage().resize_(nbytes)"
        )
    return numpy.asarray(_Memory(tensor, address, shape, strides, elements)), lacking


class _Memory:
    """The memory of a tensor for numpy, and the owner that keeps it alive.

    ``tensor.numpy()`` is not used, because torch would then refuse to resize the storage permanently. torch frees the
    memory if the program resizes it while hugekit has it; a snapshot is then lost, as if the memory was unmapped.
    """

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, elements: str):
        self.owner = owner
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": shape, "strides": strides, "typestr": elements}


def bytes_at(owner: Any, address: int, nbytes: int) -> Any:
    """The bytes of an object that has them at an address, as an array that keeps the object."""
    if not nbytes:
        return numpy.empty(0, "u1")
    return numpy.asarray(_Memory(owner, address, (nbytes,), None, "|u1"))


_TYPES: dict[Any, str] = {}


def _elements(torch: Any) -> dict[Any, str]:
    """numpy's types of torch's dtypes."""
    if not _TYPES:
        names = "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
        for name in names.split():
            if hasattr(torch, name):
                _TYPES[getattr(torch, name)] = numpy.dtype(name).str
    return _TYPES


def refuse_tensor(tensor: Any, name: str, torch: Any) -> None:
    """Raise an error that names the correct code, unless the tensor consists of strided bytes on the CPU."""
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        raise TypeError(_of_tensor_subclass(tensor, name))
    if tensor.is_nested:
        raise TypeError(f"{name} is a nested tensor: write tensor.unbind(), which is a tuple of tensors")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} is sparse ({tensor.layout}): write tensor.to_dense()")
    if not tensor.is_cpu:
        if tensor.is_meta:
            raise TypeError(f"{name} is on the device meta and has no bytes: write torch.empty_like(tensor, device='cpu')")
        raise TypeError(f"{name} is on {tensor.device}, and hugekit reads memory of the CPU: write tensor.cpu()")
    if tensor.is_quantized:
        raise TypeError(f"{name} is quantized: write tensor.int_repr(), and keep its scale beside it")
    if tensor.is_conj():
        raise TypeError(f"{name} is a conjugate that is not computed yet: write tensor.resolve_conj()")
    if tensor.is_neg():
        raise TypeError(f"{name} is a negative that is not computed yet: write tensor.resolve_neg()")
    if tensor._is_zerotensor():
        raise TypeError(f"{name} is a tensor of zeros without memory: write tensor.clone()")


def _of_tensor_subclass(tensor: Any, name: str) -> str:
    kind = type(tensor)
    # What a subclass does when it is asked something is its own affair; a class is only looked at.
    if hasattr(kind, "to_local"):
        return f"{name} is a {kind.__name__}, and this process has only a part of it: write tensor.to_local()"
    if kind.__name__ == "NestedTensor":
        return f"{name} is a nested tensor: write tensor.unbind(), which is a tuple of tensors"
    if kind.__name__ == "FakeTensor":
        return f"{name} is a FakeTensor and has no bytes: make it outside of FakeTensorMode"
    if kind.__name__ in ("UninitializedParameter", "UninitializedBuffer"):
        return f"{name} is a {kind.__name__} and has no bytes yet: call the module once"
    if hasattr(kind, "__tensor_flatten__"):
        instead = "tensor.dequantize()" if "dequantize" in vars(kind) else "the tensors that it is made of"
        return f"{name} is a {_class_of(tensor)}, which consists of other tensors: write {instead}"
    return f"{name} is a {_class_of(tensor)}, a subclass of torch.Tensor: write tensor.as_subclass(torch.Tensor), which shares its memory"


def dtype_name(dtype: Any, name: str = "the array") -> str:
    """The name of a dtype of numpy, as a file has it.

    Raises:
        TypeError: a file cannot name it.
    """
    if dtype.hasobject:
        raise TypeError(
            f"{name} has the dtype {dtype}, which holds references to Python objects: write array.astype(dtype) with a dtype "
            "of numbers or of text, which is a copy"
        )
    if dtype.isbuiltin == 1 and dtype.kind in _NUMBERS and dtype.isnative and dtype.metadata is None:
        return dtype.name
    if dtype.type.__module__ == _LIBRARY and dtype.isnative:
        return f"{_LIBRARY}.{dtype.name}"
    aligned = _ALIGNED if dtype.isalignedstruct else ""
    return aligned + repr(described(dtype, name))


def described(dtype: Any, name: str = "the array") -> Any:
    """A dtype as the header of a .npy file describes it.

    Raises:
        TypeError: what is read of that is another dtype.
    """
    # Warns that metadata is not saved, as numpy.save does.
    described = numpy.lib.format.dtype_to_descr(dtype)
    try:
        found = numpy.lib.format.descr_to_dtype(described)
    except (TypeError, ValueError):
        found = None
    if found != dtype or found.type is not dtype.type:
        raise TypeError(_refused_dtype(dtype, name, "nothing" if found is None else found))
    return described


def _refused_dtype(dtype: Any, name: str, found: Any) -> str:
    if issubclass(dtype.type, numpy.record):
        return f"{name} has elements of the class numpy.record, which a file cannot name: write {_OF_RECORDS}"
    library = dtype.type.__module__.partition(".")[0]
    instead = f"array.view(numpy.uint{8 * dtype.itemsize})" if dtype.itemsize in (1, 2, 4, 8) else f"array.view('V{dtype.itemsize}')"
    checkpointer = ", or save it by hugekit.Checkpointer" if library == _LIBRARY and dtype.isnative else ""
    return f"{name} has the dtype {dtype}, and numpy would read {found} from the file: write {instead}{checkpointer}"


def dtype_of(dtype: str) -> Any:
    """The numpy dtype of a name; None if numpy has none."""
    if dtype.startswith(_ALIGNED):
        found = dtype_of(dtype.removeprefix(_ALIGNED))
        try:
            fields = [found.fields[name] for name in found.names]
            formats, offsets = [field[0] for field in fields], [field[1] for field in fields]
            described = {"names": found.names, "formats": formats, "offsets": offsets, "itemsize": found.itemsize}
            return numpy.dtype({**described, "aligned": True})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{dtype} is not a dtype: {error}") from None
    if dtype[:1] in ("'", "["):
        try:
            found = numpy.lib.format.descr_to_dtype(ast.literal_eval(dtype))
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(f"{dtype} is not a dtype: {error}") from None
        if found.hasobject:
            raise ValueError(f"{dtype} is a dtype that holds references to Python objects")
        return found
    library, _, name = dtype.rpartition(".")
    if library == _LIBRARY:
        return _of_ml_dtypes(name)
    try:
        found = numpy.dtype(dtype)
    except TypeError:
        return None
    return found if found.isbuiltin == 1 and found.kind in _NUMBERS else None


def _of_ml_dtypes(name: str) -> Any:
    try:
        import ml_dtypes
    except ImportError as missing:
        raise ImportError(f"the dtype {name} is one of ml_dtypes, which cannot be imported ({missing}): pip install ml_dtypes") from None
    found = getattr(ml_dtypes, name, None)
    if not isinstance(found, type) or not issubclass(found, numpy.generic):
        raise ValueError(f"ml_dtypes {getattr(ml_dtypes, '__version__', '')} has no dtype {name}: update it")
    return numpy.dtype(found)
